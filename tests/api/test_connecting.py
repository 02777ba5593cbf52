"""Who asks, how it is kept secret, and what comes back from what is no server of ours."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import Closed, Denied, HeadwaterError, Invalid, Unavailable, Unsupported
from headwater.remote.server_address import ServerAddress
from headwater.remote.transport import Transport
from headwater.store import Store
from tests.server.people import SECRET, add
from tests.server.process import served
from tests.server.serving import Server
from tests.server.test_tls import made

__all__ = ["made"]  # certificates, by the commands of docs/SECURITY.md


def test_a_token_or_a_password_says_who_asks(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    token = add(users, "shop", "append,read:orders.*", token=True)
    add(users, "ada", password=SECRET)
    with served(tmp_path / "data", "--auth", str(users)) as server:
        with headwater.open(server.url, token=token) as hw:
            hw.append("orders.eu", b"x")
            assert [event.data for event in hw.read("orders.eu")] == [b"x"]
            assert denied(hw.append, "stock", b"x") == denied(hw.delete, "orders.eu") == "forbidden"
        with headwater.open(server.url, user=("ada", SECRET)) as hw:
            assert hw.topics() == ["orders.eu"]
        for wrong in ({}, {"token": "x" * 20}, {"user": ("ada", "wrong")}):
            with headwater.open(server.url, **wrong) as hw:
                assert denied(hw.topics) == denied(hw.append, "orders.eu", b"x" * 300_000) == "unauthenticated"


def denied(ask: Callable[..., object], *arguments: Any) -> str:
    """The code of the error that it is not allowed."""
    with pytest.raises(Denied) as failed:
        ask(*arguments)
    return failed.value.code


def test_certificates_are_checked_on_both_sides(tmp_path: Path, made: Path) -> None:
    files = [str(made / name) for name in ("server.pem", "server.key", "ca.pem")]
    options = ("--tls-cert", files[0], "--tls-key", files[1], "--tls-client-ca", files[2])
    client: Any = {"tls_cert": made / "client.pem", "tls_key": made / "client.key"}
    with served(tmp_path / "data", *options) as server:
        _check_certificates(server.url.replace("127.0.0.1", "localhost"), made / "ca.pem", client)


def _check_certificates(url: str, ca: Path, client: dict[str, Any]) -> None:
    with headwater.open(url, tls_ca=ca, **client) as hw:
        hw.append("t", b"x" * 100_000)
        assert next(hw.read("t")).size == 100_000
        hw.append("t", io.BytesIO(b"x" * 5_000_000))
        follower = hw.follow("t", timeout=20)
        hw.append("t", b"y")
        assert next(follower).data == b"y"
        ended = threading.Thread(target=lambda: list(follower))
        ended.start()
        follower.stop()
        ended.join(20)
        assert not ended.is_alive()
    with headwater.open(url, **client) as hw, pytest.raises(Unavailable) as failed:
        hw.topics()
    assert "certificate is not trusted" in failed.value.message
    with headwater.open(url, tls_ca=ca, retry=0.2) as hw, pytest.raises(Unavailable):
        hw.topics()


@pytest.mark.parametrize(
    "options",
    [
        {"tls_ca": "missing.pem"},
        {"tls_key": "key.pem"},
        {"token": "a b"},
        {"token": "a\r\nX: y"},
        {"token": "t", "user": ("a", "b")},
        {"user": ("a:b", "c")},
    ],
)
def test_wrong_credentials_are_refused_before_anything_is_sent(options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        headwater.open("https://localhost:1", **options)


def test_certificates_have_no_use_without_encryption() -> None:
    with pytest.raises(Invalid, match="not encrypted") as failed:
        headwater.open("http://localhost:1", tls_ca="ca.pem")
    assert "https://" in failed.value.hint


def test_options_of_servers_are_refused_for_directories(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is a directory"):
        headwater.open(str(tmp_path / "data"), token="secret")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "address", ["http://", "http://host:port", "http://host:99999", "http://h/?q=1", "https:///x", "https://h/#x"]
)
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(Invalid):
        headwater.open(address)


def test_a_port_need_not_be_said() -> None:
    said = [str(ServerAddress.parse(address)) for address in ("http://h", "https://h", "http://[::1]/")]
    assert said == ["http://h:7450", "https://h:443", "http://[::1]:7450"]


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(Invalid) as failed:
        headwater.open("http://ada:topsecret@host:7450")
    assert failed.value.code == "credentials_in_address"
    assert "topsecret" not in str(failed.value) + repr(failed.value)


def test_other_schemes_are_not_supported() -> None:
    with pytest.raises(Unsupported):
        headwater.open("ftp://host")


def test_other_schemes_are_told_what_there_is() -> None:
    with pytest.raises(Unsupported) as failed:
        headwater.open("tcp://host:7451")
    assert "http://host:7450" in failed.value.hint
    assert "headwater://" not in failed.value.hint


@pytest.mark.parametrize(
    ("address", "instead"),
    [
        ("headwater://host:7451", "http://host:7450"),
        ("headwaters://host:7451", "https://host:7450"),
        ("headwater://", "http://host:7450"),
        ("headwater://ada:topsecret@host", "http://host:7450"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"token": "t"}, {"mode": "existing"}, {"tls_ca": "ca.pem"}, {"linger_ms": 5}])
def test_an_address_of_the_protocol_over_tcp_names_that_of_http(
    address: str, instead: str, options: dict[str, Any]
) -> None:
    with pytest.raises(Unsupported) as failed:
        headwater.open(address, **options)
    assert (failed.value.code, failed.value.hint) == ("tcp_address", f"open it as {instead}")
    assert "topsecret" not in str(failed.value) + repr(failed.value)


def test_a_replica_has_no_source_over_tcp(tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as failed:
        headwater.replicate("headwater://127.0.0.1:7451", tmp_path / "replica", once=True)
    assert failed.value.code == "tcp_address"
    assert list(tmp_path.iterdir()) == []


def test_a_producers_id_cannot_smuggle_a_header(server_url: str) -> None:
    with headwater.open(server_url) as hw, pytest.raises(Invalid):
        hw.append("t", b"x", producer=("a\r\nHeadwater-Seq: 9", 0, 0))


def test_a_producer_may_have_any_name(server_url: str, topic: str) -> None:
    with headwater.open(server_url) as hw:
        for expected in (0, 0):
            assert hw.append(topic, b"x", producer=("büro №1", 0, 7)).offset == expected
            assert hw.append_many(topic, [b"y"], producer=("büro №2", 0, 7))[0].offset == 1


def test_a_forked_child_has_connections_and_producers_of_its_own(server_url: str, topic: str) -> None:
    with headwater.open(server_url) as hw:
        hw.append(topic, b"parent 0")
        child = os.fork()
        if child == 0:
            try:
                for n in range(20):
                    hw.append(topic, b"child %d" % n)
            finally:
                os._exit(0)
        for n in range(1, 20):
            hw.append(topic, b"parent %d" % n)
        os.waitpid(child, 0)
        found = [event.data for event in hw.read(topic)]
    assert sorted(found) == sorted(b"%s %d" % (who, n) for who in (b"parent", b"child") for n in range(20))  # type: ignore[type-var]


def test_threads_share_one_object(server_url: str, topic: str) -> None:
    with headwater.open(server_url) as hw:

        def work(n: int) -> None:
            for i in range(20):
                assert hw.append(topic, b"%d-%d" % (n, i)).topic == topic

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({event.data for event in hw.read(topic)}) == 160


@contextmanager
def double(answer: Callable[[int], bytes]) -> Iterator[str]:
    """The address of what answers each request, by its number, with these bytes, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                if connection.recv(65_536):
                    connection.sendall(answer(number))
                    number += 1

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def plain(status: str, body: bytes, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 " + status.encode(), b"Content-Length: %d" % len(body), b"Connection: close", *headers)
    return b"\r\n".join((*lines, b"", body))


def asked(url: str, retry: float = 5.0) -> list[str]:
    with headwater.open(url, retry=retry, timeout=2.0) as hw:
        return hw.topics()


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (plain("404 Not Found", b"<html>"), HeadwaterError, "bad_answer"),
        (plain("302 Found", b"", b"Location: /login"), Invalid, "bad_answer"),
        (plain("500 Oops", b"<html>"), Unavailable, "bad_answer"),
        (plain("418 Teapot", b'{"kind": "Tea", "message": "short", "facts": {"hint": 1}}'), Invalid, "invalid"),
        (b"SSH-2.0-OpenSSH\r\n", Unavailable, "unreachable"),
        (b"", Unavailable, "unreachable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[]", Unavailable, "unreachable"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400_000, Unavailable, "unreachable"),
    ],
)
def test_answers_that_are_not_ours_are_told_as_errors(answer: bytes, kind: type[HeadwaterError], code: str) -> None:
    with double(lambda _: answer) as url, pytest.raises(kind) as failed:
        asked(url, retry=0.3)
    assert failed.value.code == code


@pytest.mark.parametrize(
    "busy",
    [
        plain("503 Busy", b'{"kind": "Unavailable", "code": "overloaded", "message": "busy"}'),
        plain("503 Busy", b'{"kind": "Closed", "code": "stopping", "message": "stopping"}'),
        plain("502 Bad Gateway", b"<html>"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[",
        b"",
    ],
)
def test_a_server_that_is_busy_is_asked_again(busy: bytes) -> None:
    with double(lambda number: busy if number < 3 else plain("200 OK", b'["found"]')) as url:
        assert asked(url) == ["found"]


def test_an_answer_that_needs_a_person_is_not_asked_for_again() -> None:
    frozen = plain("503 No", b'{"kind": "Unavailable", "code": "frozen", "message": "frozen", "hint": "see to it"}')
    counted: list[int] = []

    def answer(number: int) -> bytes:
        counted.append(number)
        return frozen

    with double(answer) as url, pytest.raises(Unavailable) as failed:
        asked(url)
    assert (failed.value.code, failed.value.hint, counted) == ("frozen", "see to it", [0])


def test_an_answer_may_end_with_its_connection() -> None:
    with double(lambda _: b'HTTP/1.0 200 OK\r\n\r\n["old"]') as url:
        assert asked(url) == ["old"]


def test_an_answer_may_be_announced() -> None:
    announced = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + plain("200 OK", b'["found"]')
    with double(lambda _: announced) as url:
        assert asked(url) == ["found"]


def test_a_part_of_a_piece_is_not_the_end_of_waiting() -> None:
    opening = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                for part in (opening, b"5\r\n", b"whole\r\n0\r\n\r\n"):
                    connection.sendall(part)
                    time.sleep(0.1)  # so that it comes apart
                connection.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        transport = Transport(ServerAddress.parse(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with transport.stream(("x",), accept="*/*") as stream:
            assert stream.more(20.0) == [b"whole"]
            assert stream.more(20.0) is None
        transport.close()
        serving.join(20)


@pytest.mark.parametrize(
    ("event", "content"), [(b"\xff not UTF-8", "text"), (b"\xff", "json"), (b"{ not JSON", "json")]
)
def test_what_is_not_what_it_is_said_to_be_is_refused(server: Server, topic: str, event: bytes, content: Any) -> None:
    with headwater.open(server.url) as hw:
        hw.append(topic, b"first")
        with pytest.raises(Invalid, match="the data is not") as failed:
            hw.append(topic, event, content=content)
        assert failed.value.code == {"json": "bad_json", "text": "not_utf8"}[content]
        hw.append(topic, b"last")
        assert [each.data for each in hw.read(topic)] == [b"first", b"last"]


def test_a_server_that_does_not_answer_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with headwater.open(url, timeout=0.2, retry=0.5) as hw, pytest.raises(Unavailable):
            hw.topics()
        assert time.monotonic() - began < 10


def test_closing_ends_a_request_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hw = headwater.open(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert isinstance(hw, Store)
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                hw.topics()
            except HeadwaterError as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            hw.close()
            asking.join(20)
        assert [type(error) for error in failures] == [Closed]


def test_the_port_of_the_protocol_over_tcp_is_told_at_once(server: Server) -> None:
    url = server.tcp_url.replace("headwater://", "http://")
    with headwater.open(url, retry=3600.0) as hw:  # what is not told at once is tried until this test is given up
        for ask in (hw.topics, lambda: hw.append("t", b"x")):
            with pytest.raises(Unavailable, match=r"the port of the TCP protocol.*7450") as failed:
                ask()
            assert failed.value.code == "unreachable"

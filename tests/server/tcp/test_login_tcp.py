"""Who may do what over TCP, on a real `headwater serve`: the same users, scopes and certificates as over HTTP."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.people import SECRET, add, revoke
from tests.server.process import ServerProcess, http, served
from tests.server.tcp.wire import Closed, Wire, frame, wire
from tests.server.test_tls import PAGE, shell
from tests.waiting import wait_for

WAIT_S = 20.0


class Users:
    """A server with users, and their tokens."""

    def __init__(self, path: Path) -> None:
        self.file = path / "users.json"
        self.shop = add(self.file, "shop", "append:orders.*", token=True)
        self.reader = add(self.file, "reader", "read:orders.*", token=True)
        self.admin = add(self.file, "ada", "read,append,admin:*", password=SECRET, token=True)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    return Users(tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def process_options(users: Users, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return ["--auth", str(users.file), "--access-log", str(tmp_path_factory.mktemp("login") / "access.log")]


def refused(process: ServerProcess, **body: Any) -> dict[str, Any]:
    """What is said to a CONNECT, after which the connection ends."""
    client = Wire(process.tcp_url)
    client.send(frame("CONNECT", {"version": "1.0", **body}), frame("PING"))
    told = client.receive()[1]
    assert client.closed()
    client.close()
    return told


def test_a_name_and_password_or_a_token_tell_who_it_is(process: ServerProcess, users: Users) -> None:
    for who in ({"username": "ada", "password": SECRET}, {"token": users.admin}):
        with wire(process.tcp_url, **who) as client:
            assert client.emit("orders.eu", {})["ok"]


@pytest.mark.parametrize("who", [{}, {"token": "hw_nonsense"}, {"token": ""}, {"username": "eve", "password": SECRET}])
def test_who_is_not_known_is_turned_away(process: ServerProcess, who: dict[str, str]) -> None:
    told = refused(process, **who)
    assert (told["ok"], told["errCode"], told["errKind"]) == (False, "unauthenticated", "Denied")


def test_scopes_count_for_each_frame(process: ServerProcess, users: Users) -> None:
    with wire(process.tcp_url, token=users.shop) as shop, wire(process.tcp_url, token=users.reader) as reader:
        assert shop.emit("orders.at", {})["ok"]
        shop.send(
            *[frame("EMIT", {"streamName": name, "eventType": "t", "event": {}}) for name in ("orders.at", "stock")] * 2
        )
        assert [shop.receive()[1].get("errCode", "ok") for _ in range(4)] == ["ok", "forbidden"] * 2
        assert "'append:stock'" in shop.emit("stock", {})["errHint"]
        assert shop.ask("SUBSCRIBE", streamName="orders.at")["errCode"] == "forbidden"
        assert shop.ask("QUERY", queryID=1, binder="b", matcher={})["errCode"] == "forbidden"
        assert reader.emit("orders.at", {})["errCode"] == "forbidden"
        assert reader.ask("SUBSCRIBE", streamName="orders.at", startSequence=0)["ok"]
        assert [reader.receive()[0] for _ in range(3)] == ["RECEV"] * 3
        assert reader.ask("STARTTX", sessID=1)["ok"]
        told = reader.ask("EMIT", streamName="orders.at", eventType="t", event={}, sessID=1)
        committed = reader.ask("COMMITTX", sessID=1)
        assert "forbidden" in (told.get("errCode"), committed.get("errCode"))


def test_wrong_passwords_are_too_many_after_a_while(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    token = add(file, "ada", password=SECRET, token=True)
    with served(tmp_path / "data", "--auth", str(file)) as server:
        codes = [refused(server, username="ada", password="wrong horse")["errCode"] for _ in range(11)]
        assert codes == ["unauthenticated"] * 10 + ["too_many_failures"]
        assert refused(server, username="ada", password=SECRET)["errCode"] == "too_many_failures"
        with wire(server.tcp_url, token=token) as client:
            assert client.ask("PING") == {"ok": True}


def test_a_user_that_is_removed_loses_the_connection(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    token, other = add(file, "ada", token=True), add(file, "bob", token=True)
    with (
        served(tmp_path / "data", "--auth", str(file)) as server,
        wire(server.tcp_url, token=token) as client,
        wire(server.tcp_url, token=other) as stays,
    ):
        stored = 0
        revoke(file, "ada")
        until = time.monotonic() + WAIT_S
        while (told := client.emit("orders", {}))["ok"]:
            stored += 1
            assert time.monotonic() < until
        assert told["errCode"] == "unauthenticated"
        assert client.closed()
        assert stays.emit("orders", {})["offset"] == stored


def test_frames_are_counted_and_written_to_the_access_log(process: ServerProcess, users: Users) -> None:
    with wire(process.tcp_url, token=users.admin) as client:
        client.emit("orders.counted", {})
        client.send(*[frame("EMIT", {"streamName": "orders.counted", "eventType": "t", "event": {}})] * 50)
        assert all(client.receive()[1]["ok"] for _ in range(50))
        assert client.ask("PING", x=1)["errCode"] == "bad_field"
        metrics = http.get(f"{process.url}/metrics", headers={"Authorization": f"Bearer {users.admin}"}).text
    found = re.search(r'headwater_http_requests_total\{method="TCP",route="EMIT",status="200"\} (\S+)', metrics)
    assert found is not None
    assert float(found[1]) >= 51
    assert 'headwater_http_requests_total{method="TCP",route="PING",status="400"} 1.0' in metrics
    assert re.search(r'headwater_errors_total\{code="bad_field"\} [1-9]', metrics)
    log = Path(process.options[process.options.index("--access-log") + 1])

    def noted(path: str, status: int) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line["path"] == path and line["status"] == status]

    wait_for(lambda: noted("PING", 400))
    (ping,) = noted("PING", 400)
    assert (ping["client"], ping["user"], ping["method"], ping["route"]) == ("127.0.0.1", "ada", "TCP", "PING")
    assert ping["bytes_in"] > 30
    assert ping["bytes_out"] > 30
    emits = [line for line in noted("EMIT", 200) if line["user"] == "ada"]
    assert len(emits) >= 51
    assert all(line["bytes_out"] > 60 for line in emits)
    assert users.admin not in log.read_text()


class Secure(Wire):
    """A connection with TLS."""

    def __init__(self, process: ServerProcess, context: ssl.SSLContext) -> None:
        plain = socket.create_connection(("127.0.0.1", process.tcp_port), timeout=WAIT_S)
        self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self._file = self.socket.makefile("rb")


def test_tls_and_client_certificates_are_those_of_http(tmp_path: Path) -> None:
    shell(PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0], tmp_path)
    file = tmp_path / "users.json"
    add(file, "shop", "append:orders.*", subjects="CN=shop,O=Example")
    tls = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem")
    options = [str(tmp_path / word) if "." in word else word for word in tls]
    with served(tmp_path / "data", "--auth", str(file), *options) as server:
        assert server.tcp_url.startswith("headwaters://")
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        alone = Secure(server, context)  # in TLS 1.3, the client hears of its refusal when it reads
        with pytest.raises((ssl.SSLError, ConnectionError, Closed)):
            alone.connect()
        alone.close()
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        client = Secure(server, context)
        assert client.connect()["ok"]
        emits = [frame("EMIT", {"streamName": "orders.eu", "eventType": "t", "event": {"n": n}}) for n in range(200)]
        client.send(*emits, frame("EMIT", {"streamName": "stock", "eventType": "t", "event": {}}))
        assert [client.receive()[1]["offset"] for _ in emits] == list(range(200))
        assert client.receive()[1]["errCode"] == "forbidden"
        client.send(frame("HELLO"), *emits)
        assert client.receive()[1]["errCode"] == "unknown_frame"
        client.close()


def serve_in_vain(tmp_path: Path, *options: str) -> str:
    command = [sys.executable, "-m", "headwater.cli", "serve", str(tmp_path / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_network_is_not_served_without_authentication(tmp_path: Path) -> None:
    told = serve_in_vain(tmp_path, "--http", "127.0.0.1:0", "--tcp", "0.0.0.0:0")
    assert re.fullmatch(
        r"error: 0\.0\.0\.0 would listen on the network without authentication — give --auth FILE .*--insecure.*\n",
        told,
    )


def test_a_port_that_is_taken_is_told_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = serve_in_vain(tmp_path, "--http", "127.0.0.1:0", "--tcp", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "cannot be listened on" in told
    assert "--tcp HOST:PORT, or --tcp none" in told


def test_nothing_is_spoken_over_tcp_where_that_is_not_wanted(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--tcp", "none") as server:
        assert not server.tcp_url
        assert http.get(f"{server.url}/topics").json() == []

"""HTTP/1.1 as it is on the wire: over raw connections, with what no well-behaved client sends."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from headwater.server.http.errors import STATUS_BY_CODE, STATUS_BY_KIND
from headwater.server.http.message import Response, head
from tests.log.unsynced import open_unsynced
from tests.server.serving import Answer, Server, answers, serving, until_closed

HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"
POST = b"POST /topic/orders/items HTTP/1.1\r\n"
CHUNKED = POST + HOST + b"Transfer-Encoding: chunked\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        hw.create("orders")
    return server_path


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with little patience."""
    limits = {"header_s": 0.5, "body_idle_s": 0.5, "idle_s": 1.0, "connections_max": 4, "body_bytes_max": 4096}
    with serving(tmp_path_factory.mktemp("strict") / "data", limits=limits) as running:
        running.http.put("/topic/orders").raise_for_status()
        yield running


@contextmanager
def appended(server: Server, count: int) -> Iterator[None]:
    """Whether so many events are appended within."""
    before = _end(server)
    yield
    assert _end(server) - before == count


def _end(server: Server) -> int:
    end: int = server.http.get("/topic/orders").json()["partitions"][0]["end"]
    return end


def only(found: list[Answer]) -> Answer:
    (answer,) = found
    return answer


@pytest.mark.parametrize(
    "request_",
    [
        POST + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        POST + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        POST + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        POST + HOST + b"Content-Length: 3, 3\r\n\r\nabc",
        POST + HOST + b"Content-Length: +3\r\n\r\nabc",
        POST + HOST + b"Content-Length: -3\r\n\r\nabc",
        POST + HOST + b"Content-Length: 0x3\r\n\r\nabc",
        POST + HOST + b"Content-Length: 99999999999999999999\r\n\r\nabc",
        POST + HOST + b"Content-Length: \r\n\r\nabc",
        POST + HOST + b"Content-Length : 3\r\n\r\nabc",
        POST + HOST + b"Transfer-Encoding: gzip\r\n\r\nabc",
        POST + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding : chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"\r\n0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"\r\n-3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"\r\n3\r\nabcXX0\r\n\r\n",
        CHUNKED + b"\r\n3\nabc\n0\n\n",
        CHUNKED + b"\r\n3\r\nabc\r\ngarbage\r\n",
        POST + b"Content-Length: 3\r\n\r\nabc",  # no Host
        POST + HOST + HOST + b"Content-Length: 3\r\n\r\nabc",
        POST + HOST + b"Content-Type: text/plain\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\nabc",
        POST + HOST + b"X: a\r\n b\r\nContent-Length: 3\r\n\r\nabc",
        POST + HOST + b"X: a\0b\r\nContent-Length: 3\r\n\r\nabc",
        POST + HOST + b"X: a\rb\r\nContent-Length: 3\r\n\r\nabc",
        POST.replace(b"\r", b"") + b"Host: localhost\nContent-Length: 3\n\nabc",
        POST.replace(b"1.1", b"9.9") + b"Content-Length: 3\r\n\r\nabc",
        b"GET /health\r\n\r\n",
        b"BREW /health HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /hea lth HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"\0\1\2 garbage\r\n\r\n",
    ],
)
def test_what_is_not_clearly_one_request_is_refused_and_nothing_after_it_is_read(
    server: Server, request_: bytes
) -> None:
    with appended(server, 0):
        answer = only(server.raw(request_ + HEALTH + b"\r\n"))
    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert json.loads(answer.body)["code"] == "bad_request"


def test_trailers_are_no_headers(server: Server) -> None:
    trailers = b'Headwater-Meta: {"from": "a trailer"}\r\nContent-Type: text/plain\r\nAuthorization: Bearer x\r\n'
    sent = CHUNKED + CLOSE + b"\r\n3\r\nabc\r\n0\r\n" + trailers + b"\r\n"
    with appended(server, 1):
        assert only(server.raw(sent)).status == 200
    lines = server.http.get("/topic/orders/items", headers={"Accept": "application/x-ndjson"}).text
    last = json.loads(lines.splitlines()[-1])
    assert (last["content"], last["meta"]) == ("bytes", {})


def test_pipelined_requests_are_answered_in_their_order(server: Server) -> None:
    append = POST + HOST + b"Content-Length: 3\r\n\r\nabc"
    missing = b"POST /topic/missing/items HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"
    version = b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n"
    end = _end(server)
    found = server.raw((append + version + missing + append) * 20 + HEALTH + CLOSE + b"\r\n")
    assert [answer.status for answer in found] == [200, 200, 404, 200] * 20 + [200]
    ids = [int(answer.body) for answer in found[:-1] if answer.body.isdigit()]
    assert ids == list(range(end, end + 40))


@pytest.mark.parametrize("count", [2000, 5000])
def test_any_number_of_requests_in_one_write_are_answered_in_their_order(server: Server, count: int) -> None:
    before = _end(server)
    sent = b"".join(POST + HOST + b"Content-Length: %d\r\n\r\n%d" % (len(str(n)), n) for n in range(count))
    with server.connect() as connection:
        writer = threading.Thread(target=connection.sendall, args=(sent + HEALTH + CLOSE + b"\r\n",))
        writer.start()
        found = answers(until_closed(connection))
        writer.join()
    assert [answer.status for answer in found] == [200] * (count + 1)
    assert [int(answer.body) for answer in found[:-1]] == list(range(before, before + count))


def test_requests_before_one_that_cannot_be_parsed_are_answered_and_it_is_refused(server: Server) -> None:
    with appended(server, 500):
        found = server.raw(
            (POST + HOST + b"Content-Length: 3\r\n\r\nabc") * 500 + b"garbage\r\n\r\n" + HEALTH + b"\r\n"
        )
    assert [answer.status for answer in found] == [200] * 500 + [400]
    assert [answer.headers.get("connection") for answer in found] == [None] * 500 + ["close"]


def test_requests_before_the_end_of_what_a_client_sends_are_answered(server: Server) -> None:
    post = POST + HOST + b"Content-Length: 3\r\n\r\nabc"
    with appended(server, 200):
        found = server.raw(post + (HEALTH + b"\r\n" + post) * 199, half_close=True)
    assert [answer.status for answer in found] == [200] * 399


def test_an_unread_body_without_a_length_is_read_over_for_a_while(server: Server) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    begun = b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
    with server.connect() as connection:
        connection.sendall(begun)
        first = connection.recv(1 << 16)
        connection.sendall(chunk * 100 + b"0\r\n\r\n" + HEALTH + CLOSE + b"\r\n")
        assert [answer.status for answer in answers(first + until_closed(connection))] == [404, 200]
    with server.connect() as connection:
        connection.sendall(begun)
        first = connection.recv(1 << 16)
        connection.sendall(chunk * 3000)  # and there would be more
        assert only(answers(first + connection.recv(1 << 16))).status == 404


def test_a_request_may_arrive_byte_by_byte(server: Server) -> None:
    sent = POST + HOST + CLOSE + b"Content-Length: 3\r\n\r\nabc"
    with appended(server, 1):
        assert only(server.raw(*(sent[at : at + 1] for at in range(len(sent))))).status == 200


def test_a_body_apart_from_its_headers_does_not_count_as_headers_of_the_next(server: Server) -> None:
    large = 60_000
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(POST + HOST + b"Content-Length: %d\r\n\r\n" % large)
        time.sleep(0.05)  # so that the parts are received apart
        connection.sendall(b"x" * large)
        first = connection.recv(1 << 16)
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        time.sleep(0.05)
        connection.sendall(HOST + CLOSE + b"\r\n")
        assert [answer.status for answer in answers(first + until_closed(connection))] == [200, 200]


def test_the_rest_of_a_refused_body_is_read_over_and_the_connection_goes_on(server: Server) -> None:
    large = 200_000
    with server.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % large)
        connection.sendall(b"x" * 1000)
        first = connection.recv(1 << 16)
        for _ in range(199):
            connection.sendall(b"x" * 1000)
        connection.sendall(HEALTH + CLOSE + b"\r\n")
        assert [answer.status for answer in answers(first + until_closed(connection))] == [404, 200]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        HEALTH + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
        HEALTH + b"".join(b"X%d: a\r\n" % number for number in range(10_000)) + b"\r\n",
    ],
)
def test_large_headers_are_refused(server: Server, sent: bytes) -> None:
    assert only(server.raw(sent)).status == 431


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        HEALTH + b"X: ",
        HEALTH + b"X",
        CHUNKED + b"\r\n3\r\nabc\r\n0\r\nTrailer: ",
        CHUNKED + b"\r\n3;",
    ],
)
def test_what_never_ends_is_refused_before_it_takes_memory(server: Server, begin: bytes) -> None:
    before = server.anonymous_bytes()
    with server.connect() as connection:
        connection.sendall(begin)
        with suppress(ConnectionError):  # it is read over for a while, so that the client can read why it is refused
            for _ in range(500):
                connection.sendall(b"a" * 100_000)
        assert only(answers(until_closed(connection))).status in (400, 431)
    assert server.anonymous_bytes() - before < 20e6


@pytest.mark.parametrize("burst", [500, 100_000])
def test_a_client_that_asks_and_does_not_read_is_not_served_on(server: Server, burst: int) -> None:
    """It would else fill the memory with answers, or keep the others waiting."""
    before = server.anonymous_bytes()
    with server.connect() as connection:
        connection.settimeout(1)
        with suppress(TimeoutError, ConnectionError):
            for _ in range(100_000 // burst):
                connection.sendall((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * burst)
        begun = time.monotonic()
        assert server.http.get("/health").status_code == 200
        assert time.monotonic() - begun < 1
        assert server.anonymous_bytes() - before < 30e6


def test_a_client_that_has_sent_all_and_says_so_still_gets_its_answer(server: Server) -> None:
    with appended(server, 1):
        answer = only(server.raw(POST + HOST + b"Content-Length: 3\r\n\r\nabc", half_close=True))
    assert answer.status == 200


def test_a_body_that_breaks_off_appends_nothing(server: Server) -> None:
    with appended(server, 0):
        server.raw(POST + HOST + b"Content-Length: 300\r\n\r\nabc", half_close=True)
        server.raw(POST + HOST + b"Content-Length: 3000000\r\n\r\n" + b"x" * 2_000_000, half_close=True)
        server.raw(CHUNKED + b"\r\n3\r\nabc\r\n", half_close=True)


def test_a_body_is_asked_for_when_the_client_waits_for_that(server: Server) -> None:
    with appended(server, 1), server.connect() as connection:
        connection.sendall(POST + HOST + CLOSE + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert only(answers(until_closed(connection))).status == 200


def test_a_body_that_cannot_be_used_is_not_asked_for(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert only(answers(until_closed(connection))).status == 404


def test_what_cannot_be_expected_is_refused(server: Server) -> None:
    sent = POST + HOST + CLOSE + b"Content-Length: 3\r\nExpect: tea\r\n\r\nabc"
    with appended(server, 0):
        assert only(server.raw(sent)).status == 417


def test_curl_with_a_large_upload_waits_for_the_word_and_sends_on(server: Server, tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(b"x" * 3_000_000)
    command = ["curl", "-sS", "-H", "Expect: 100-continue", "-H", "Content-Type: application/octet-stream"]
    command += ["--data-binary", f"@{upload}", f"{server.url}/topic/orders/items"]
    with appended(server, 1):
        answer = subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout
    assert answer.isdigit()


@pytest.mark.parametrize("path", ["/health", "/topic/orders", "/openapi.json", "/topic/missing"])
def test_head_has_the_headers_of_get_and_no_body(server: Server, path: str) -> None:
    got, head = server.http.get(path), server.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert dict(head.headers) == dict(got.headers)


def test_options_tells_what_may_be_asked(server: Server) -> None:
    answer = server.http.options("/topic/orders")
    assert (answer.status_code, answer.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PUT")
    assert server.http.options("/nowhere").status_code == 404


def test_http_1_0_is_answered_and_closed_unless_it_asks_otherwise(server: Server) -> None:
    assert only(server.raw(b"GET /health HTTP/1.0\r\n\r\n")).status == 200
    kept = b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert [answer.status for answer in server.raw(kept + b"GET /health HTTP/1.0\r\n\r\n")] == [200, 200]


KEEP = b"Connection: Keep-Alive\r\n"


def test_http_1_0_is_told_that_its_connection_is_kept_and_only_with_a_length(server: Server) -> None:
    old = POST.replace(b"1.1", b"1.0") + HOST
    post = old + KEEP + b"Content-Length: 3\r\n\r\nabc"
    get = b"GET /health HTTP/1.0\r\n"
    with appended(server, 3):
        found = server.raw(
            post * 3 + get + KEEP + b"\r\n" + b"GET /nowhere HTTP/1.0\r\n" + KEEP + b"\r\n" + get + b"\r\n"
        )
    assert [answer.status for answer in found] == [200] * 4 + [404, 200]
    assert [answer.headers["connection"] for answer in found] == ["keep-alive"] * 5 + ["close"]
    assert all("content-length" in answer.headers for answer in found)
    for without in (b"GET /topic/orders/items", b"OPTIONS /topics", b"HEAD /topic/orders/items"):
        with server.connect() as connection:
            connection.sendall(without + b" HTTP/1.0\r\n" + KEEP + b"\r\n")
            head = until_closed(connection).partition(b"\r\n\r\n")[0].lower()
        assert b"connection: close" in head
        assert b"transfer-encoding" not in head


def test_http_1_1_is_not_told_what_it_takes_for_granted(server: Server) -> None:
    found = server.raw(HEALTH + KEEP + b"\r\n" + HEALTH + CLOSE + b"\r\n")
    assert [answer.headers.get("connection") for answer in found] == [None, "close"]


@pytest.mark.skipif(shutil.which("ab") is None, reason="ab is not installed")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ab_keeps_its_connections(server: Server, tmp_path: Path, method: str) -> None:
    command = ["ab", "-k", "-q", "-s", "20", "-n", "200", "-c", "4"]
    if method == "POST":
        (tmp_path / "body").write_bytes(b"from ab")
        command += ["-p", str(tmp_path / "body"), "-T", "text/plain", f"{server.url}/topic/orders/items"]
    else:
        command += [f"{server.url}/health"]
    with appended(server, 200 if method == "POST" else 0):
        told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout
    assert re.search(r"Complete requests:\s+200\n", told)
    assert re.search(r"Keep-Alive requests:\s+200\n", told)
    assert not re.search(r"Non-2xx", told)


@pytest.mark.parametrize(
    "path",
    [
        "/topic/orders/items?wait_for_more=true",
        "/topic/orders/items?wait_for_more=true&format=ndjson",
        "/topic/orders/items?format=sse",
        "/topic/orders/items?format=sse&max_items=1",
        "/topic/orders/items",
        "/topic/orders/items?format=arrow",
        "/topic/orders/items?format=batches&wait_for_more=true",
        "/api/events",
    ],
)
def test_proxies_are_asked_not_to_hold_back_what_streams(server: Server, path: str) -> None:
    server.http.post("/topic/orders/items", content=b"x")
    with server.http.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers.get_list("x-accel-buffering") == ["no"]
    assert "x-accel-buffering" not in server.http.get("/health").headers


def test_a_slash_at_the_end_means_nothing(server: Server) -> None:
    assert server.http.put("/topic/slashed/").json() is True
    assert server.http.post("/topic/slashed/items/?type=t", content=b"one").json() == 0
    assert server.http.post("/topic/slashed/items", content=b"two").json() == 1
    assert server.http.get("/topics/").json() == server.http.get("/topics").json()
    assert server.http.get("/topic/slashed/").json()["name"] == "slashed"
    assert server.http.get("/topic/slashed%2F/").status_code == 404  # a name of its own
    assert server.http.get("/topics//").status_code == 404
    with appended(server, 1):  # whole requests that were seen before mean the same
        sent = POST.replace(b"/items", b"/items/") + HOST + CLOSE + b"Content-Length: 3\r\n\r\nabc"
        assert only(server.raw(sent)).status == 200


def test_a_whole_address_is_understood(server: Server) -> None:
    sent = b"GET http://localhost/health?x=1 HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
    assert only(server.raw(sent)).status == 400  # there is no parameter x
    assert only(server.raw(sent.replace(b"?x=1", b""))).status == 200


def test_another_protocol_is_not_begun(server: Server) -> None:
    sent = HEALTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    answer = only(server.raw(sent))
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert only(server.raw(b"CONNECT example.org:443 HTTP/1.1\r\n" + HOST + b"\r\n")).status == 400


@pytest.mark.parametrize(
    ("encoded", "name"),
    [
        (b"..", ".."),
        (b".", "."),
        (b"..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        (b"a%00b", "a\0b"),
        (b"a%0d%0aSet-Cookie:x", "a\r\nSet-Cookie:x"),
        (b"%E2%82%AC", "€"),
        (b"topic.json", "topic.json"),
        (b"%2e%2e%5c", "..\\"),
    ],
)
def test_a_name_is_never_a_path(server: Server, encoded: bytes, name: str) -> None:
    put = b"PUT /topic/" + encoded + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
    assert only(server.raw(put)).body == b"true"
    assert name in server.http.get("/topics").json()
    got = only(server.raw(put.replace(b"PUT", b"GET")))
    assert json.loads(got.body)["name"] == name
    made = {path for path in (server.path / "topics").iterdir() if not path.name.startswith(".")}
    assert all((path / "topic.json").is_file() for path in made)
    assert sorted(path.name for path in server.path.parent.iterdir()) == ["data"]


@pytest.mark.parametrize("path", [b"/topic/%ff", b"/topic/%c3%28", b"/topic/%ed%a0%80"])
def test_a_name_must_be_utf_8(server: Server, path: bytes) -> None:
    assert only(server.raw(b"PUT " + path + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")).status == 400


def test_a_slow_head_is_given_up(strict: Server) -> None:
    assert only(strict.raw(b"GET /health HTTP/1.1\r\nHost: ")).status == 408


def test_a_slow_head_is_given_up_however_it_trickles(strict: Server) -> None:
    with strict.connect() as connection:
        begun = time.monotonic()
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        connection.settimeout(0.2)
        received = b""
        while not received and time.monotonic() - begun < 15:
            try:
                received = connection.recv(1000)
            except TimeoutError:
                connection.sendall(b"X: y\r\n")
    assert b" 408 " in received


@pytest.mark.parametrize("length", [10, 3_000_000])
def test_a_body_that_stands_still_is_given_up(strict: Server, length: int) -> None:
    with appended(strict, 0):
        found = strict.raw(POST + HOST + b"Content-Length: %d\r\n\r\nabc" % length)
    assert only(found).status == 408


def test_a_connection_that_asks_nothing_is_closed(strict: Server) -> None:
    assert strict.raw() == []
    assert only(strict.raw(HEALTH + b"\r\n")).status == 200  # and closed after a while


def test_too_many_connections_are_refused_and_the_others_go_on(strict: Server) -> None:
    crowd = [strict.connect() for _ in range(4)]
    try:
        refused = only(strict.raw())
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        crowd[0].sendall(HEALTH + b"\r\n")
        assert b" 200 " in crowd[0].recv(1000)
    finally:
        for connection in crowd:
            connection.close()
    deadline = time.monotonic() + 10
    while only(strict.raw(HEALTH + CLOSE + b"\r\n")).status == 503:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("status", sorted({*STATUS_BY_CODE.values(), *STATUS_BY_KIND.values(), 200, 204}))
def test_a_status_has_the_phrase_of_the_standard_library(status: int) -> None:
    line = head(Response(status), length=0, close=False).partition(b"\r\n")[0]
    assert line == f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()

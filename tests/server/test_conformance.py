"""Every status that docs/HTTP.md tells of is the answer to a real request, with the error that it tells of."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from headwater.format import settings
from headwater.format.settings import TopicRecord
from tests.server import people
from tests.server.process import served
from tests.server.serving import Server, serving

DOCS = Path(__file__).parent.parent.parent / "docs"
LIMITS = {"header_s": 0.5, "body_bytes_max": 2000, "connections_max": 10}
LINES = {"Content-Type": "application/x-ndjson"}
HEAD = b"POST /topic/orders/items HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


class Place(NamedTuple):
    """Two servers, one of them with users, and what they know."""

    open: Server
    guarded: httpx.Client
    reader: str  # the token of somebody who may only read


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("served")
    users = path / "users.json"
    token = people.add(users, "reader", "read:*", token=True, password=people.SECRET)
    with serving(path / "open", limits=LIMITS) as server, served(path / "guarded", "--auth", str(users)) as guarded:
        prepare(server)
        with httpx.Client(base_url=guarded.url, timeout=20) as client:
            yield Place(server, client, token)


def prepare(server: Server) -> None:
    """Topics: one that is sound, and one each that lost its beginning, is damaged, and is of a version to come."""
    http = server.http
    for name in ("orders", "gone", "damaged", "foreign"):
        http.put(f"/topic/{name}", params={"segment_bytes": 4096}).raise_for_status()
        for _ in range(3):
            http.post(f"/topic/{name}/items", content=b"x" * 3000, params={"key": "k"}).raise_for_status()
    deleted = http.post("/topic/gone/retain", json={"before": 2}).json()
    assert deleted
    topics = server.path / "topics"
    (topics / "damaged" / "topic.json").write_bytes(b"{}")
    topic = TopicRecord(format=2, name="foreign", uuid="b7f2a3c4-0000-4000-8000-000000000000", partitions=1)
    (topics / "foreign" / "topic.json").write_bytes(settings.encode(topic))


def basic(secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"reader:{secret}".encode()).decode()}


def too_many(server: Server) -> tuple[int, bytes]:
    crowd = [server.connect() for _ in range(LIMITS["connections_max"])]  # type: ignore[call-overload]
    try:
        (answer,) = server.raw()
    finally:
        for connection in crowd:
            connection.close()
    return answer.status, answer.body


def wrong_passwords(client: httpx.Client) -> httpx.Response:
    """The answer to one wrong password too many."""
    answer = client.get("/topics", headers=basic("not the secret"))
    for number in range(20):
        if answer.status_code == 401:
            answer = client.get("/topics", headers=basic(f"not the secret, {number}"))
    return answer


def raw(place: Place, sent: bytes) -> tuple[int, bytes]:
    (answer,) = place.open.raw(sent)
    return answer.status, answer.body


Ask = Callable[[Place], httpx.Response | tuple[int, bytes]]
CASES: list[tuple[int, str, str, Ask]] = [
    (400, "Invalid", "bad_position", lambda place: place.open.http.get("/topic/orders/items?from=x")),
    (400, "Invalid", "bad_parameter", lambda place: place.open.http.get("/topics?form=x")),
    (400, "Invalid", "bad_request", lambda place: raw(place, b"not HTTP\r\n\r\n")),
    (401, "Denied", "unauthenticated", lambda place: place.guarded.get("/topics")),
    (401, "Denied", "unauthenticated", lambda place: place.guarded.get("/topics", headers=basic("wrong"))),
    (403, "Denied", "forbidden", lambda place: place.guarded.put("/topic/x", headers=bearer(place.reader))),
    (403, "Denied", "forbidden", lambda place: place.open.http.get("/topics", headers={"Origin": "http://evil"})),
    (403, "Denied", "forbidden", lambda place: place.open.http.get("/topics", headers={"Host": "evil.example"})),
    (404, "NotFound", "topic_not_found", lambda place: place.open.http.post("/topic/none/items", content=b"x")),
    (404, "NotFound", "topic_not_found", lambda place: place.open.http.get("/topic/none/items")),
    (404, "NotFound", "no_such_route", lambda place: place.open.http.get("/nowhere")),
    (404, "NotFound", "consumer_not_found", lambda place: place.open.http.delete("/consumer/none/orders")),
    (405, "Invalid", "method_not_allowed", lambda place: place.open.http.patch("/topic/orders")),
    (
        406,
        "Invalid",
        "not_acceptable",
        lambda place: place.open.http.get("/topic/orders/items", headers={"Accept": "text/html"}),
    ),
    (408, "Invalid", "timeout", lambda place: raw(place, HEAD)),
    (
        409,
        "Conflict",
        "version_conflict",
        lambda place: place.open.http.post("/topic/orders/items?key=k&expected_version=99", content=b"x"),
    ),
    (409, "Fenced", "old_epoch", lambda place: fenced(place.open.http)),
    (410, "NotFound", "offset_gone", lambda place: place.open.http.get("/topic/gone/items?from=0")),
    (
        413,
        "TooLarge",
        "too_large",
        lambda place: place.open.http.post("/topic/orders/items", content=b"1\n" * 3000, headers=LINES),
    ),
    (413, "TooLarge", "too_large", lambda place: place.open.http.put("/topic/" + "x" * 2000)),
    (
        415,
        "Invalid",
        "unsupported_media_type",
        lambda place: place.open.http.post("/topic/orders/items", content=b"x", headers={"Content-Encoding": "gzip"}),
    ),
    (
        417,
        "Invalid",
        "expectation_failed",
        lambda place: raw(place, HEAD + b"Expect: tea\r\nContent-Length: 1\r\n\r\nx"),
    ),
    (429, "Unavailable", "too_many_failures", lambda place: wrong_passwords(place.guarded)),
    (431, "TooLarge", "headers_too_large", lambda place: raw(place, HEAD + b"X: " + b"y" * 40_000 + b"\r\n\r\n")),
    (500, "Corrupt", "corrupt", lambda place: place.open.http.get("/topic/damaged")),
    (501, "Unsupported", "unsupported", lambda place: place.open.http.get("/topic/foreign")),
    (503, "Unavailable", "overloaded", lambda place: too_many(place.open)),
]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def fenced(http: httpx.Client) -> httpx.Response:
    """The answer to a producer that another one has taken over from."""

    def append(epoch: str) -> httpx.Response:
        told = {"Headwater-Producer": "p", "Headwater-Epoch": epoch, "Headwater-Seq": "1"}
        return http.post("/topic/orders/items", content=b"x", headers=told)

    append("2").raise_for_status()
    return append("1")


@pytest.mark.parametrize(("status", "kind", "code", "ask"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_a_status_of_the_docs_is_answered(servers: Place, status: int, kind: str, code: str, ask: Ask) -> None:
    answer = ask(servers)
    found, body = answer if isinstance(answer, tuple) else (answer.status_code, answer.content)
    assert found == status, body
    error = json.loads(body)
    assert set(error) == {"kind", "code", "message", "hint", "facts"}
    assert (error["kind"], error["code"]) == (kind, code)
    assert error["message"]


def test_there_is_a_case_for_every_status_of_the_docs() -> None:
    page = (DOCS / "HTTP.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page[page.index("## Errors") :], re.MULTILINE)
    assert {int(status) for row in rows for status in row.split(", ")} == {case[0] for case in CASES}


@pytest.mark.parametrize(("status", "header"), [(401, "www-authenticate"), (405, "allow"), (503, "retry-after")])
def test_an_error_says_what_to_do_in_headers_too(servers: Place, status: int, header: str) -> None:
    if status == 503:
        crowd = [servers.open.connect() for _ in range(10)]
        headers = servers.open.raw()[0].headers
        for connection in crowd:
            connection.close()
    else:
        headers = dict(
            (servers.guarded.get("/topics") if status == 401 else servers.open.http.patch("/topics")).headers
        )
    assert header in headers


def test_curl_sees_the_same(servers: Place, tmp_path: Path) -> None:
    def curl(*options: str) -> tuple[int, Any]:
        where = tmp_path / "body"
        command = ["curl", "-sS", "-o", str(where), "-w", "%{http_code}", *options]
        status = subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout
        return int(status), json.loads(where.read_bytes())

    url = servers.open.url
    assert curl("-X", "PUT", f"{url}/topic/curled") == (200, True)
    assert curl("-X", "PUT", f"{url}/topic/curled") == (200, False)
    assert curl(f"{url}/topic/curled/items", "-d", "any bytes") == (200, 0)
    assert curl(f"{url}/topic/curled/items", "-d", "more", "-H", "Transfer-Encoding: chunked") == (200, 1)
    status, error = curl(f"{url}/topic/none/items", "-d", "any bytes")
    assert (status, error["code"]) == (404, "topic_not_found")
    assert curl("-X", "DELETE", f"{url}/topic/curled") == (200, True)


def test_answers_are_for_nobody_elses_eyes(servers: Place) -> None:
    for answer in (
        servers.open.http.get("/topics"),
        servers.open.http.get("/nowhere"),
        servers.open.http.post("/topic/orders/items", content=b"x"),
        servers.guarded.get("/topics"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"

"""JSON that nobody should send, at every route that takes any: the client's mistake each time, never the server's."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest

from headwater.server.http.routes import ROUTES
from tests.log.unsynced import open_unsynced
from tests.server.serving import Server
from tests.server.test_binders import fill

DEEP = 200_000
BODIES = {
    "arrays": b"[" * DEEP,
    "closed arrays": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "an array of deep arrays": b'[{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}]",
    "deep in a known field": b'{"appends":[{"topic":"t","data":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
    "a deep match": b'{"match":' + b'{"$and":[' * 20_000 + b"]}" * 20_000 + b"}",
    "deep data": b'{"id":"1","source":"s","type":"t","specversion":"1.0","data":'
    + b"[" * 50_000
    + b"]" * 50_000
    + b"}",
    "not UTF-8": b'"\xff\xfe"',
    "a name that is not UTF-8": b'{"\xff": 1}',
    "a name in an array that is not UTF-8": b'[{"\xff": 1}]',
    "a value that is not UTF-8": b'{"id":"\xff","source":"s","type":"t","specversion":"1.0"}',
    "half a character": b'{"a": "\\ud800"}',
    "a surrogate as bytes": b'{"a": "\xed\xa0\x80"}',
    "a number of many digits": b"9" * 10_000,
    "a field of many digits": b'{"before": ' + b"9" * 10_000 + b', "at": ' + b"9" * 10_000 + b"}",
    "a large exponent": b'{"before": 1e999999, "at": 1e999999}',
    "the same name twice": b'{"member": 1, "member": "x", "at": {}, "at": [], "field": 1, "field": 2}',
    "cut short": b'{"a": [1, {"b": "',
    "nothing": b"\x00",
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
}
CLOUD = ("application/cloudevents+json", "application/cloudevents-batch+json")
MEDIA = ("application/json", "application/x-ndjson", *CLOUD)
PATTERNS = sorted(route.pattern for route in ROUTES if route.method == "POST" and route.body is not None)
SOUND = {"a number of many digits", "a field of many digits", "a large exponent", "the same name twice"}  # as data
OTHERS = {"/api/events"}  # to which it is mere text


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    fill(server_path, ann=10)
    with open_unsynced(server_path) as hw:
        hw.create("t")
    return server_path


def path_of(pattern: str) -> str:
    for name, value in (("{name}", "t"), ("{topic}", "t"), ("{binder}", "baskets"), ("{query}", "top")):
        pattern = pattern.replace(name, value)
    return pattern + ("?type=x" if pattern == "/api/events" else "")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_used_is_400(server: Server, pattern: str, name: str) -> None:
    body = BODIES[name]
    for media in MEDIA if pattern.endswith("/items") else MEDIA[:1]:
        for query in ("", "?events=true", "?one=true") if pattern == "/topic/{name}/items" else ("",):
            target = path_of(pattern) + query
            answer = server.http.post(target, content=body, headers={"Content-Type": media})
            if pattern in OTHERS or (name in SOUND and pattern == "/topic/{name}/items"):
                assert answer.status_code < 500, (media, query, answer.text)
            else:
                assert 400 <= answer.status_code < 500, (media, query, answer.text)


@pytest.mark.parametrize("media", CLOUD)
@pytest.mark.parametrize("name", ["arrays", "closed arrays", "not UTF-8", "a name in an array that is not UTF-8"])
def test_a_cloud_event_that_is_nested_too_deep_or_no_text_is_refused(server: Server, media: str, name: str) -> None:
    answer = server.http.post("/topic/t/items", content=BODIES[name], headers={"Content-Type": media})
    assert (answer.status_code, answer.json()["kind"], answer.json()["code"]) == (400, "Invalid", "bad_body")


@pytest.mark.parametrize("pattern", ["/topic/{name}/retain", "/replication/batches", "/transaction"])
def test_a_name_that_is_not_utf8_is_refused(server: Server, pattern: str) -> None:
    answer = server.http.post(path_of(pattern), content=b'{"\xff": 1}')
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_body")


@pytest.mark.parametrize("name", sorted(BODIES.keys() - {"the same name twice"}))  # which is a match
def test_headers_and_parameters_with_it_are_400(server: Server, name: str) -> None:
    said = BODIES[name][:20_000]
    match = quote_from_bytes(said)
    for method, path in (("GET", "/topic/t/items"), ("POST", "/consumer/c/t/items")):
        answer = server.http.request(method, f"{path}?match={match}"[:30_000])
        assert answer.status_code in (400, 431), answer.text
    if b"\0" in said or not said.isascii():
        return
    answer = server.http.post("/topic/t/items", content=b"x", headers={"Headwater-Meta": said.decode()})
    assert answer.status_code in (200, 400, 413, 431), answer.text


def test_the_server_still_works(server: Server) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}

"""The event store: topics and items over HTTP, as curl and any client see them."""

from __future__ import annotations

import json
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

import headwater
from tests.server.process import ServerProcess, http
from tests.waiting import wait_for

NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture
def topic_url(process: ServerProcess) -> str:
    """The address of a new topic."""
    url = f"{process.url}/topic/{uuid4()}"
    assert http.put(url).json() is True
    return url


def append(topic: str, *data: bytes, **query: Any) -> list[int]:
    return [http.post(f"{topic}/items", content=each, params=query).json() for each in data]


def items(data: bytes) -> list[tuple[int, bytes]]:
    """Items as the protocol has them."""
    found, at = [], 0
    while at < len(data):
        id, length = struct.unpack_from(">QI", data, at)
        found.append((id, data[at + 12 : at + 12 + length]))
        at += 12 + length
    assert at == len(data)
    return found


def read(topic: str, **query: Any) -> list[tuple[int, bytes]]:
    answer = http.get(f"{topic}/items", params=query)
    assert answer.status_code == 200, answer.text
    return items(answer.content)


def curl(*arguments: str) -> bytes:
    return subprocess.run(["curl", "-sS", *arguments], capture_output=True, check=True, timeout=30).stdout


# Topics


def test_a_topic_is_made_once(process: ServerProcess) -> None:
    url = f"{process.url}/topic/once"
    assert curl("-X", "PUT", url) == b"true"
    assert curl("-X", "PUT", url) == b"false"
    assert "once" in http.get(f"{process.url}/topics").json()
    assert http.delete(url).json() is True
    assert "once" not in http.get(f"{process.url}/topics").json()
    assert http.delete(url).status_code == 404
    assert http.get(url).status_code == 404


@pytest.mark.parametrize("name", ["../../etc", "a/b", "tür und tor", ".", "..", "a b+c%", "x" * 1024, "\x01\n", "?#"])
def test_a_name_is_never_a_path(process: ServerProcess, name: str) -> None:
    from urllib.parse import quote

    url = f"{process.url}/topic/{quote(name, safe='')}"
    with httpx.Client() as client:  # which would follow dots in a path by itself
        request = client.build_request("PUT", url)
        request.url = httpx.URL(url).copy_with(raw_path=b"/topic/" + quote(name, safe="").replace(".", "%2E").encode())
        assert client.send(request).json() is True
    assert name in http.get(f"{process.url}/topics").json()
    assert {path.name for path in process.path.parent.iterdir()} == {"data"}


def test_a_topic_tells_what_it_is(topic_url: str) -> None:
    append(topic_url, b"one", b"two")
    told = http.get(topic_url).json()
    assert (told["partitions"][0]["start"], told["partitions"][0]["end"]) == (0, 2)


def test_settings_are_kept(process: ServerProcess) -> None:
    url = f"{process.url}/topic/settled"
    http.put(url, params={"partitions": 3, "segment_bytes": 1_000_000, "retention_segments": 4, "compression": "zstd"})
    told = http.get(url).json()
    assert len(told["partitions"]) == 3
    assert told["settings"]["segment_bytes"] == 1_000_000
    assert told["settings"]["retention_segments"] == 4
    assert http.put(url, params={"partitions": 2}).status_code == 400


# Appending


def test_an_item_is_answered_with_its_id(topic_url: str) -> None:
    assert [curl("-X", "POST", f"{topic_url}/items", "-d", f"item {number}") for number in range(3)] == [
        b"0",
        b"1",
        b"2",
    ]
    assert read(topic_url) == [(0, b"item 0"), (1, b"item 1"), (2, b"item 2")]


def test_the_answer_tells_where_the_event_is(process: ServerProcess, topic_url: str) -> None:
    for query in ({}, {"expected_version": "none", "key": "k"}):  # the quick way, and the other
        answer = http.post(f"{topic_url}/items", content=b"x", params=query)
        with headwater.open(process.path) as hw:
            (event,) = hw.read(topic_url.rpartition("/")[2], start=answer.json())
        assert answer.headers["headwater-id"] == str(event.id)
        assert answer.headers["headwater-partition"] == "0"
        assert answer.headers["headwater-durability"] == "fsync"
    assert http.post(f"{topic_url}/items?durability=os", content=b"x").headers["headwater-durability"] == "os"


def test_an_item_for_a_missing_topic_is_404_and_makes_none(process: ServerProcess) -> None:
    answer = http.post(f"{process.url}/topic/missing/items", content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (404, "topic_not_found")
    assert "missing" not in http.get(f"{process.url}/topics").json()


@pytest.mark.parametrize(
    ("media", "data", "content"),
    [
        ("application/octet-stream", b"\xff\x00", "bytes"),
        ("application/x-protobuf", b"\xff\x00", "bytes"),
        ("text/plain; charset=utf-8", "grüße".encode(), "text"),
        ("application/json", b'{"a": 1}', "json"),
        ("application/json", b'"text"', "json"),
        ("application/bson", b"\x05\x00\x00\x00\x00", "bson"),
    ],
)
def test_the_content_follows_from_the_content_type(topic_url: str, media: str, data: bytes, content: str) -> None:
    answer = http.post(f"{topic_url}/items", content=data, headers={"content-type": media})
    assert answer.json() == 0
    (line,) = http.get(f"{topic_url}/items", headers=NDJSON).text.splitlines()
    assert json.loads(line)["content"] == content
    assert read(topic_url) == [(0, data)]


@pytest.mark.parametrize(
    ("media", "data"),
    [
        ("text/plain", b"\xff"),
        ("application/json", b"{"),
        ("application/json", b""),
        ("application/json", b'[{"a":1},]'),
        ("application/x-ndjson", b'{"a":1}\n{\n'),
    ],
)
def test_what_is_not_what_it_says_is_refused(topic_url: str, media: str, data: bytes) -> None:
    assert http.post(f"{topic_url}/items", content=data, headers={"content-type": media}).status_code == 400
    assert read(topic_url) == []


def test_a_compressed_body_is_refused(topic_url: str) -> None:
    answer = http.post(f"{topic_url}/items", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


def test_type_key_and_meta_are_kept(topic_url: str) -> None:
    key = b"\xff/&=\x00"
    answer = http.post(
        f"{topic_url}/items?type=placed&key=%FF%2F%26%3D%00",
        content=b"x",
        headers={"headwater-meta": '{"by": "gr\\u00fc\\u00df"}'},
    )
    assert answer.json() == 0
    (line,) = http.get(f"{topic_url}/items", headers=NDJSON).text.splitlines()
    event = json.loads(line)
    assert event["type"] == "placed"
    assert event["meta"] == {"by": "grüß"}
    import base64

    assert base64.b64decode(event["key_base64"]) == key


def test_a_version_that_is_not_as_expected_is_a_conflict(topic_url: str) -> None:
    assert append(topic_url, b"a", key="k", expected_version="none") == [0]
    answer = http.post(f"{topic_url}/items?key=k&expected_version=none", content=b"b")
    assert (answer.status_code, answer.json()["facts"]["version"]) == (409, 0)
    assert append(topic_url, b"b", key="k", expected_version=0) == [1]
    assert http.get(f"{topic_url}/version?key=k").json() == 1
    assert http.get(f"{topic_url}/version?key=none").json() is None


def test_a_request_that_is_sent_again_appends_once(topic_url: str) -> None:
    headers = {"headwater-producer": "p", "headwater-epoch": "1", "headwater-seq": "7"}
    answers = [http.post(f"{topic_url}/items", content=b"a", headers=headers) for _ in range(3)]
    assert [answer.json() for answer in answers] == [0, 0, 0]
    assert len({answer.headers["headwater-id"] for answer in answers}) == 1
    many = {**headers, "headwater-seq": "8", "content-type": "application/x-ndjson"}
    first, again = (http.post(f"{topic_url}/items", content=b"1\n2\n", headers=many).json() for _ in range(2))
    assert first == again
    assert len(read(topic_url)) == 3
    old = http.post(f"{topic_url}/items", content=b"a", headers={**headers, "headwater-epoch": "0"})
    assert (old.status_code, old.json()["kind"]) == (409, "Fenced")
    assert http.post(f"{topic_url}/items", content=b"a", headers={"headwater-seq": "9"}).status_code == 400


def test_lines_are_events(topic_url: str) -> None:
    body = b'{"n":1}\n\n {"n": 2} \r\n3'
    answer = http.post(
        f"{topic_url}/items?type=t&key=k", content=body, headers={"content-type": "application/x-ndjson"}
    )
    assert answer.json()["count"] == 3
    assert read(topic_url) == [(0, b'{"n":1}'), (1, b'{"n": 2}'), (2, b"3")]
    events = [json.loads(line) for line in http.get(f"{topic_url}/items", headers=NDJSON).text.splitlines()]
    assert [(event["type"], event["key"]) for event in events] == [("t", "k")] * 3
    assert events[0]["id"] == answer.json()["runs"][0]["id"]


def test_what_was_read_can_be_appended_elsewhere(process: ServerProcess, topic_url: str) -> None:
    append(topic_url, b"\xff", type="raw", key="a")
    http.post(f"{topic_url}/items?type=doc", json={"a": [1, 2]})
    copy = f"{process.url}/topic/{uuid4()}"
    http.put(copy)
    read_first = http.get(f"{topic_url}/items", headers={"accept": "application/json"})
    for event in read_first.json():  # of one content each
        answer = http.post(f"{copy}/items?events=true", json=[event])
        assert answer.status_code == 200, answer.text
    assert read(copy) == read(topic_url)


def test_an_array_is_many_events_or_one(topic_url: str) -> None:
    assert http.post(f"{topic_url}/items", json=[1, {"a": 2}]).json()["count"] == 2
    assert http.post(f"{topic_url}/items?one=true", json=[1, 2]).json() == 2
    assert http.post(f"{topic_url}/items", json=[]).json()["count"] == 0
    assert [data for _, data in read(topic_url)] == [b"1", b'{"a":2}', b"[1,2]"]


def test_many_events_are_spread_over_partitions(process: ServerProcess) -> None:
    url = f"{process.url}/topic/{uuid4()}"
    http.put(f"{url}?partitions=3")
    lines = b"\n".join(b'{"key":"k%d","data":%d}' % (number % 5, number) for number in range(50))
    answer = http.post(f"{url}/items?events=true", content=lines, headers={"content-type": "application/x-ndjson"})
    told = answer.json()
    assert sorted(row for run in told["runs"] for row in run["rows"]) == list(range(50))
    with headwater.open(process.path) as hw:
        for run in told["runs"]:
            events = list(hw.read(url.rpartition("/")[2], partition=run["partition"]))
            assert [event.value for event in events] == run["rows"]
            assert str(events[0].id) == run["id"]


# Reading


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, range(10)),
        ({"from": 3}, range(3, 10)),
        ({"from": "latest"}, range(0)),
        ({"from": 100}, range(0)),
        ({"end_before": 4}, range(4)),
        ({"end_before": 0}, range(0)),
        ({"end_after": 4}, range(5)),
        ({"end_after": 400}, range(10)),
        ({"max_items": 2}, range(2)),
        ({"max_items": 0}, range(0)),
        ({"from": 3, "end_after": 8, "max_items": 2}, range(3, 5)),
        ({"from": 3, "end_after": 3, "end_before": 9, "max_items": 5}, range(3, 4)),
        ({"from": 5, "end_before": 3}, range(0)),
    ],
)
def test_the_first_end_that_is_met_ends_the_answer(topic_url: str, query: dict[str, Any], ids: range) -> None:
    append(topic_url, *(b"%d" % number for number in range(4)))
    http.post(f"{topic_url}/items", json=list(range(4, 10)))
    assert read(topic_url, **query) == [(id, b"%d" % id) for id in ids]
    lines = http.get(f"{topic_url}/items", params=query, headers=NDJSON).text.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(ids)


@pytest.mark.parametrize(
    "ends", [{"end_after": 5}, {"end_before": 6}, {"max_items": 4}, {"end_after": 5, "type": "odd"}]
)
@pytest.mark.parametrize("headers", [{}, NDJSON])
def test_a_waiting_answer_ends_where_it_should(topic_url: str, ends: dict[str, Any], headers: dict[str, str]) -> None:
    append(topic_url, b"0", b"1", b"2")
    query = {"from": 2, "wait_for_more": "true", **ends}
    found: list[bytes] = []

    def follow() -> None:
        with http.stream("GET", f"{topic_url}/items", params=query, headers=headers, timeout=20) as answer:
            found.extend(answer.iter_raw())

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(3, 6):
        append(topic_url, b"%d" % number, type="odd" if number % 2 else "even")
    reader.join(20)
    assert not reader.is_alive()
    wanted = [3, 5] if "type" in ends else [2, 3, 4, 5]
    data = b"".join(found)
    got = [id for id, _ in items(data)] if not headers else [json.loads(line)["offset"] for line in data.splitlines()]
    assert got == wanted


def test_a_waiting_answer_gives_what_others_append_to_the_directory(process: ServerProcess, topic_url: str) -> None:
    with (
        http.stream("GET", f"{topic_url}/items?wait_for_more=true", timeout=20) as answer,
        headwater.open(process.path) as hw,
    ):
        hw.append(topic_url.rpartition("/")[2], b"from another process")
        assert items(next(answer.iter_raw())) == [(0, b"from another process")]


def test_a_reader_that_leaves_is_forgotten(process: ServerProcess, topic_url: str) -> None:
    with httpx.Client(verify=False) as client:
        with client.stream("GET", f"{topic_url}/items?wait_for_more=true", timeout=20) as answer:
            append(topic_url, b"x")
            pieces = answer.iter_raw()  # which closes the connection when it is let go of
            next(pieces)
            with_it = connections(process)
        wait_for(lambda: connections(process) < with_it)


def connections(process: ServerProcess) -> float:
    lines = http.get(f"{process.url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("headwater_http_connections ")).split()[1])


def test_events_are_filtered(topic_url: str) -> None:
    for number in range(6):
        http.post(f"{topic_url}/items?type={'odd' if number % 2 else 'even'}&key=k{number % 3}", json={"n": number})
    assert [id for id, _ in read(topic_url, type="od+")] == [1, 3, 5]
    assert [id for id, _ in read(topic_url, key="k1")] == [1, 4]
    assert [id for id, _ in read(topic_url, match='{"n": {"$gt": 3}}')] == [4, 5]
    assert [id for id, _ in read(topic_url, type="odd", match='{"n": {"$gt": 1}}', max_items=1)] == [3]


@pytest.mark.parametrize(
    "query",
    [
        "type=(", "match={", "match=[]", "match=%7B%22%24no%22:1%7D", "from=-1", "from=x", "from_time=yesterday",
        "from_time=2026-01-01T00:00:00", "from_id=x", "from=1&from_id=2", "max_items=1.5", "wait_for_more=yes",
        "nonsense=1", "max_items=1&max_items=2", "format=xml", "partition=x", "from=%FF",
        "end_before=99999999999999999999",
    ],
)  # fmt: skip
def test_a_bad_query_is_told(topic_url: str, query: str) -> None:
    answer = http.get(f"{topic_url}/items?{query}")
    assert answer.status_code == 400
    assert answer.json()["message"]


def test_times_and_ids_are_places_too(topic_url: str) -> None:
    append(topic_url, b"0", b"1", b"2")
    events = http.get(f"{topic_url}/items", headers={"accept": "application/json"}).json()
    assert [id for id, _ in read(topic_url, from_id=events[1]["id"])] == [1, 2]
    assert [id for id, _ in read(topic_url, from_time=events[2]["time"])] == [2]
    assert [id for id, _ in read(topic_url, from_time=0)] == [0, 1, 2]
    assert read(topic_url, from_time="2100-01-01T00:00:00+02:00") == []


def test_an_id_that_retention_has_deleted_is_gone(process: ServerProcess) -> None:
    url = f"{process.url}/topic/{uuid4()}"
    http.put(f"{url}?segment_bytes=4096")
    for _ in range(4):
        http.post(f"{url}/items", json=["x" * 1000] * 10)
    deleted = http.post(f"{url}/retain", json={"before": 25}).json()
    assert deleted
    answer = http.get(f"{url}/items?from=0")
    assert (answer.status_code, answer.json()["code"]) == (410, "offset_gone")
    oldest = answer.json()["facts"]["oldest"]
    assert read(url)[0][0] == oldest
    waiting = http.get(f"{url}/items?from=0&wait_for_more=true")
    assert waiting.status_code == 410


def test_several_partitions_need_a_name_where_a_number_is_all(process: ServerProcess) -> None:
    url = f"{process.url}/topic/{uuid4()}"
    http.put(f"{url}?partitions=2")
    http.post(f"{url}/items?partition=1", content=b"x")
    answer = http.get(f"{url}/items")
    assert (answer.status_code, answer.json()["code"]) == (400, "partition_needed")
    assert read(url, partition=1) == [(0, b"x")]
    assert http.get(f"{url}/items?partition=7").status_code == 404
    (line,) = http.get(f"{url}/items", headers=NDJSON).text.splitlines()
    assert json.loads(line)["partition"] == 1
    assert http.get(f"{url}/items?end_before=1", headers=NDJSON).status_code == 400


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "application/octet-stream"),
        ("text/html, application/*;q=0.5", "application/octet-stream"),
        ("text/*", "text/event-stream"),
        ("application/x-ndjson;q=0.2, application/json", "application/json"),
        ("application/json;q=0, application/x-ndjson;q=0.1", "application/x-ndjson"),
    ],
)
def test_accept_chooses_the_format(topic_url: str, accept: str, media: str) -> None:
    query = "?wait_for_more=false" if media == "text/event-stream" else ""
    answer = http.get(f"{topic_url}/items{query}", headers={"accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == media


def test_an_unknown_format_is_not_acceptable(topic_url: str) -> None:
    assert http.get(f"{topic_url}/items", headers={"accept": "image/png"}).status_code == 406


def test_an_empty_topic_reads_as_nothing_in_every_format(topic_url: str) -> None:
    assert read(topic_url) == []
    assert http.get(f"{topic_url}/items?format=ndjson").text == ""
    assert http.get(f"{topic_url}/items?format=json").json() == []


def test_much_is_read_in_order(process: ServerProcess, topic_url: str) -> None:
    with headwater.open(process.path) as hw:
        name = topic_url.rpartition("/")[2]
        data = [b"%07d" % number * (number % 9) for number in range(60_000)]
        for at in range(0, len(data), 7_000):
            hw.append_many(name, data[at : at + 7_000])
    assert read(topic_url) == list(enumerate(data))
    lines = http.get(f"{topic_url}/items", headers=NDJSON).text.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(len(data)))


def test_tail_prints_the_first_item_as_the_documents_say(topic_url: str, tmp_path: Path) -> None:
    curl("-X", "POST", "-d", "This is the message contents", f"{topic_url}/items")
    (tmp_path / "my_data").write_bytes(curl(f"{topic_url}/items?max_items=1"))
    told = subprocess.run(["tail", "-c", "+13", tmp_path / "my_data"], capture_output=True, check=True).stdout
    assert told == b"This is the message contents"


def test_cloud_events_are_appended(topic_url: str) -> None:
    attributes = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed", "subject": "o-17"}
    one = http.post(
        f"{topic_url}/items",
        content=json.dumps(attributes | {"data": {"n": 1}}),
        headers={"content-type": "application/cloudevents+json"},
    )
    binary = http.post(
        f"{topic_url}/items",
        content=b'{"n":2}',
        headers={f"ce-{name}": value for name, value in attributes.items()} | {"content-type": "application/json"},
    )
    many = http.post(
        f"{topic_url}/items",
        content=json.dumps([attributes | {"data": {"n": 3}}, attributes | {"data": {"n": 4}}]),
        headers={"content-type": "application/cloudevents-batch+json; charset=utf-8"},
    )
    assert (one.json(), binary.json(), many.json()["count"]) == (0, 1, 2)
    events = http.get(f"{topic_url}/items?key=o-17&type=placed", headers={"accept": "application/json"}).json()
    assert [event["data"]["n"] for event in events] == [1, 2, 3, 4]
    assert {event["meta"]["ce-source"] for event in events} == {"/shop"}
    bad = http.post(f"{topic_url}/items", content=b"{}", headers={"content-type": "application/cloudevents+json"})
    assert bad.status_code == 400


def test_text_is_looked_at_each_time(topic_url: str) -> None:
    headers = {"content-type": "text/plain"}  # the same head, which is known after the first
    answers = [
        http.post(f"{topic_url}/items", content=data, headers=headers) for data in (b"aa", b"bb", b"\xff\xff", b"cc")
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    assert [data for _, data in read(topic_url)] == [b"aa", b"bb", b"cc"]

"""JSON and text that are none: refused wherever they could come in; where they are stored, they can be copied."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import headwater
from headwater.errors import Invalid
from headwater.format import batch as batches
from headwater.format import frames
from headwater.format.batch import DATA
from headwater.format.column import Column
from headwater.requests import AppendMany
from headwater.store import Store
from tests.planting import plant
from tests.server.serving import Server
from tests.server.tcp.wire import wire
from tests.server.test_arrow_http import stream

MIB = 1024 * 1024
CODES = ("bad_json", "not_utf8")
Wrong = tuple[Literal["json", "text"], bytes, bytes]
WRONG: dict[str, Wrong] = {
    "cut": ("json", b'{"n": 1}', b'{"n": '),
    "empty": ("json", b"1", b""),
    "two values": ("json", b"1", b"1 2"),
    "two lines": ("json", b"1", b"1\n2"),
    "latin-1": ("json", '"é"'.encode(), b'"\xe9"'),
    "deep": ("json", b"[]", b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "bytes": ("text", b"text", b"\xff"),
    "half a character": ("text", "é".encode(), "é".encode()[:1]),
    "the other half": ("text", "é".encode(), "é".encode()[1:]),
}
wrong = pytest.mark.parametrize(("content", "good", "bad"), WRONG.values(), ids=WRONG.keys())


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with headwater.open(server_path) as hw:
        hw.create("t", data_bytes_max=64 * MIB)
    return server_path


def refused(answer: Any, index: int | None = None) -> None:
    told = answer.json()
    assert (answer.status_code, told["kind"]) == (400, "Invalid"), answer.text
    assert told["code"] in CODES, answer.text
    assert 'content="bytes"' in told["hint"]
    assert index is None or told["facts"]["index"] == index


@wrong
def test_http_refuses_it_in_every_form(server: Server, content: str, good: bytes, bad: bytes) -> None:
    def end() -> int:
        return int(server.http.get("/topic/t").json()["partitions"][0]["end"])

    before, post, items = end(), server.http.post, "/topic/t/items"
    media = {"json": "application/json"}.get(content, "text/plain")
    marked = {"Content-Type": media}
    refused(post(items, content=bad, headers=marked))
    refused(post(items, content=bad, params={"content": content}))
    refused(post(items, content=iter([bad[:1], bad[1:]]), params={"content": content}))
    attributes = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "datacontenttype": media}
    refused(post(items, content=bad, headers={f"ce-{name}": value for name, value in attributes.items()} | marked))
    events = [attributes | {"data_base64": b64encode(data).decode()} for data in (good, bad)]
    refused(post(items, json=events[1], headers={"Content-Type": "application/cloudevents+json"}))
    refused(post(items, json=events, headers={"Content-Type": "application/cloudevents-batch+json"}), 1)
    lines = [{"content": content, "data_base64": b64encode(data).decode()} for data in (good, bad)]
    body, marked = "\n".join(map(json.dumps, lines)), {"Content-Type": "application/x-ndjson"}
    refused(post(items, content=body, headers=marked, params={"events": "true"}), 1)
    refused(post(items, json=lines, params={"events": "true"}), 1)
    refused(post("/transaction", json={"appends": [{"topic": "t", **line} for line in lines]}), 1)
    rows = [good] * 3 + [bad]
    table = pa.table({"data": pa.array(rows, pa.binary()), "content": [content] * 4})
    refused(post(items, content=stream(table), headers={"Content-Type": "application/vnd.apache.arrow.stream"}), 3)
    stored = batches.encode(0, 0, 4, content, {DATA: Column.of(rows)})  # type: ignore[arg-type]
    refused(post(items, content=frames.encode(0, stored, 0, 4), headers={"Content-Type": frames.MEDIA_TYPE}), 3)
    assert end() == before


def test_json_sent_as_a_form_is_stored_as_sent_and_is_json_to_every_reader(server: Server) -> None:
    """What `curl -d` sends, whatever its Content-Type."""
    server.http.put("/topic/form")
    sent = [b'{"a": 1, "by": {"name": "Ann"}}', b'{"a": 2}', b"a=1&b=2"]
    for body in sent:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert server.http.post("/topic/form/items", content=body, headers=form).status_code == 200
    items, lines = "/topic/form/items", {"Accept": "application/x-ndjson"}
    told = [json.loads(line) for line in server.http.get(items, headers=lines).text.splitlines()]
    assert [line["data"] for line in told] == [{"a": 1, "by": {"name": "Ann"}}, {"a": 2}, "a=1&b=2"]
    assert {line["content"] for line in told} == {"bytes"}
    found = server.http.get(items, headers=lines, params={"match": '{"by.name": "Ann"}'}).text.splitlines()
    assert [json.loads(line)["offset"] for line in found] == [0]
    stream = server.http.get(items, headers={"Accept": "text/event-stream"}, params={"wait_for_more": "false"}).text
    assert 'data: {"a": 2}\n' in stream
    with headwater.open(server.url) as hw:
        assert [event.data for event in hw.read("form")] == sent
        assert [event.json()["a"] for event in hw.read("form", match={})] == [1, 2]
        assert next(hw.read("form")).value == sent[0]
        with pytest.raises(Invalid, match="event 2 of topic 'form'") as caught:
            next(iter(hw.read("form", start=2))).json()
        assert caught.value.code == "bad_json"


@pytest.mark.parametrize("content", ["json", "text"])
def test_large_items_are_checked_however_they_are_sent(server: Server, content: str) -> None:
    sound = b'"' + "é".encode() * MIB + b'"'
    pieces = [sound[at : at + 65_535] for at in range(0, len(sound), 65_535)]  # which cut characters
    for body in (sound, iter(pieces)):
        assert server.http.post("/topic/t/items", content=body, params={"content": content}).status_code == 200
    broken = sound[:-2] + b'"'
    for body in (broken, iter([broken[:MIB], broken[MIB:]])):
        refused(server.http.post("/topic/t/items", content=body, params={"content": content}))


@pytest.fixture(params=["directory", "bucket", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Store]:
    places = {"directory": str(tmp_path / "data"), "bucket": f"objects://{tmp_path}/objects", "server": server.url}
    with headwater.open(places[request.param]) as opened:
        yield opened


@wrong
def test_python_refuses_it_wherever_the_log_is(opened: Store, content: Any, good: bytes, bad: bytes) -> None:
    opened.create("p", partitions=2)

    def ends() -> list[int]:
        return [part.end for part in opened.describe("p").partitions]

    def within(verb: str, *given: Any) -> None:
        with opened.transaction() as tx:
            getattr(tx, verb)("p", *given, content=content)

    rows = [good] * 3 + [bad]
    keys = [b"a", b"b", b"c", b"d"]  # some of which go to the other partition
    table = pa.table({"data": pa.array(rows, pa.binary()), "key": pa.array(keys, pa.binary())})
    columns: dict[int, Column | None] = {DATA: Column.of(rows)}
    for attempt, index in (
        (lambda: opened.append("p", bad, content=content), None),
        (lambda: opened.append("p", bytearray(bad), content=content), None),
        (lambda: opened.append("p", BytesIO(bad), content=content), None),
        (lambda: opened.append("p", iter([bad[:1], bad[1:]]), content=content), None),
        (lambda: opened.append_many("p", rows, content=content, keys=keys), 3),
        (lambda: opened.append_many("p", [good, bytearray(bad)], content=content), 1),
        (lambda: opened.append_arrow("p", table, content=content), 3),
        (lambda: opened.backend.append_many(AppendMany.of("p", content, columns, 4, opened.limits, partition=0)), 3),
        (lambda: within("append", bad), None),
        (lambda: within("append_many", rows), 3),
    ):
        before = ends()
        with pytest.raises(Invalid) as caught:
            attempt()
        assert caught.value.code in CODES
        assert 'content="bytes"' in caught.value.hint
        assert index is None or caught.value.facts["index"] == index
        assert ends() == before


@pytest.mark.parametrize("text", ["{", "1 2"])
def test_a_text_that_is_called_json_is_checked_too(tmp_path: Path, text: str) -> None:
    with headwater.open(tmp_path / "data") as hw:
        for attempt in (
            lambda: hw.append("t", text, content="json"),
            lambda: hw.append_many("t", [{"n": 1}, text], content="json"),
        ):
            with pytest.raises(Invalid) as caught:
                attempt()
            assert caught.value.code == "bad_json"


def test_sound_events_of_each_content_are_taken(opened: Store) -> None:
    topic = "sound"
    for data in (b'{"a": "\xc3\xa9"}', b" [1, 2.50]\n", b'{\n "n": 123456789012345678901234567890}'):
        opened.append(topic, data, content="json")
        opened.append_many(topic, [data, b"null", data], content="json")
    for text in ("", "é", "\0"):
        opened.append(topic, text.encode(), content="text")
        opened.append(topic, BytesIO(text.encode()), content="text")
        opened.append_many(topic, [text.encode()] * 2, content="text")
    assert len(list(opened.read(topic))) == 3 * 4 + 3 * 4


@wrong
def test_tcp_refuses_what_is_not_json(server: Server, content: str, good: bytes, bad: bytes) -> None:
    if content == "text" or not bad.isascii():
        pytest.skip("a string of BSON is UTF-8")
    with wire(server.tcp_url) as client:
        assert client.emit("tcp", good.decode(), content=content)["ok"]
        assert client.emit("tcp", bad.decode(), content=content)["errCode"] == "bad_json"


@pytest.mark.parametrize("suffix", ["jsonl", "arrow", "parquet"])
def test_a_file_is_checked_unless_it_was_exported(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events.{suffix}"
    with headwater.open(tmp_path / "data") as hw:
        hw.append_many("t", [b"1", b"2"], content="json")
        plant(hw, "t", b"{old", b"[old")
        plant(hw, "t", b"\xff", content="text")
        plant(hw, "t", b"{" * (2 * MIB))
        hw.export("t", path)
    with headwater.open(tmp_path / "copy") as hw:
        assert hw.import_("t", path) == 6
        copied = [(event.data, event.content) for event in hw.read("t")]
    assert copied[:5] == [(b"1", "json"), (b"2", "json"), (b"{old", "json"), (b"[old", "json"), (b"\xff", "text")]
    assert copied[5] == (b"{" * (2 * MIB), "json")


def test_a_file_of_others_is_refused_at_the_event_at_fault(tmp_path: Path) -> None:
    line = {"content": "json", "data_base64": b64encode(b"{").decode()}
    (tmp_path / "in.jsonl").write_text(json.dumps({"content": "json", "data": 1}) + "\n" + json.dumps(line) + "\n")
    table = pa.table({"data": pa.array([b"1", b"{"], pa.binary())})
    with pa.OSFile(str(tmp_path / "in.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write(table)
    with headwater.open(tmp_path / "data") as hw:
        for name in ("in.jsonl", "in.arrow"):
            with pytest.raises(Invalid) as caught:
                hw.import_("t", tmp_path / name, content="json")
            assert (caught.value.code, caught.value.facts["skip"]) == ("bad_json", 1)


def test_dead_letters_that_were_stored_before_are_set_aside_and_replayed(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as hw:
        plant(hw, "t", b"{old", b"{" * (2 * MIB))
        with hw.consumer("c", "t") as consumer:
            for event in consumer.drain():
                for _ in range(hw.limits.failures_max):
                    consumer.fail(event, "cannot be read")
        assert [event.data for event in hw.read("t.dead")] == [b"{old", b"{" * (2 * MIB)]
        assert hw.replay("t") == 2
        assert [(event.size, event.content) for event in hw.read("t")][2:] == [(4, "json"), (2 * MIB, "json")]

"""BSON that is none: refused wherever it could come in; where it is stored, readers get past it."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest

import headwater
from headwater import App
from headwater.errors import Invalid
from headwater.format import batch as batches
from headwater.format import frames
from headwater.format.batch import DATA
from headwater.format.column import Column
from headwater.opening import open_directory
from headwater.requests import Append
from headwater.store import Store
from tests.server.serving import Server
from tests.server.tcp.wire import wire
from tests.server.test_arrow_http import stream

GOOD = bson.encode({"n": 1})
MIB = 1024 * 1024


def nested(levels: int) -> bytes:
    """Documents in each other."""
    raw = b"\x05\0\0\0\0"
    for _ in range(levels - 1):
        raw = (len(raw) + 8).to_bytes(4, "little") + b"\x03x\0" + raw + b"\0"
    return raw


BAD = {
    "empty": b"",
    "text": b"not BSON at all",
    "length": GOOD + b"x",
    "two": GOOD + GOOD,
    "kind": b"\x0b\0\0\0\x99n\0abc\0",
    "inner": b"\x14\0\0\0\x02n\0\xff\0\0\0four 4567\0"[:19] + b"\0",
    "utf8": b"\x10\0\0\0\x02n\0\x04\0\0\0\xff\xfe\xfd\0\0",
    "deep": nested(150),
}
bad = pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with headwater.open(server_path) as hw:
        hw.create("t", data_bytes_max=64 * MIB)
    return server_path


def refused(answer: Any) -> None:
    assert (answer.status_code, answer.json()["kind"]) == (400, "Invalid"), answer.text
    assert answer.json()["code"] in ("bad_bson", "too_deep"), answer.text


def base64(data: bytes) -> str:
    return b64encode(data).decode()


@bad
def test_http_refuses_it_in_every_form(server: Server, data: bytes) -> None:
    before = server.http.get("/topic/t").json()["partitions"][0]["end"]
    post = server.http.post
    marked = {"Content-Type": "application/bson"}
    items = "/topic/t/items"
    refused(post(items, content=data, headers=marked))
    refused(post(items, content=iter([data]), headers=marked))
    refused(post(items, content=data, params={"content": "bson"}))
    line = {"content": "bson", "data_base64": base64(data)}
    sound = {"content": "bson", "data_base64": base64(GOOD)}
    for lines in ([line], [sound, line]):
        body = "\n".join(map(json.dumps, lines))
        headers = {"Content-Type": "application/x-ndjson"}
        refused(post(items, content=body, headers=headers, params={"events": "true"}))
        refused(post(items, json=lines, params={"events": "true"}))
    refused(post("/transaction", json={"appends": [{"topic": "t", **line}]}))
    table = pa.table({"data": pa.array([GOOD, data], pa.binary()), "content": ["bson", "bson"]})
    refused(post(items, content=stream(table), headers={"Content-Type": "application/vnd.apache.arrow.stream"}))
    stored = batches.encode(0, 0, 2, "bson", {DATA: Column.of([GOOD, data])})
    refused(post(items, content=frames.encode(0, stored, 0, 2), headers={"Content-Type": frames.MEDIA_TYPE}))
    assert server.http.get("/topic/t").json()["partitions"][0]["end"] == before


def test_http_refuses_large_ones_and_takes_sound_ones_of_any_form(server: Server) -> None:
    large = bson.encode({"data": b"x" * (2 * MIB)})
    headers = {"Content-Type": "application/bson"}
    for body in (large, iter([large[:MIB], large[MIB:]]), GOOD, iter([GOOD])):
        assert server.http.post("/topic/t/items", content=body, headers=headers).status_code == 200
    broken = bson.encode({"data": b"x" * (2 * MIB), "more": "four"})
    broken = broken.replace(b"\x02more\0", b"\x99more\0")
    refused(server.http.post("/topic/t/items", content=broken, headers=headers))
    refused(server.http.post("/topic/t/items", content=iter([broken]), headers=headers))


@pytest.fixture(params=["directory", "bucket", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Store]:
    places = {"directory": str(tmp_path / "data"), "bucket": f"objects://{tmp_path}/objects", "server": server.url}
    with headwater.open(places[request.param]) as opened:
        yield opened


@bad
def test_python_refuses_it_wherever_the_log_is(opened: Store, data: bytes) -> None:
    opened.create("p")
    before = [part.end for part in opened.describe("p").partitions]

    def within() -> None:
        with opened.transaction() as tx:
            tx.append("p", data, content="bson")

    table = pa.table({"data": pa.array([GOOD, data], pa.binary())})
    for attempt in (
        lambda: opened.append("p", data, content="bson"),
        lambda: opened.append("p", bytearray(data), content="bson"),
        lambda: opened.append("p", BytesIO(data), content="bson"),
        lambda: opened.append_many("p", [GOOD, data], content="bson"),
        lambda: opened.append_arrow("p", table, content="bson"),
        within,
    ):
        with pytest.raises(Invalid) as caught:
            attempt()
        assert caught.value.code in ("bad_bson", "too_deep")
    assert [part.end for part in opened.describe("p").partitions] == before
    opened.append("p", BytesIO(GOOD), content="bson")
    assert [event.value for event in opened.read("p")][-1] == {"n": 1}


@bad
def test_files_with_it_are_not_imported(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"content": "bson", "data_base64": base64(data)}) + "\n")
    with headwater.open(tmp_path / "data") as hw, pytest.raises(Invalid):
        hw.import_("t", path)
    arrow = tmp_path / "in.arrow"
    with pa.OSFile(str(arrow), "wb") as file, pa.ipc.new_file(file, pa.schema({"data": pa.binary()})) as writer:
        writer.write(pa.record_batch({"data": pa.array([data], pa.binary())}))
    with headwater.open(tmp_path / "data") as hw, pytest.raises(Invalid):
        hw.import_("t", arrow, content="bson")
    command = [sys.executable, "-m", "headwater.cli", "read", str(tmp_path / "data"), "t", "--json"]
    assert subprocess.run(command, capture_output=True, check=False).stdout == b""


def stored(path: Path, topic: str, *values: bytes) -> None:
    """Have these in a topic as an older version stored them: nobody looked."""
    with open_directory(path) as hw:
        hw.create(topic)
        hw.directory.commit([hw.directory.prepare(Append(topic, value, "bson", b"made")) for value in values])


@bad
@pytest.mark.parametrize("durable", [False, True])
def test_a_subscriber_reads_past_what_is_stored(server: Server, data: bytes, durable: bool) -> None:
    topic = f"s-{hash(data)}-{durable}"
    stored(server.path, topic, GOOD, data, GOOD)
    named = {"durableID": "d"} if durable else {}
    with wire(server.tcp_url) as client:
        assert client.ask("SUBSCRIBE", streamName=topic, startSequence=0, **named)["ok"]
        got = [client.receive()[1] for _ in range(3)]
    assert [each["event"] for each in got] == [{"n": 1}, {"data": data}, {"n": 1}]
    assert [each.get("content") for each in got] == [None, "bytes", None]


@bad
def test_http_and_python_read_past_what_is_stored(server: Server, data: bytes) -> None:
    topic = f"r-{hash(data)}"
    stored(server.path, topic, GOOD, data, GOOD)
    lines = server.http.get(f"/topic/{topic}/items", headers={"Accept": "application/x-ndjson"}).text.splitlines()
    told = [json.loads(line) for line in lines]
    deep = data == BAD["deep"]  # which JSON can tell
    assert [each.get("data") for each in told][::2] == [{"n": 1}, {"n": 1}]
    assert deep or b64decode(told[1]["data_base64"]) == data
    accept = {"Accept": "text/event-stream"}
    sent = server.http.get(f"/topic/{topic}/items?wait_for_more=false", headers=accept).text
    datas = [line.removeprefix("data: ") for line in sent.splitlines() if line.startswith("data:")]
    assert len(datas) == 3
    assert deep or b64decode(datas[1]) == data
    with headwater.open(server.path) as hw:
        events = list(hw.read(topic))
        assert [event.data for event in events] == [GOOD, data, GOOD]
        if not deep:
            with pytest.raises(Invalid) as caught:
                _ = events[1].value
            assert (caught.value.code, caught.value.facts["offset"]) == ("bad_bson", 1)
            assert len(list(hw.read(topic, match={"n": 1}))) == 2
            assert hw.read_arrow(topic).num_rows == 3


def test_a_projection_quarantines_what_is_stored(tmp_path: Path) -> None:
    stored(tmp_path / "data", "t", GOOD, BAD["kind"], bson.encode({"n": 2}))
    app = App()

    @app.projection("t", "b", key=lambda event: str(event.value["n"]), on_error="quarantine")
    def fold(_: Any, event: headwater.Event) -> Any:
        return event.value

    with open_directory(tmp_path / "data") as hw:
        app.catch_up(hw)
        assert [document.id for document in hw.binder("b").find()] == ["1", "2"]

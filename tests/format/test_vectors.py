"""The golden files: still written, still read, by this program and by one that knows only the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from headwater.errors import HeadwaterError
from headwater.event import Event
from headwater.format import batch, blob, segment, settings, tail
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.index import Index
from headwater.limits import Limits
from tests.format import independent_reader
from tests.vectors import make

NAMES = sorted(path.stem for path in make.HERE.glob("*.hex"))
BATCHES = [name for name in NAMES if name.startswith("batch-")]


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    stored = bytes.fromhex((make.HERE / f"{name}.hex").read_text(encoding="ascii"))
    return stored, json.loads((make.HERE / f"{name}.json").read_text(encoding="ascii"))


def test_every_golden_file_is_made_and_every_one_made_is_kept() -> None:
    assert sorted(make.vectors()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_makes_the_golden_bytes(name: str) -> None:
    stored, meaning = make.vectors()[name]
    assert golden(name)[1] == meaning
    if name != "batch-zstd":  # another release of zstd may compress otherwise
        assert golden(name)[0] == stored


@pytest.mark.parametrize("name", BATCHES)
def test_the_decoder_reads_the_golden_batches(name: str) -> None:
    stored, meaning = golden(name)
    found = batch.decode(memoryview(stored), 0, len(stored))
    found.validate()
    flags = [flag for flag, bit in (("blob", batch.BLOB), ("lost", batch.LOST)) if found.flags & bit]
    head = found.base_offset, found.base_ticks, found.count, found.content, flags
    assert head == tuple(meaning[name] for name in ("base_offset", "base_ticks", "count", "content", "flags"))
    if "events" in meaning:
        columns = {
            name: found.column(kind) for name, kind in (("type", TYPE), ("key", KEY), ("data", DATA), ("meta", META))
        }
        values = {
            name: [None] * found.count if column is None else column.values(0, found.count)
            for name, column in columns.items()
        }
        ticks = found.ticks().tolist()
        for i, event in enumerate(meaning["events"]):
            assert (found.base_offset + i, ticks[i]) == (event["offset"], event["ticks"])
            assert (values["type"][i] or b"").decode() == event["type"]
            for field in ("key", "data", "meta"):
                value = values[field][i]
                assert (None if value is None else value.hex()) == event[field]


@pytest.mark.parametrize("name", BATCHES)
def test_the_page_suffices_to_read_the_golden_batches(name: str) -> None:
    stored, meaning = golden(name)
    size, lost, rows = independent_reader.read_batch(stored, meaning["base_offset"])
    assert size == len(stored)
    assert lost + len(rows) == meaning["count"]
    for row, event in zip(rows, meaning.get("events", []), strict=True):
        ticks, type, key, data, content, meta, is_blob = row
        assert (ticks, type.decode(), content) == (event["ticks"], event["type"], meaning["content"])
        assert [None if value is None else value.hex() for value in (key, data, meta)] == [
            event[name] for name in ("key", "data", "meta")
        ]
        assert bool(is_blob) == ("blob" in meaning["flags"])


@pytest.mark.parametrize("name", ["segment", "segment-packed"])
def test_the_golden_segment_headers_are_read(name: str) -> None:
    stored, meaning = golden(name)
    found = segment.decode(stored)
    assert found.log_uuid.hex() == meaning["log_uuid"]
    assert [found.file_id, found.base_offset, found.previous_ticks, found.begun_ticks, found.packed] == [
        meaning[name] for name in ("file_id", "first_offset", "previous_ticks", "begun_ticks", "packed")
    ]


def test_the_golden_tail_is_read() -> None:
    stored, meaning = golden("tail")
    assert tail.sound(stored)
    newest = tail.newest(stored)
    assert newest is not None
    assert msgspec.structs.asdict(newest) | {"boot_id": newest.boot_id.hex()} == meaning["slot 1"]
    assert independent_reader.read_tail(stored) == (newest.segment, newest.visible_position)


def test_the_golden_blob_is_read() -> None:
    stored, meaning = golden("blob")
    size, crc = meaning["size"], int(meaning["table_crc"], 16)
    crcs = blob.decode_trailer(stored[size:], (size, meaning["chunk_bytes"], crc))
    assert [f"{crc:08x}" for crc in crcs.tolist()] == meaning["crcs"]
    reference = bytes.fromhex(golden("batch-blob")[1]["events"][0]["data"])
    assert independent_reader.read_blob(stored, reference) == bytes(range(256)) * 5


def test_the_golden_index_is_read() -> None:
    stored, meaning = golden("index")
    found = Index.decode(stored)
    assert [found.file_id, found.base_offset, found.end_offset, found.segment_bytes] == [
        meaning[name] for name in ("file_id", "first_offset", "end_offset", "segment_bytes")
    ]
    for name in ("offsets", "ticks", "positions"):
        assert getattr(found, name).tolist() == meaning[name]
    assert {type.decode(): numbers.tolist() for type, numbers in (found.types or {}).items()} == meaning["types"]


def test_the_golden_settings_are_read() -> None:
    stored, meaning = golden("headwater-json")
    assert settings.decode(stored, settings.Store).uuid == meaning["uuid"]
    assert independent_reader.read_settings(stored) == {"format": 1, "uuid": meaning["uuid"]}
    for name in ("topic-json", "topic-settings-json", "topic-retention-json"):
        stored, meaning = golden(name)
        del meaning["what"]
        topic = settings.decode(stored, settings.Topic)
        assert (topic.name, topic.partitions) == (meaning["name"], meaning["partitions"])
        assert {field: getattr(topic.settings, field) for field in meaning["settings"]} == meaning["settings"]
        assert independent_reader.read_settings(stored) == meaning


def as_independent(event: Event) -> independent_reader.Event:
    data = b"".join(event.chunks())
    return independent_reader.Event(
        event.partition, event.offset, event.ticks, event.id, event.type, event.key, data, event.content, event.raw_meta
    )


def write_everything(hw: headwater.Engine, topic: str) -> None:
    """Sealed and active segments with all encodings and contents."""
    hw.append_many(topic, [b"%d" % i for i in range(300)], types=[f"t{i}" for i in range(300)], partition=0)
    hw.append_many(topic, ["long " * 50] * 20, keys=[b"k%d" % (i % 3) for i in range(20)])
    for _ in range(2):
        for number in range(12):
            hw.append(topic, b"bytes", key=b"k%d" % number, type="placed" if number % 2 else "paid")
            hw.append(topic, {"n": number}, meta={"größe": "1"})
        hw.append(topic, iter([b"x" * 700_000, b"y" * 700_000]), type="huge")
        hw.append(topic, "text", key="")
        hw.append_many(topic, [b"", b"a", b"b"], keys=[None, b"", b"kk"], metas=[None, {"a": "b"}, None])
        hw.seal(topic)
    hw.append_many(topic, [b"same"] * 9, types="same", keys=[b"same"] * 9)
    hw.append(topic, b"\x05\0\0\0\0", content="bson", durability="os")
    hw.append(topic, b"")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_page_suffices_to_read_a_log(tmp_path: Path, compression: Any) -> None:
    topic = ".Größe/1"
    with headwater.open(tmp_path, limits=Limits(pack_bytes=64 * 1024)) as hw:
        hw.create(topic, partitions=2, segment_bytes=8192, compression=compression)
        write_everything(hw, topic)
        expected = [[as_independent(event) for event in hw.read(topic, partition=partition)] for partition in (0, 1)]
        assert min(len(partition.name) for partition in (tmp_path / "topics").rglob("*.index"))
    found = independent_reader.read_topic(tmp_path, topic)
    assert found == expected
    assert len(found[0]) > 300
    for event in found[0] + found[1]:
        assert event.key is None or event.partition == 0 or independent_reader.crc(event.key) * 2 >> 32 == 1


def test_the_independent_reader_refuses_damage(tmp_path: Path) -> None:
    """It must not agree by not looking."""
    with headwater.open(tmp_path) as hw:
        hw.append("t", b"hello", type="greeting")
    file = tmp_path / "topics/t/0/00000000000000000000.log"
    stored = file.read_bytes()
    for at in range(len(stored)):
        file.write_bytes(stored[:at] + bytes([stored[at] ^ 4]) + stored[at + 1 :])
        with pytest.raises(ValueError, match=r"damaged|no batch|another|unknown"):
            independent_reader.read_topic(tmp_path, "t")
        with headwater.open(tmp_path) as hw, pytest.raises(HeadwaterError):
            list(hw.read("t"))

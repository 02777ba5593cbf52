"""The golden files: still written, still read, by this program and by one that knows only the page."""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headwater
from headwater.errors import HeadwaterError
from headwater.event import Event
from headwater.format import batch, cursors, frames, journal, producers, segment, settings, tail
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.hashes import key_hash
from headwater.format.history import ArchiveAddress, LocalManifest
from headwater.format.index import Index
from headwater.limits import Limits
from tests.format import independent_reader
from tests.vectors import make
from tests.vectors.make import LOG_UUID

NAMES = sorted(path.stem for path in make.HERE.glob("*.hex"))
BATCHES = [name for name in NAMES if name.startswith("batch-")]
FRAMES = [name for name in NAMES if name.startswith("frame")]


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


@pytest.mark.parametrize("name", FRAMES)
def test_the_golden_frames_are_read(name: str) -> None:
    stored, meaning = golden(name)
    (frame,) = frames.Decoder().feed(stored)
    assert (frame.partition, frame.lo, frame.hi) == (meaning["partition"], meaning["lo"], meaning["hi"])
    frame.batch.validate()
    rows = range(frame.lo, frame.hi) if frame.rows is None else frame.rows.tolist()
    data, ticks = frame.batch.column(DATA), frame.batch.ticks()
    assert data is not None
    found = [(frame.batch.base_offset + row, int(ticks[row]), data.values(row, row + 1)[0]) for row in rows]
    expected = [(event["offset"], event["ticks"], bytes.fromhex(event["data"])) for event in meaning["events"]]
    assert found == expected


@pytest.mark.parametrize("name", FRAMES)
def test_the_page_suffices_to_read_the_golden_frames(name: str) -> None:
    stored, meaning = golden(name)
    partition, events = independent_reader.read_frame(stored)
    assert partition == meaning["partition"]
    found = [(offset, ticks, type.decode(), data.hex()) for offset, ticks, type, _, data, *_ in events]
    assert found == [tuple(event[name] for name in ("offset", "ticks", "type", "data")) for event in meaning["events"]]


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


def test_the_golden_cursors_are_read() -> None:
    stored, meaning = golden("cursors")
    header = cursors.decode_header(stored)
    assert (header.topic_uuid.hex(), header.partitions) == (meaning["topic_uuid"], meaning["partitions"])
    assert cursors.decode_words(stored[cursors.BUSY_AT :]).boot_id.hex() == meaning["boot_id"]
    members = cursors.decode_members(stored[cursors.MEMBERS_AT : cursors.SLOTS_AT])
    found = [{"id": member.id.hex(), "expiry_ns": member.expiry_ns} for member in members if member is not None]
    assert found == meaning["members"]
    for partition in (0, 1):
        newest = cursors.newest(stored[cursors.slot_at(partition, 0) :][: cursors.PAIR_BYTES])
        assert newest is not None
        told = meaning[f"partition {partition} slot 1"]
        expected = {name: bytes.fromhex(value) if isinstance(value, str) else value for name, value in told.items()}
        assert msgspec.structs.asdict(newest) == expected
        assert independent_reader.read_cursor(stored, LOG_UUID, partition) == newest.cursor


def test_the_golden_blob_is_read() -> None:
    stored, meaning = golden("blob")
    size, crc = meaning["size"], int(meaning["table_crc"], 16)
    crcs = segment.decode_trailer(stored[size:], (size, meaning["chunk_bytes"], crc))
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


def test_the_golden_producers_are_read() -> None:
    stored, meaning = golden("batch-producer")
    stamp = batch.decode(memoryview(stored), 0, len(stored)).producer
    assert stamp is not None
    assert msgspec.to_builtins(producers.read_stamp(stamp)) == meaning["producer"]
    stored, meaning = golden("producers")
    known = producers.decode(stored, make.LOG_UUID, 1000)
    assert list(known) == ["silent", "busy-é"]
    assert {id: msgspec.to_builtins(each) for id, each in known.items()} == {id: meaning[id] for id in known}
    assert independent_reader.read_producers(stored) == {
        id: (meaning[id]["epoch"], [tuple(answer.values()) for answer in meaning[id]["answers"]]) for id in known
    }


def test_the_golden_journal_is_read() -> None:
    stored, meaning = golden("journal")
    del meaning["what"]
    [(first, datas), (second, nothing)] = journal.decode(stored)
    assert (msgspec.to_builtins(first), datas) == (meaning, [b"12345678", b"abc" * 8])
    assert (second.shares, second.moves, nothing) == ([], [], [])
    assert independent_reader.read_journal(stored) == [
        (7, meaning, [b"12345678", b"abc" * 8]),
        (8, {"shares": [], "moves": []}, []),
    ]


def test_the_golden_index_with_keys_is_read() -> None:
    stored, meaning = golden("index-keys")
    found, sections = Index.decode(stored), independent_reader.read_index(stored)
    assert found.keys is not None
    assert len(found.keys) == meaning["entries"]
    pages = Index.decode_head(stored[: -8 * meaning["entries"]], len(stored)).pages
    assert pages is not None
    for key, batches in meaning["batches"].items():
        first, end = pages.find(key_hash(key.encode()))
        start, stop = pages.range(first, end)
        assert pages.batches(key_hash(key.encode()), first, stored[start:stop]) == batches
        assert independent_reader.batches_of(key.encode(), sections) == batches
    assert Index.decode(golden("index")[0]).keys is None


def test_the_golden_settings_are_read() -> None:
    stored, meaning = golden("headwater-json")
    assert settings.decode(stored, settings.LogSettings).uuid == meaning["uuid"]
    assert independent_reader.read_settings(stored) == {"format": 1, "uuid": meaning["uuid"]}
    for name in ("topic-json", "topic-settings-json", "topic-retention-json"):
        stored, meaning = golden(name)
        del meaning["what"]
        topic = settings.decode(stored, settings.TopicRecord)
        assert (topic.name, topic.partitions) == (meaning["name"], meaning["partitions"])
        assert {field: getattr(topic.settings, field) for field in meaning["settings"]} == meaning["settings"]
        assert independent_reader.read_settings(stored) == meaning


def test_the_golden_files_of_an_archive_are_read() -> None:
    for name in ("archive-json", "archived-json"):
        stored, meaning = golden(name)
        del meaning["what"]
        kind: Any = ArchiveAddress if name == "archive-json" else LocalManifest
        assert msgspec.json.decode(msgspec.json.encode(settings.decode(stored, kind))) == meaning
        assert independent_reader.read_settings(stored) == meaning


def as_independent(event: Event) -> independent_reader.Event:
    data = b"".join(event.chunks())
    return independent_reader.Event(
        event.partition, event.offset, event.ticks, event.id, event.type, event.key, data, event.content, event.raw_meta
    )


def write_everything(hw: headwater.Store, topic: str) -> None:
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
    check_keys_by_the_page(tmp_path, found)
    for event in found[0] + found[1]:
        assert event.key is None or event.partition == 0 or independent_reader.crc(event.key) * 2 >> 32 == 1


def check_keys_by_the_page(path: Path, topic: list[list[independent_reader.Event]]) -> None:
    """Each sealed segment's index tells of every key which batches hold it, and of no other than those keys."""
    looked_at = 0
    for file in (path / "topics").rglob("*.index"):
        sections = independent_reader.read_index(file.read_bytes())
        base = np.frombuffer(sections[1], np.int64).tolist()
        events = [event for event in topic[int(file.parent.name)] if event.offset >= base[0]]
        end = min((int(other.stem) for other in file.parent.glob("*.log") if int(other.stem) > base[0]), default=2**63)
        held: dict[bytes, set[int]] = {}
        for event in events:
            if event.offset < end and event.key is not None:
                held.setdefault(event.key, set()).add(bisect_right(base, event.offset) - 1)
        for key, numbers in held.items():
            assert independent_reader.batches_of(key, sections) == sorted(numbers)
            looked_at += 1
        assert len(sections[6]) == 8 * sum(map(len, held.values()))
    assert looked_at > 20


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

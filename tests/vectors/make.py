"""Make the golden files of this directory from fixed inputs: `python -m tests.vectors.make`.

Run it only when docs/FORMAT.md or docs/PROTOCOL.md change: what is written once must be readable for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from headwater.event import Content
from headwater.format import batch, cursors, frames, journal, producers, segment, settings, tail
from headwater.format.batch import DATA, KEY, META, PRODUCER, TYPE
from headwater.format.column import Column
from headwater.format.cursors import CursorsHeader, CursorSlot, MemberRecord
from headwater.format.hashes import U64, key_hash
from headwater.format.history import (
    FORM,
    ArchiveAddress,
    ArchivedBlob,
    ArchivedFile,
    HistoryFile,
    LocalManifest,
    blob_name,
    file_name,
)
from headwater.format.index import Index
from headwater.format.journal import Entry, JournalMove, JournalShare
from headwater.format.producers import Producer, ProducerAnswer, ProducerState
from headwater.format.segment import SegmentHeader
from headwater.format.settings import LogSettings, TopicRecord, TopicSettings
from headwater.format.tail import TailSlot
from tests.vectors import objects, tcp

HERE = Path(__file__).parent
TICKS = 139_271_094_615_000_000  # 2024-02-13T09:31:01.500000Z
UUID = "6e8bc430-9c3a-41d9-9669-0800200c9a66"
LOG_UUID = bytes(range(16))
ARCHIVE = "s3://bucket/archive?region=eu-central-1"
BOOT_ID = bytes(range(0xF0, 0x100))

Vector = tuple[bytes, dict[str, Any]]


Rows = Sequence[tuple[str, bytes | None, bytes, bytes | None]]


def vectors() -> dict[str, Vector]:
    """The bytes and the meaning of every golden file, by its name."""
    return {**_batches(), **_frames(), **_files(), **objects.vectors(), **tcp.vectors()}


def main() -> None:
    for name, (stored, meaning) in vectors().items():
        text = stored.hex()
        lines = [text[at : at + 64] for at in range(0, len(text), 64)]
        (HERE / f"{name}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")
        (HERE / f"{name}.json").write_text(_json(meaning), encoding="ascii")


def _json(meaning: dict[str, Any]) -> str:
    """One line for each member and each event."""
    rest = {name: value for name, value in meaning.items() if name != "events"}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in rest.items()]
    if "events" in meaning:
        lines.append('  "events": [\n    ' + ",\n    ".join(json.dumps(event) for event in meaning["events"]) + "\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _batches() -> dict[str, Vector]:
    three = [("", None, b"a", None), ("", None, b"", None), ("", None, b"ccc", None)]
    types = [f"type-{number}" for number in range(257)]
    return {
        "batch-one": _one("text", "greeting", b"o-17", b"hello", b'{"trace":"1"}'),
        "batch-one-bare": _one("bytes", "", None, b"", None),
        "batch-constant": _many("A value that all share is stored once.", "json", [("same", b"k", b"{}", None)] * 4),
        "batch-plain": _many("Offsets and bytes; no column but data.", "bytes", three),
        "batch-nulls": _many(
            "Keys and meta that are there for some; a null key is not an empty one. Two bytes of validity.",
            "bytes",
            [
                ("", key, b"d%d" % i, meta)
                for i, (key, meta) in enumerate(
                    [(b"k", None), (None, b'{"a":"1"}'), (b"", None), (b"kk", None), *[(None, None)] * 4, (b"l", None)]
                )
            ],
        ),
        "batch-dictionary-u8": _many(
            "Types in a dictionary of three, one of them empty.",
            "bson",
            [(name, None, b"\x05\0\0\0\0", None) for name in ("placed", "", "paid", "placed", "placed")],
        ),
        "batch-dictionary-u16": _many(
            "257 types: the codes are u16.", "bytes", [(name, None, b"", None) for name in [*types, "type-0"]]
        ),
        "batch-ticks": _many(
            "Ticks of their own, as sealing makes them of several batches.",
            "bytes",
            three,
            ticks=[TICKS, TICKS + 2, TICKS + 5_000_000],
        ),
        "batch-ticks-runs": _many(
            "Two runs of consecutive ticks, as sealing makes them of two appends of many.",
            "bytes",
            [("", None, b"%d" % i, None) for i in range(5)],
            ticks=[TICKS, TICKS + 1, TICKS + 2, TICKS + 5_000_000, TICKS + 5_000_001],
        ),
        "batch-zstd": _many(
            "Data and keys as zstd frames; the type is too short to be compressed.",
            "text",
            [("t", b"key" * 100, bytes([letter]) * 300, None) for letter in b"xyz"],
            zstd=True,
        ),
        "batch-producer": _producer_batch(),
        "batch-blob": _blob_batch(),
        "batch-lost": (
            batch.encode_lost(1000, TICKS, 250),
            _meaning("Offsets 1000 to 1249 were damaged and cut out.", 1000, TICKS, "bytes", ["lost"], None, 250),
        ),
    }


def _frames() -> dict[str, Vector]:
    whole, meaning = _many("", "bytes", [("", None, b"a", None), ("t", None, b"bb", None), ("", None, b"", None)])

    def vector(what: str, lo: int, hi: int, rows: list[int] | None) -> Vector:
        stored = frames.encode(3, whole, lo, hi, None if rows is None else np.array(rows, np.int64))
        meant = [meaning["events"][row] for row in rows or range(lo, hi)]
        return stored, {"what": what, "partition": 3, "content": "bytes", "lo": lo, "hi": hi, "events": meant}

    return {
        "frame": vector("All events of a batch.", 0, 3, None),
        "frame-range": vector("The last two events of a batch.", 1, 3, None),
        "frame-rows": vector("The first and the last event of a batch; the rows need no filling.", 0, 3, [0, 2]),
        "frame-row": vector("The last event of a batch, by its number; the rows are filled up.", 0, 3, [2]),
    }


def _one(content: Content, type: str, key: bytes | None, data: bytes, meta: bytes | None) -> Vector:
    what = "One event: every column is constant."
    stored = batch.encode_one(1000, TICKS, content, data, type.encode(), key, meta)
    return stored, _meaning(what, 1000, TICKS, content, [], [(TICKS, type, key, data, meta)], 1)


def _producer_batch() -> Vector:
    rows: Rows = [("", None, b"a", None), ("", None, b"b", None)]
    stamp = Producer("importer-é", 3, 17).stamp()
    columns = {DATA: Column.of([row[2] for row in rows]), PRODUCER: Column(2, stamp)}
    stored = batch.encode(1000, TICKS, 2, "bytes", columns)
    events = [(TICKS + i, *row) for i, row in enumerate(rows)]
    meaning = _meaning("The 17th request of a producer.", 1000, TICKS, "bytes", [], events, 2)
    return stored, meaning | {"producer": {"id": "importer-é", "epoch": 3, "seq": 17}}


def _many(
    what: str,
    content: Content,
    rows: Rows,
    *,
    ticks: list[int] | None = None,
    zstd: bool = False,
) -> Vector:
    def column(values: list[Any]) -> Column | None:
        return Column(len(values), values[0]) if len(set(values)) == 1 and values[0] else Column.of_optional(values)

    columns = {
        TYPE: Column.of_repeated([row[0].encode() for row in rows]),
        KEY: column([row[1] for row in rows]),
        DATA: column([row[2] for row in rows]) or Column.of([row[2] for row in rows]),
        META: column([row[3] for row in rows]),
    }
    given = None if ticks is None else np.array(ticks, np.int64)
    stored = batch.encode(1000, TICKS, len(rows), content, columns, ticks=given, zstd=zstd)
    times = ticks or [TICKS + i for i in range(len(rows))]
    events = [(tick, *row) for tick, row in zip(times, rows, strict=True)]
    return stored, _meaning(what, 1000, TICKS, content, [], events, len(rows))


def _blob_data() -> bytes:
    return bytes(range(256)) * 5  # 1,280 bytes


def _blob_crcs() -> np.ndarray[Any, np.dtype[np.uint32]]:
    data = _blob_data()
    return np.array([crc32c(data[at : at + 1024]) for at in range(0, len(data), 1024)], np.uint32)


def _blob_batch() -> Vector:
    crc = segment.table_crc(_blob_crcs())
    reference = batch.encode_blob_reference(1280, 1024, crc)
    stored = batch.encode_one(1000, TICKS, "bytes", reference, b"huge", None, None, batch.BLOB)
    what = "The event of blob.hex: its data is the size, the chunk bytes and the CRC of the table of CRCs."
    meaning = _meaning(what, 1000, TICKS, "bytes", ["blob"], [(TICKS, "huge", None, reference, None)], 1)
    return stored, meaning | {"blob": {"size": 1280, "chunk_bytes": 1024, "table_crc": f"{crc:08x}"}}


def _meaning(
    what: str,
    offset: int,
    ticks: int,
    content: str,
    flags: list[str],
    events: list[tuple[int, str, bytes | None, bytes, bytes | None]] | None,
    count: int,
) -> dict[str, Any]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else value.hex()

    meaning: dict[str, Any] = {"what": what, "base_offset": offset, "base_ticks": ticks, "count": count}
    meaning |= {"content": content, "flags": flags}
    if events is not None:
        meaning["events"] = [
            {
                "offset": offset + i,
                "ticks": tick,
                "type": type,
                "key": text(key),
                "data": text(data),
                "meta": text(meta),
            }
            for i, (tick, type, key, data, meta) in enumerate(events)
        ]
    return meaning


def _files() -> dict[str, Vector]:
    slots = {
        "slot 0": TailSlot(6, BOOT_ID, 81_920, 82_000, 8_064, 81_990, 7_064, TICKS, 3, tail.OPEN, 81_995, 4_096),
        "slot 1": TailSlot(
            7, BOOT_ID, 81_920, 82_001, 8_164, 82_001, 8_164, TICKS + 1, 3, tail.FROZEN_BY_SYNC, 82_001, 8_164
        ),
    }
    offsets, ticks, positions = (
        np.array(numbers, np.int64)
        for numbers in ([1000, 1010, 1500], [TICKS, TICKS + 500, TICKS + 900], [64, 4096, 8192])
    )
    index = Index(
        0xDEADBEEF,
        1000,
        1600,
        9000,
        offsets,
        ticks,
        positions,
        {b"placed": np.array([0, 2], np.int32), b"": np.array([1], np.int32)},
    )
    chosen = TopicSettings(segment_bytes=1_048_576, segment_age_ms=60_000, data_bytes_max=99, compression="zstd")
    kept = TopicSettings(
        retention_bytes=10**12,
        retention_segments=100,
        retention_age_ms=604_800_000,
        retention_consumers=True,
        retention_bytes_hard=2 * 10**12,
        overflow="refuse",
    )
    topics = {
        "topic": TopicRecord(name="orders", uuid=UUID, partitions=1),
        "topic-retention": TopicRecord(name="orders", uuid=UUID, partitions=2, settings=kept),
        "topic-settings": TopicRecord(name='Größe/"x"\t\u2028', uuid=UUID, partitions=7, settings=chosen),
    }
    remembered = {
        "silent": ProducerState(1, [ProducerAnswer(5, 900, TICKS, 2)]),
        "busy-é": ProducerState(2, [ProducerAnswer(1, 901, TICKS + 9, 1), ProducerAnswer(4, 910, TICKS + 20, 7)]),
    }
    entry = Entry(
        [
            JournalShare("orders", 0, LOG_UUID.hex(), 1000, 0xDEADBEEF, 64, 1000, 1001, TICKS, 8),
            JournalShare("stock", 3, LOG_UUID.hex(), 0, 1, 4096, 50, 52, TICKS + 1, 24),
        ],
        [JournalMove("billing/orders", LOG_UUID.hex(), 0, "00ff")],
    )
    crcs = _blob_crcs()
    return {
        "segment": _segment("The header of a segment that is appended to.", packed=False),
        "segment-packed": _segment("The header of a segment written by sealing.", packed=True),
        "tail": (
            tail.MAGIC + bytes(56) + b"".join(slot.encode() for slot in slots.values()),
            {"what": "A tail; slot 1 is the newest."}
            | {name: msgspec.structs.asdict(slot) | {"boot_id": slot.boot_id.hex()} for name, slot in slots.items()},
        ),
        "cursors": _cursors(),
        "blob": (
            _blob_data() + segment.encode_trailer(1280, 1024, crcs),
            {
                "what": "A blob file: 1,280 bytes of data (0 to 255, five times), in chunks of 1,024 for brevity.",
                "size": 1280,
                "chunk_bytes": 1024,
                "crcs": [f"{crc:08x}" for crc in crcs.tolist()],
                "table_crc": f"{segment.table_crc(crcs):08x}",
            },
        ),
        "index": (
            index.encode(),
            {
                "what": "The index of a segment of three batches with two types.",
                "file_id": index.file_id,
                "first_offset": 1000,
                "end_offset": 1600,
                "segment_bytes": 9000,
                "offsets": offsets.tolist(),
                "ticks": ticks.tolist(),
                "positions": positions.tolist(),
                "types": {"placed": [0, 2], "": [1]},
            },
        ),
        "producers": (
            producers.encode(LOG_UUID, 1000, remembered),
            {"what": "A snapshot of two producers.", "first_offset": 1000}
            | {id: msgspec.to_builtins(known) for id, known in remembered.items()},
        ),
        "journal": (
            journal.encode(7, entry, [b"12345678", b"abc" * 8]) + journal.encode(8, Entry([], []), []),
            {"what": "Two transactions, numbers 7 and 8; the second brings nothing."} | msgspec.to_builtins(entry),
        ),
        "index-keys": (
            msgspec.structs.replace(index, keys=_key_entries()).encode(),
            {
                "what": "The same with keys, on two pages: 'k0' to 'k1023', each in the batch of its number modulo 3, "
                "and 'k1' in batch 2 too.",
                "entries": 1025,
                "batches": {"k0": [0], "k1": [1, 2], "k1023": [0], "k1024": []},
            },
        ),
        "headwater-json": (
            settings.encode(LogSettings(uuid=UUID)),
            {"what": "headwater.json", "format": 1, "uuid": UUID},
        ),
        "archive-json": (
            settings.encode(ArchiveAddress(form=FORM, url=ARCHIVE)),
            {"what": "archive.json of a log directory", "format": 1, "form": FORM, "url": ARCHIVE},
        ),
        "archived-json": (
            settings.encode(_manifest()),
            {"what": "archived.json"} | msgspec.json.decode(msgspec.json.encode(_manifest())),
        ),
    } | {
        f"{name}-json": (
            settings.encode(topic),
            {
                "what": "topic.json"
                + {
                    "topic": "",
                    "topic-retention": " with every bound of retention",
                    "topic-settings": " with every setting but retention, and a name that needs escaping",
                }[name],
                "format": 1,
                "name": topic.name,
                "uuid": UUID,
                "partitions": topic.partitions,
                "settings": msgspec.to_builtins(topic.settings),
            },
        )
        for name, topic in topics.items()
    }


def _manifest() -> LocalManifest:
    """Two archived segments: the first has a huge event and a lost one, the second a snapshot of producers."""

    def file(name: str) -> ArchivedFile:
        return ArchivedFile(name, len(name), sha256(name.encode()).hexdigest())

    def named(start: int, end: int, suffix: str) -> ArchivedFile:
        return file(file_name(2, start, end, suffix))

    segment = ArchivedBlob(17, (70_000_000, 1_048_576, 0xDEADBEEF), file(blob_name(2, 17)))
    first = HistoryFile(
        0, 1000, 999, 0, TICKS, TICKS + 2000, TICKS + 2001, 64_000,
        named(0, 1000, "parquet"), named(0, 1000, "index"), None, [segment], [(999, 1000)],
    )  # fmt: skip
    second = HistoryFile(
        1000, 1500, 500, TICKS + 2001, TICKS + 2002, TICKS + 9000, TICKS + 9000, 32_000,
        named(1000, 1500, "parquet"), named(1000, 1500, "index"), named(1000, 1500, "producers"),
    )  # fmt: skip
    return LocalManifest(topic="orders", uuid=UUID, partition=2, parts=[first, second])


def _cursors() -> Vector:
    """A consumer of two partitions: one is held and has two slots, the other is free."""
    header = CursorsHeader(LOG_UUID, 2, bytes(range(16, 32)))
    owner = bytes(range(0x40, 0x50))
    older = CursorSlot(6, 1000, 3, owner, BOOT_ID, 5_000_000_000, 1004, 1000, 1)
    newer = CursorSlot(7, 1002, 3, owner, BOOT_ID, 6_000_000_000, 1010, 1002, 0)
    free = CursorSlot(1, 17)
    stored = bytearray(cursors.encode(header, BOOT_ID, [newer, free]))
    member = MemberRecord(owner, 6_000_000_000)
    for at, part in ((cursors.slot_at(0, 6), older.encode()), (cursors.MEMBERS_AT, member.encode())):
        stored[at : at + len(part)] = part

    def told(slot: CursorSlot) -> dict[str, Any]:
        return {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in msgspec.structs.asdict(slot).items()
        }

    return bytes(stored), {
        "what": "The cursors of a consumer; slot 1 of partition 0 is the newest, partition 1 was never held.",
        "topic_uuid": LOG_UUID.hex(),
        "partitions": 2,
        "boot_id": BOOT_ID.hex(),
        "members": [{"id": owner.hex(), "expiry_ns": member.expiry_ns}],
        "partition 0 slot 0": told(older),
        "partition 0 slot 1": told(newer),
        "partition 1 slot 1": told(free),
    }


def _key_entries() -> U64:
    pairs = [(b"k%d" % number, number % 3) for number in range(1024)] + [(b"k1", 2)]
    return np.sort(np.array([key_hash(key) << 32 | number for key, number in pairs], np.uint64))


def _segment(what: str, *, packed: bool) -> Vector:
    header = SegmentHeader(0xDEADBEEF, LOG_UUID, 1000, TICKS - 1, TICKS, packed)
    return header.encode(), {
        "what": what,
        "file_id": 0xDEADBEEF,
        "log_uuid": LOG_UUID.hex(),
        "first_offset": 1000,
        "previous_ticks": TICKS - 1,
        "begun_ticks": TICKS,
        "packed": packed,
    }


if __name__ == "__main__":
    main()

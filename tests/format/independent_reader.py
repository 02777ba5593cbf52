"""A reader of log directories written from docs/FORMAT.md alone: that page must suffice.

It shares no code with headwater. It reads everything at once, checks all that a reader must check, and raises
ValueError for what is damaged or unknown.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)  # noqa: PLW2901  (the usual way to make the table)
    TABLE.append(number)


class Event(NamedTuple):
    partition: int
    offset: int
    ticks: int
    id: UUID
    type: str
    key: bytes | None
    data: bytes
    content: str
    meta: bytes | None


def crc(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def read_settings(stored: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stored)
    expected = found.pop("crc")
    plain = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    check(f"{crc(plain):08x}" == expected, "wrong crc of settings")
    check(found["format"] == 1, "unknown format")
    return found


def directory_of(topic: str) -> str:
    safe = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
    name = "".join(chr(byte) if byte in safe else f"%{byte:02X}" for byte in topic.encode())
    name = "%2E" + name[1:] if name.startswith(".") else name
    return name if len(name) <= 200 else f"{name[:160]}%-{hashlib.sha256(topic.encode()).hexdigest()[:32]}"


def read_topic(data: Path, topic: str) -> list[list[Event]]:
    """The events of each partition."""
    read_settings((data / "headwater.json").read_bytes())
    directory = data / "topics" / directory_of(topic)
    settings = read_settings((directory / "topic.json").read_bytes())
    check(settings["name"] == topic, "another topic")
    uuid = UUID(settings["uuid"]).bytes
    return [
        read_partition(directory / str(n), n, hashlib.sha256(uuid + struct.pack("<I", n)).digest()[:16])
        for n in range(settings["partitions"])
    ]


def read_tail(stored: bytes) -> tuple[int, int]:
    """The first offset of the active segment, and the visible position in it."""
    check(stored[:8] == b"HWTAIL01" and len(stored) == 320, "no tail")
    slots = [stored[at : at + 128] for at in (64, 192)]
    valid = [slot for slot in slots if any(slot[:8]) and crc(slot[:124]) == struct.unpack("<I", slot[124:])[0]]
    newest = max(valid, key=lambda slot: int.from_bytes(slot[:8], "little"))
    segment, _, position = struct.unpack_from("<qqq", newest, 24)
    return segment, position


def read_cursor(stored: bytes, topic_uuid: bytes, partition: int) -> int:
    """The cursor of one partition in the file of a consumer."""
    magic, version, _, partitions, uuid = struct.unpack_from("<8sHHI16s", stored)
    check(magic == b"HWCURSR1" and crc(stored[:60]) == struct.unpack_from("<I", stored, 60)[0], "damaged header")
    check(version == 1 and uuid == topic_uuid and len(stored) == 4224 + 256 * partitions, "another consumer")
    slots = [stored[4224 + 256 * partition + 128 * i :][:128] for i in (0, 1)]
    valid = [slot for slot in slots if any(slot[:8]) and crc(slot[:124]) == struct.unpack("<I", slot[124:])[0]]
    newest = max(valid, key=lambda slot: int.from_bytes(slot[:8], "little"))
    cursor: int = struct.unpack_from("<q", newest, 8)[0]
    return cursor


def read_partition(path: Path, partition: int, uuid: bytes) -> list[Event]:
    active, visible = read_tail((path / "tail").read_bytes())
    node = int.from_bytes(uuid[:8], "big") & (1 << 62) - 1
    events: list[Event] = []
    expected, last = 0, 0
    for file in sorted(path.glob("*.log")):
        stored = file.read_bytes()
        magic, version, flags, _, log, first, previous = struct.unpack_from("<8sHHI16sqq", stored)
        check(magic == b"HWSEGMNT" and crc(stored[:60]) == struct.unpack_from("<I", stored, 60)[0], "damaged header")
        check(version == 1 and not flags & ~3, "unknown version or flag")
        check(log == uuid and first == expected == int(file.stem) and previous >= last, "another segment")
        at, end = 64, visible if first == active else len(stored)
        while at < end:
            size, lost, rows = read_batch(stored[at:end], expected)
            for i, (ticks, type, key, data, content, meta, is_blob) in enumerate(rows):
                blob = file.with_suffix(".blobs") / f"{expected + i:020d}.blob"
                whole = read_blob(blob.read_bytes(), data) if is_blob else data
                check(ticks > last, "ticks must grow")
                id = UUID(int=(ticks >> 12 << 16 | 6 << 12 | ticks & 0xFFF) << 64 | 2 << 62 | node)
                events.append(Event(partition, expected + i, ticks, id, type.decode(), key, whole, content, meta))
                last = ticks
            at, expected = at + size, expected + len(rows) + lost
    return events


def read_batch(stored: bytes, expected: int) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Size, number of lost events, and the rows of the batch that begins here."""
    header = struct.unpack_from("<4sIIIqqBBBB", stored)
    magic, header_crc, size, count, offset, base, version, flags, content, n = header
    check(magic == b"HWB1" and size % 8 == 0 and 36 + 12 * n <= size <= len(stored), "no batch")
    at = 36 + 12 * n
    columns = []
    for i in range(n):
        kind, encoding, _, length, column_crc = struct.unpack_from("<BBHII", stored, 36 + 12 * i)
        at += -at % (8 if kind == 1 else 4)
        columns.append((kind, encoding, at, at + length, column_crc))
        at += length
    starts = [column[2] for column in columns] + [size]
    check(crc(stored[8 : starts[0]]) == header_crc, "damaged header of a batch")
    check(version == 1 and not flags & ~3 and content < 4, "unknown version, flag or content")
    check(offset == expected and count > 0, "offsets are missing")
    check(struct.unpack_from("<I", stored, size - 4)[0] == size, "damaged end of a batch")
    values: dict[int, list[Any]] = {1: [base + i for i in range(count)], 2: [b""] * count}
    for i, (kind, encoding, start, end, column_crc) in enumerate(columns):
        check(crc(stored[start : starts[i + 1]]) == column_crc, f"damaged column {kind}")
        values[kind] = read_column(kind, encoding, stored[start:end], count)
    if flags & 2:
        return size, count, []
    check(values[1][0] == base, "ticks begin with the base ticks")
    contents = [("bytes", "text", "json", "bson")[content]] * count
    absent = [None] * count
    rows = zip(
        values[1],
        values[2],
        values.get(3, absent),
        values[4],
        contents,
        values.get(5, absent),
        [flags & 1] * count,
        strict=True,
    )
    return size, 0, list(rows)


def read_column(kind: int, encoding: int, stored: bytes, count: int) -> list[Any]:
    if encoding & 0x20:
        import zstandard

        stored = zstandard.ZstdDecompressor().decompress(stored)
    layout, nulls = encoding & 0xF, encoding & 0x10
    check(not encoding & 0xC0 and (not nulls or layout == 1), "unknown encoding")
    if kind == 1:
        check(encoding in (1, 2), "unknown encoding of ticks")
        if encoding == 2:
            k = len(stored) // 12
            ticks, starts = struct.unpack_from(f"<{k}q", stored), struct.unpack_from(f"<{k}I", stored, 8 * k)
            ends = [*starts[1:], count]
            return [t + i for t, a, b in zip(ticks, starts, ends, strict=True) for i in range(b - a)]
        return list(struct.unpack(f"<{count}q", stored))
    if layout == 0:
        return [stored] * count
    if layout == 2:
        check(kind == 2, "unknown encoding")
        (k,) = struct.unpack_from("<I", stored)
        offsets = struct.unpack_from(f"<{k + 1}i", stored, 4)
        codes = struct.unpack_from(f"<{count}{'B' if k <= 256 else 'H'}", stored, 8 + 4 * k)
        data = stored[8 + 4 * k + count * (1 if k <= 256 else 2) :]
        return [data[offsets[code] : offsets[code + 1]] for code in codes]
    check(layout == 1, "unknown encoding")
    at = -(-count // 8) if nulls else 0
    at += -at % 4
    offsets = struct.unpack_from(f"<{count + 1}i", stored, at)
    data = stored[at + 4 * count + 4 :]
    check(offsets[0] == 0 and offsets[-1] == len(data), "offsets do not fit")
    valid = [not nulls or stored[i // 8] >> i % 8 & 1 for i in range(count)]
    return [data[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(count)]


def read_frame(stored: bytes) -> tuple[int, list[tuple[Any, ...]]]:
    """The partition, and of each event that is meant its offset, and what `read_batch` tells of it."""
    magic, expected, size, partition, lo, hi, count, reserved = struct.unpack_from("<4sIIIIIII", stored)
    check(magic == b"HWF1", "no frame")
    rows = [] if count == 0xFFFFFFFF else list(struct.unpack_from(f"<{count}I", stored, 32))
    at = 32 + -(-4 * len(rows) // 8) * 8
    check(crc(stored[8:at]) == expected, "wrong crc of frame")
    check(reserved == 0, "unknown frame")
    check(at + size == len(stored), "wrong size of frame")
    (base,) = struct.unpack_from("<q", stored, at + 16)
    _, lost, events = read_batch(stored[at:], base)
    meant = rows or list(range(lo, hi))
    check(not lost and lo < hi <= len(events), "a frame does not fit its batch")
    check(meant == sorted(set(meant)) and lo <= meant[0] and meant[-1] < hi, "rows do not fit")
    return partition, [(base + row, *events[row]) for row in meant]


def read_producers(stored: bytes) -> dict[str, tuple[int, list[tuple[int, ...]]]]:
    """Epoch and answers of each producer."""
    magic, expected, count, _, _ = struct.unpack_from("<8sII16sq", stored)
    check(magic == b"HWPRODUC" and crc(stored[12:]) == expected, "damaged snapshot")
    at, found = 40, {}
    for _ in range(count):
        length, answers, epoch = struct.unpack_from("<HHI", stored, at)
        id = stored[at + 8 : at + 8 + length].decode()
        at += 8 + length
        found[id] = epoch, [struct.unpack_from("<QqqI", stored, at + 28 * n) for n in range(answers)]
        at += 28 * answers
    check(at == len(stored), "damaged snapshot")
    return found


def read_journal(stored: bytes) -> list[tuple[int, dict[str, Any], list[bytes]]]:
    """Number, table and bytes of each entry that is whole and follows the one before."""
    at = 0
    found: list[tuple[int, dict[str, Any], list[bytes]]] = []
    while stored[at : at + 8] == b"HWJOURN1":
        expected, table, size, number = struct.unpack_from("<IIQQ", stored, at + 8)
        end = at + 32 + table + size
        if crc(stored[at + 12 : end]) != expected or (found and number != found[-1][0] + 1):
            break
        meaning = json.loads(stored[at + 32 : at + 32 + table])
        at += 32 + table
        datas = []
        for share in meaning["shares"]:
            datas.append(stored[at : at + share["size"]])
            at += share["size"]
        found.append((number, meaning, datas))
    return found


def read_blob(stored: bytes, reference: bytes) -> bytes:
    size, chunk, table_crc = struct.unpack("<QII", reference)
    table, footer = stored[size:-32], stored[-32:]
    check(struct.unpack("<I", footer[28:])[0] == crc(footer[:28]), "damaged footer")
    check(struct.unpack("<8sQII", footer[:24]) == (b"HWBLOB01", size, chunk, table_crc), "another blob")
    check(crc(table) == table_crc, "damaged table")
    crcs = [crc(stored[at : min(at + chunk, size)]) for at in range(0, size, chunk)]
    check(struct.pack(f"<{len(crcs)}I", *crcs) == table, "damaged chunk")
    return stored[:size]


def read_index(stored: bytes) -> dict[int, bytes]:
    """The sections of an index by their kind, each verified."""
    magic, header_crc, n = struct.unpack_from("<8sII", stored)
    at = 48 + 16 * n
    check(magic == b"HWINDEX1" and crc(stored[12:at]) == header_crc, "damaged index")
    sections = {}
    for i in range(n):
        kind, section_crc, size = struct.unpack_from("<IIQ", stored, 48 + 16 * i)
        sections[kind] = stored[at : at + size]
        check(crc(sections[kind]) == section_crc, f"damaged section {kind}")
        at += size
    check(at == len(stored), "damaged: bytes are behind the index")
    return sections


def batches_of(key: bytes, sections: dict[int, bytes]) -> list[int]:
    """The numbers of the batches that may hold a key, by the pages that may hold its hash."""
    m, p = struct.unpack_from("<II", sections[5])
    first_hashes, crcs = (
        struct.unpack_from(f"<{p}I", sections[5], 8),
        struct.unpack_from(f"<{p}I", sections[5], 8 + 4 * p),
    )
    check(len(sections[6]) == 8 * m and p == -(-m // 1024), "damaged: the directory does not fit")
    hash = key_hash(key)
    start = max(0, sum(first < hash for first in first_hashes) - 1)
    found = []
    for number in range(start, sum(first <= hash for first in first_hashes)):
        page = sections[6][number * 8192 : (number + 1) * 8192]
        check(crc(page) == crcs[number], "damaged page")
        found += [entry & 0xFFFFFFFF for (entry,) in struct.iter_unpack("<Q", page) if entry >> 32 == hash]
    return found


def key_hash(key: bytes) -> int:
    h = (len(key) + 1) * 0x9E3779B97F4A7C15 % 2**64
    some = key[:1024] + bytes(-len(key[:1024]) % 8)
    for (word,) in struct.iter_unpack("<Q", some):
        h = (h ^ word) * 0xD6E8FEB86659FD93 % 2**64
        h ^= h >> 32
    return h * 0x9E3779B97F4A7C15 % 2**64 >> 32

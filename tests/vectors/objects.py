"""Golden objects of a bucket: one of events, the last of a deleted topic, a segment of two, and a record."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.bucket import records
from headwater.bucket.meta import Meta, ObjectSegment, Point
from headwater.format import batch, object
from headwater.format.batch import DATA, KEY, TYPE
from headwater.format.column import Column
from headwater.format.object import ObjectHead
from headwater.format.producers import ProducerAnswer, ProducerState

LOG = bytes(range(16)).hex()
TICKS = 139_271_094_615_000_000
NONCES = [(bytes([number]) * 16).hex() for number in range(1, 6)]


def vectors() -> dict[str, tuple[bytes, dict[str, Any]]]:
    """The bytes and the meaning of each, by its name."""
    first, second = _batch(40, TICKS, 3), _batch(43, TICKS + 100, 2)
    producers = object.told({"shop-1": ProducerState(2, [ProducerAnswer(7, 40, TICKS, 3)])})
    one = ObjectHead(
        log=LOG,
        base=40,
        end=43,
        nonce=NONCES[1],
        previous=NONCES[0],
        writer="0011223344556677",
        previous_ticks=TICKS - 5,
        ticks=TICKS + 2,
        size=len(first),
        blobs={},
        producers=producers,
    )
    closed = ObjectHead(log=LOG, base=45, end=45, nonce=NONCES[3], previous=NONCES[2], ticks=TICKS + 101, closed=True)
    whole = ObjectHead(
        log=LOG,
        base=40,
        end=45,
        nonce=NONCES[2],
        previous=NONCES[0],
        previous_ticks=TICKS - 5,
        ticks=TICKS + 101,
        producers=producers,
    )
    table = object.encode_table([(40, NONCES[1]), (43, NONCES[2])])
    segment = b"".join(object.encode_segment(whole, [first, second], table))
    meta = Meta(
        log=LOG,
        trim=Point(10, NONCES[4], TICKS - 900, []),
        compacted=Point(45, NONCES[2], TICKS + 101, producers),
        segments=[ObjectSegment(40, 45, NONCES[4], len(segment), TICKS - 5, TICKS + 101)],
    )
    return {
        "object": (object.encode(one, [first]), _meaning("an object of three events of a producer", one)),
        "object-closed": (
            object.encode(closed, []),
            _meaning("the last object of a deleted topic's log", closed),
        ),
        "object-segment": (
            segment,
            _meaning("two objects of events in one segment", object.decode(memoryview(segment))[0])
            | {"objects": {"40": NONCES[1], "43": NONCES[2]}},
        ),
        "record-meta": (
            records.encode(meta, NONCES[0]),
            {
                "what": "the record of a partition",
                "nonce": NONCES[0],
                "record": msgspec.json.decode(msgspec.json.encode(meta)),
            },
        ),
    }


def _batch(offset: int, ticks: int, count: int) -> bytes:
    columns = {
        TYPE: Column.of_repeated([b"placed"] * count),
        KEY: Column.of_optional([b"o-%d" % (offset + number) for number in range(count)]),
        DATA: Column.of([b"%d" % (offset + number) for number in range(count)]),
    }
    return batch.encode(offset, ticks, count, "bytes", columns)


def _meaning(what: str, head: ObjectHead) -> dict[str, Any]:
    return {"what": what, "head": msgspec.json.decode(msgspec.json.encode(head))}

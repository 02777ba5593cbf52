"""Producers: the stamp on a batch, the snapshot of what a log remembers (docs/FORMAT.md, "Producers"), and its rules.

`recall` finds the answer to a request that was committed before, `note` remembers one.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any

import msgspec
from crc32c import crc32c

from headwater.errors import Conflict, Corrupt, Fenced
from headwater.format.batch import STAMP_BYTES
from headwater.format.batch import decode as decode_batch
from headwater.limits import Limits

MAGIC = b"HWPRODUC"

_STAMP = Struct("<IIQ")
_HEADER = Struct("<8sII16sq")
_KNOWN = Struct("<HHI")
_ANSWER = Struct("<QqqI")
HEADER_BYTES = _HEADER.size

assert _STAMP.size == STAMP_BYTES


class Producer(msgspec.Struct, frozen=True, gc=False):
    """Who appends, so that a retry is no new request: `seq` grows; a newer `epoch` shuts out older ones."""

    id: str
    epoch: int
    seq: int

    def stamp(self) -> bytes:
        """Return the value of a batch's producer column."""
        return _STAMP.pack(self.epoch, 0, self.seq) + self.id.encode()


class ProducerAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request: where its events are."""

    seq: int
    offset: int
    ticks: int
    count: int


class ProducerState(msgspec.Struct, gc=False):
    """What a log remembers of one producer: its newest epoch, and the answers to its last requests, oldest first."""

    epoch: int
    answers: list[ProducerAnswer]


def read_stamp(stamp: bytes) -> Producer:
    epoch, _, seq = _STAMP.unpack_from(stamp)
    return Producer(stamp[STAMP_BYTES:].decode(), epoch, seq)


def stamped_bytes(batches: bytes) -> int:
    """Return the size of the first batch if it is stamped, else 0: of a transaction, only the first of a log may be."""
    first = decode_batch(memoryview(batches), 0, len(batches))
    return first.size if first.producer is not None else 0


def encode(log_uuid: bytes, base_offset: int, known: dict[str, ProducerState]) -> bytes:
    """Return the bytes of a snapshot: the producers in the order of their last requests, oldest first."""
    parts = []
    for id, producer in known.items():
        name = id.encode()
        parts.append(_KNOWN.pack(len(name), len(producer.answers), producer.epoch))
        parts.append(name)
        parts += [_ANSWER.pack(each.seq, each.offset, each.ticks, each.count) for each in producer.answers]
    head = _HEADER.pack(MAGIC, 0, len(known), log_uuid, base_offset)
    body = b"".join((head[12:], *parts))
    return MAGIC + crc32c(body).to_bytes(4, "little") + body


def decode(stored: bytes, log_uuid: bytes, base_offset: int) -> dict[str, ProducerState]:
    """Raises Corrupt when it is damaged, or of another log or offset."""
    try:
        magic, crc, count, uuid, base = _HEADER.unpack_from(stored)
        if magic != MAGIC or crc32c(stored[12:]) != crc or uuid != log_uuid or base != base_offset:
            raise Corrupt("a snapshot of producers is damaged", position=0, size=len(stored))
        known: dict[str, ProducerState] = {}
        at = HEADER_BYTES
        for _ in range(count):
            length, answers, epoch = _KNOWN.unpack_from(stored, at)
            at += _KNOWN.size
            id = stored[at : at + length].decode()
            at += length
            fields: Any = [_ANSWER.unpack_from(stored, at + n * _ANSWER.size) for n in range(answers)]
            at += answers * _ANSWER.size
            known[id] = ProducerState(epoch, [ProducerAnswer(*each) for each in fields])
    except (struct.error, UnicodeDecodeError) as error:
        raise Corrupt(f"a snapshot of producers does not parse: {error}", position=0, size=len(stored)) from error
    if at != len(stored):
        raise Corrupt("a snapshot of producers has bytes after its end", position=at, size=len(stored) - at)
    return known


def recall(known: dict[str, ProducerState], producer: Producer) -> ProducerAnswer | None:
    """Return the answer that a request got before, by what is known of all producers; raises Fenced and Conflict."""
    mine = known.get(producer.id)
    if mine is None:
        return None
    if producer.epoch < mine.epoch:
        raise Fenced(
            f"producer {producer.id!r} has epoch {producer.epoch}, but epoch {mine.epoch} is in use",
            hint="another instance has taken over: stop, or start again with a higher epoch",
            code="old_epoch",
            epoch=mine.epoch,
        )
    for answer in mine.answers:
        if answer.seq == producer.seq:
            return answer
    last = mine.answers[-1].seq
    if producer.seq < last:
        raise Conflict(
            f"producer {producer.id!r} is at seq {last}, and the response to seq {producer.seq} is no longer kept",
            hint="if you have the response, continue; if not, read the log to see whether the events are there",
            code="seq_forgotten",
            last_seq=last,
        )
    return None


def note(known: dict[str, ProducerState], producer: Producer, answer: ProducerAnswer, limits: Limits) -> None:
    """Remember the answer to a request; the one silent for longest is forgotten when there are too many."""
    mine = known.pop(producer.id, None) or ProducerState(producer.epoch, [])
    mine.epoch = producer.epoch
    if not mine.answers or mine.answers[-1].offset < answer.offset:  # else it was noted before an interruption
        mine.answers.append(answer)
    del mine.answers[: -limits.producer_answers_max]
    known[producer.id] = mine
    while len(known) > limits.producers_max:
        del known[next(iter(known))]

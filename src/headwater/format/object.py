"""An object of events in a bucket: a head, then batches (docs/BUCKET.md, "What is in the bucket")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

import msgspec
from crc32c import crc32c

from headwater.errors import Corrupt, Unsupported
from headwater.format.batch import peek
from headwater.format.producers import ProducerAnswer, ProducerState

MAGIC = b"HWOBJECT"
VERSION = 1
PREFIX_BYTES = 24
HEAD_BYTES_MAX = 16 * 1024 * 1024  # a damaged length must not ask for more memory than the largest head takes

TABLE_ENTRY_BYTES = 24

_PREFIX = Struct("<8sHHII4s")
_ENTRY = Struct("<Q16s")
_CRC = Struct("<I")

assert _ENTRY.size == TABLE_ENTRY_BYTES


class ProducerRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a log remembers of one producer: its newest epoch, and seq, offset, ticks and count of its last requests."""

    id: str
    epoch: int
    answers: list[tuple[int, int, int, int]]


class ObjectHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an object says of itself. `size` is that of its batches; `batches`: offset, position, ticks of each.

    `objects` says how many objects a segment was made of; their table is behind the batches.
    """

    log: str
    base: int
    end: int
    nonce: str
    previous: str = ""
    writer: str = ""
    previous_ticks: int = 0
    ticks: int = 0
    size: int = 0
    closed: bool = False
    blobs: dict[str, str] = {}
    producers: list[ProducerRecord] = []
    batches: list[tuple[int, int, int]] = []
    objects: int = 0


_decoder = msgspec.json.Decoder(ObjectHead)


def encode(head: ObjectHead, batches: Sequence[bytes]) -> bytes:
    """Return the bytes of an object; the head's `size` is that of the batches."""
    return b"".join((encode_head(head), *batches))


def encode_head(head: ObjectHead) -> bytes:
    """Return what stands before the batches."""
    text = msgspec.json.encode(head)
    text += b" " * (-len(text) & 7)
    return _PREFIX.pack(MAGIC, VERSION, 0, len(text), crc32c(text), bytes(4)) + text


def encode_segment(head: ObjectHead, batches: Sequence[bytes], table: bytes) -> list[bytes]:
    """Return the pieces of a segment; its head gets `size`, `batches` and `objects`. `table` is from `encode_table`.

    The positions of batches count from the start of the object, behind a head whose length depends on them.
    """
    start = 0
    while True:
        position, rows = start, []
        for batch in batches:
            _, _, offset, ticks = peek(memoryview(batch), 0)
            rows.append((offset, position, ticks))
            position += len(batch)
        full = msgspec.structs.replace(
            head, size=position - start, batches=rows, objects=len(table) // TABLE_ENTRY_BYTES
        )
        encoded = encode_head(full)
        if len(encoded) <= start:
            return [_padded(encoded, start), *batches, table + _CRC.pack(crc32c(table))]
        start = len(encoded)


def encode_table(objects: Iterable[tuple[int, str]]) -> bytes:
    """Return the first offset and the nonce of each object that a segment was made of."""
    return b"".join(_ENTRY.pack(base, bytes.fromhex(nonce)) for base, nonce in objects)


def decode_table(stored: memoryview, path: str = "") -> dict[int, str]:
    """Return the nonces by the first offsets, from all that is behind the batches; raises Corrupt."""
    table = stored[:-4]
    if len(stored) < 4 or len(table) % TABLE_ENTRY_BYTES or crc32c(table) != _CRC.unpack(stored[-4:])[0]:
        raise _damaged("has a damaged table of objects", path, len(stored))
    return {base: nonce.hex() for base, nonce in _ENTRY.iter_unpack(table)}


def decode(stored: memoryview, path: str = "") -> tuple[ObjectHead, int]:
    """Return the head, verified, and the position at which the batches begin.

    `stored` may be the beginning of an object. Raises Corrupt, also when it ends within the head.
    """
    if len(stored) < PREFIX_BYTES:
        raise _damaged("is cut off", path, len(stored))
    magic, version, flags, size, crc, _ = _PREFIX.unpack_from(stored)
    if magic != MAGIC:
        raise _damaged("does not begin like one", path, PREFIX_BYTES)
    if version != VERSION or flags:
        raise Unsupported(f"{path}: an object has version {version} and flags {flags:#x}", hint="upgrade headwater")
    text = stored[PREFIX_BYTES : PREFIX_BYTES + size]
    if len(text) != size or crc32c(text) != crc:
        raise _damaged("has a damaged head", path, PREFIX_BYTES + size)
    try:
        return _decoder.decode(text), PREFIX_BYTES + size
    except msgspec.DecodeError as error:
        raise Unsupported(
            f"{path}: the head of an object is not understood: {error}", hint="upgrade headwater"
        ) from error


def head_bytes(stored: memoryview) -> int:
    """Return how many bytes the head takes, as the first 24 bytes of an object claim; 0 if they are not of one."""
    if len(stored) < PREFIX_BYTES or bytes(stored[:8]) != MAGIC:
        return 0
    size: int = _PREFIX.unpack_from(stored)[3]
    return PREFIX_BYTES + min(size, HEAD_BYTES_MAX)


def told(known: dict[str, ProducerState]) -> list[ProducerRecord]:
    """Return what a head says of producers, the one that was silent longest first."""
    return [
        ProducerRecord(id, each.epoch, [(a.seq, a.offset, a.ticks, a.count) for a in each.answers])
        for id, each in known.items()
    ]


def known(told: Sequence[ProducerRecord]) -> dict[str, ProducerState]:
    """Return the state of producers from their records."""
    return {each.id: ProducerState(each.epoch, [ProducerAnswer(*answer) for answer in each.answers]) for each in told}


def _padded(encoded: bytes, size: int) -> bytes:
    """Return an encoded head with so many spaces behind it that it has this size."""
    text = encoded[PREFIX_BYTES:] + b" " * (size - len(encoded))
    return _PREFIX.pack(MAGIC, VERSION, 0, len(text), crc32c(text), bytes(4)) + text


def _damaged(reason: str, path: str, size: int) -> Corrupt:
    return Corrupt(
        f"an object {reason}: {path}, bytes 0 to {size}",
        hint="run 'headwater check'",
        path=path,
        position=0,
        size=size,
        reason=reason,
    )

"""An object of events in a bucket: a head, then batches (docs/BUCKET.md, "What is in the bucket")."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec
from crc32c import crc32c

from headwater.errors import Corrupt, Unsupported
from headwater.format.producers import Answer, Known

MAGIC = b"HWOBJECT"
VERSION = 1
PREFIX_BYTES = 24
HEAD_BYTES_MAX = 16 * 1024 * 1024  # a damaged length must not ask for more memory than the largest head takes

_PREFIX = Struct("<8sHHII4s")


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a log remembers of one producer: its newest epoch, and seq, offset, ticks and count of its last requests."""

    id: str
    epoch: int
    answers: list[tuple[int, int, int, int]]


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an object says of itself. `size` is that of its batches; `batches`: offset, position, ticks of each."""

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
    producers: list[Told] = []
    batches: list[tuple[int, int, int]] = []


_decoder = msgspec.json.Decoder(Head)


def encode(head: Head, batches: Sequence[bytes]) -> bytes:
    """The bytes of an object; the head's `size` is that of the batches."""
    text = msgspec.json.encode(head)
    text += b" " * (-len(text) & 7)
    prefix = _PREFIX.pack(MAGIC, VERSION, 0, len(text), crc32c(text), bytes(4))
    return b"".join((prefix, text, *batches))


def decode(stored: memoryview, path: str = "") -> tuple[Head, int]:
    """The head, verified, and the position at which the batches begin.

    `stored` may be the beginning of an object. Raises Corrupt, also when it ends within the head.
    """
    if len(stored) < PREFIX_BYTES:
        raise _damaged("is cut off", path, len(stored))
    magic, version, flags, size, crc, _ = _PREFIX.unpack_from(stored)
    if magic != MAGIC:
        raise _damaged("is not one", path, PREFIX_BYTES)
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
    """How many bytes the head takes, as the first 24 bytes of an object claim; 0 if they are not of one."""
    if len(stored) < PREFIX_BYTES or bytes(stored[:8]) != MAGIC:
        return 0
    size: int = _PREFIX.unpack_from(stored)[3]
    return PREFIX_BYTES + min(size, HEAD_BYTES_MAX)


def told(known: dict[str, Known]) -> list[Told]:
    """What a head says of producers, the one that was silent longest first."""
    return [
        Told(id, each.epoch, [(a.seq, a.offset, a.ticks, a.count) for a in each.answers]) for id, each in known.items()
    ]


def known(told: Sequence[Told]) -> dict[str, Known]:
    """The same, read back."""
    return {each.id: Known(each.epoch, [Answer(*answer) for answer in each.answers]) for each in told}


def _damaged(reason: str, path: str, size: int) -> Corrupt:
    return Corrupt(
        f"an object {reason}: {path}, bytes 0 to {size}",
        hint="run 'headwater check'",
        path=path,
        position=0,
        size=size,
        reason=reason,
    )

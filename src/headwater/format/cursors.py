"""The file of one consumer of one topic: cursors, leases and fences (docs/FORMAT.md, "Consumer")."""

from __future__ import annotations

from struct import Struct

import msgspec
from crc32c import crc32c

from headwater.errors import Corrupt, Unsupported
from headwater.limits import CONSUMER_MEMBERS_MAX

MAGIC = b"HWCURSR1"
VERSION = 1
HEADER_BYTES = 64
BUSY_AT, UNSYNCED_AT, BOOT_ID_AT, MEMBERS_AT = 64, 68, 80, 128
MEMBER_BYTES = 32
MEMBERS_BYTES = MEMBER_BYTES * CONSUMER_MEMBERS_MAX
SLOTS_AT = MEMBERS_AT + MEMBERS_BYTES
SLOT_BYTES = 128
PAIR_BYTES = 2 * SLOT_BYTES
NOBODY = bytes(16)

_HEADER = Struct("<8sHHI16s16s12s")
_WORDS = Struct("<II8s16s")
WORDS_BYTES = _WORDS.size
_MEMBER = Struct("<16sqI")
_SLOT = Struct("<QqQ16s16sqqqI40s")
_CRC = Struct("<I")
_RESERVED = bytes(40)


class CursorsHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 64 bytes, which never change."""

    topic_uuid: bytes
    partitions: int
    id: bytes = NOBODY  # random, new for each file: a consumer deleted and made again is another one

    def encode(self) -> bytes:
        head = _HEADER.pack(MAGIC, VERSION, 0, self.partitions, self.topic_uuid, self.id, bytes(12))
        return head + _CRC.pack(crc32c(head))

    @property
    def file_bytes(self) -> int:
        """Return how long the whole file is."""
        return SLOTS_AT + PAIR_BYTES * self.partitions


class Words(msgspec.Struct, frozen=True, gc=False):
    """The volatile words: what a crash of a process leaves behind, and a restart of the machine makes void."""

    busy: int
    unsynced: int
    boot_id: bytes


class MemberRecord(msgspec.Struct, frozen=True, gc=False):
    """A member that reads as this consumer, until `expiry_ns` of the monotonic clock."""

    id: bytes
    expiry_ns: int

    def encode(self) -> bytes:
        packed = _MEMBER.pack(self.id, self.expiry_ns, 0)
        return packed + _CRC.pack(crc32c(packed))


class CursorSlot(msgspec.Struct, frozen=True, gc=False):
    """The cursor of one partition, and its lease."""

    counter: int
    cursor: int
    fence: int = 0
    owner: bytes = NOBODY
    boot_id: bytes = NOBODY
    expiry_ns: int = 0
    reached: int = 0
    failing: int = 0
    failures: int = 0

    def encode(self) -> bytes:
        packed = _SLOT.pack(
            self.counter,
            self.cursor,
            self.fence,
            self.owner,
            self.boot_id,
            self.expiry_ns,
            self.reached,
            self.failing,
            self.failures,
            _RESERVED,
        )
        return packed + _CRC.pack(crc32c(packed))

    def leased(self, boot_id: bytes, now_ns: int) -> bool:
        """Return whether a member has the right to read the partition now."""
        return self.owner != NOBODY and self.boot_id == boot_id and now_ns < self.expiry_ns

    def failures_at(self, offset: int) -> int:
        """Return how often handling the event at an offset has failed, as far as is stored."""
        return self.failures if self.failing == offset else 0


def slot_at(partition: int, counter: int) -> int:
    """Return the position of the slot with this counter."""
    return SLOTS_AT + PAIR_BYTES * partition + SLOT_BYTES * (counter & 1)


def encode(header: CursorsHeader, boot_id: bytes, slots: list[CursorSlot]) -> bytes:
    """Return a whole new file, without members."""
    pairs = bytearray(PAIR_BYTES * header.partitions)
    for partition, slot in enumerate(slots):
        at = slot_at(partition, slot.counter) - SLOTS_AT
        pairs[at : at + SLOT_BYTES] = slot.encode()
    return b"".join((header.encode(), encode_words(Words(0, 0, boot_id)), bytes(MEMBERS_BYTES), pairs))


def decode_header(stored: bytes) -> CursorsHeader:
    """Raises Corrupt, and Unsupported for a version of the future."""
    if len(stored) < HEADER_BYTES:
        raise Corrupt("the header of a consumer is cut off", position=0, size=len(stored))
    head = stored[: HEADER_BYTES - 4]
    magic, version, _, partitions, topic_uuid, id, _ = _HEADER.unpack(head)
    if magic != MAGIC or _CRC.pack(crc32c(head)) != stored[HEADER_BYTES - 4 : HEADER_BYTES]:
        raise Corrupt("the header of a consumer is damaged", position=0, size=HEADER_BYTES)
    if version != VERSION:
        raise Unsupported(f"a consumer has version {version}", hint="upgrade headwater to use this log")
    return CursorsHeader(topic_uuid, partitions, id)


def encode_words(words: Words) -> bytes:
    """Return the volatile words with what is reserved behind them."""
    packed = _WORDS.pack(words.busy, words.unsynced, bytes(8), words.boot_id)
    return packed + bytes(MEMBERS_AT - BUSY_AT - len(packed))


def decode_words(stored: bytes) -> Words:
    """Return the volatile words, from position 64 of the file."""
    busy, unsynced, _, boot_id = _WORDS.unpack_from(stored)
    return Words(busy, unsynced, boot_id)


def decode_members(stored: bytes) -> list[MemberRecord | None]:
    """Return the table of members, from position 128 of the file; None where a record is free or damaged."""
    return [_decode_member(stored[at : at + MEMBER_BYTES]) for at in range(0, MEMBERS_BYTES, MEMBER_BYTES)]


def _decode_member(stored: bytes) -> MemberRecord | None:
    packed = stored[: MEMBER_BYTES - 4]
    if packed[:16] == NOBODY or _CRC.pack(crc32c(packed)) != stored[MEMBER_BYTES - 4 :]:
        return None
    return MemberRecord(*_MEMBER.unpack(packed)[:2])


def decode_slot(stored: bytes) -> CursorSlot | None:
    """Return the slot, or None if it was never written, is being written or is damaged."""
    packed = stored[: SLOT_BYTES - 4]
    if _CRC.pack(crc32c(packed)) != stored[SLOT_BYTES - 4 :]:
        return None
    fields = _SLOT.unpack(packed)
    return CursorSlot(*fields[:-1]) if fields[0] else None


def sound(pair: bytes) -> bool:
    """Return whether no slot of the two is damaged. One that is being written looks damaged for a moment."""
    slots = pair[:SLOT_BYTES], pair[SLOT_BYTES:PAIR_BYTES]
    return all(decode_slot(slot) is not None or not any(slot) for slot in slots)


def newest(pair: bytes) -> CursorSlot | None:
    """Return the valid slot with the higher counter of the two of a partition; None if there is none."""
    first, second = pair[:SLOT_BYTES], pair[SLOT_BYTES:PAIR_BYTES]
    if int.from_bytes(first[:8], "little") < int.from_bytes(second[:8], "little"):
        first, second = second, first
    return decode_slot(first) or decode_slot(second)

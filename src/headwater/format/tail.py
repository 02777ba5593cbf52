"""The slots of a tail file (docs/FORMAT.md, "Tail")."""

from __future__ import annotations

from struct import Struct

import msgspec
from crc32c import crc32c
from msgspec import structs

MAGIC = b"HWTAIL01"
SIZE = 320
WAKE_AT, WAITING_AT, CONTENDED_AT, BUSY_AT, RESERVED_AT = 8, 12, 16, 20, 24
SLOTS_AT = (64, 192)
SLOT_BYTES = 128

OPEN, FROZEN_BY_SYNC, FROZEN_BY_WRITE, DELETING, ROLLING = 0, 1, 2, 3, 4  # states; must stay

_SLOT = Struct("<Q16sqqqqqqQIqq24s")
_CRC = Struct("<I")
_RESERVED = bytes(24)


class TailSlot(msgspec.Struct, frozen=True, gc=False):
    """What is visible and durable, as of one publication."""

    counter: int
    boot_id: bytes
    segment: int
    visible_offset: int
    visible_position: int
    durable_offset: int
    durable_position: int
    last_ticks: int
    generation: int
    state: int
    safe_offset: int = 0  # what is below is durable here or in a journal; below `durable_offset` it says nothing
    producers_position: int = 0  # where the last batch with a producer ends in the active segment; 0 if none has one

    def encode(self) -> bytes:
        packed = _SLOT.pack(
            self.counter,
            self.boot_id,
            self.segment,
            self.visible_offset,
            self.visible_position,
            self.durable_offset,
            self.durable_position,
            self.last_ticks,
            self.generation,
            self.state,
            self.safe_offset,
            self.producers_position,
            _RESERVED,
        )
        return packed + _CRC.pack(crc32c(packed))

    @property
    def secured_offset(self) -> int:
        """Return the offset below which all survives a power loss: it is durable here, or in a journal."""
        return max(self.durable_offset, self.safe_offset)

    def then(self, state: int) -> TailSlot:
        """Return the next publication, with another state."""
        return structs.replace(self, counter=self.counter + 1, state=state)


def decode_slot(stored: bytes) -> TailSlot | None:
    """Return the slot, or None if it was never written, is being written or is damaged."""
    packed = stored[: SLOT_BYTES - 4]
    if _CRC.pack(crc32c(packed)) != stored[SLOT_BYTES - 4 :]:
        return None
    fields = _SLOT.unpack(packed)
    return TailSlot(*fields[:-1]) if fields[0] else None


def newest(stored: bytes) -> TailSlot | None:
    """Return the valid slot with the higher counter in the bytes of a tail file; None if there is none."""
    first, second = (stored[at : at + SLOT_BYTES] for at in SLOTS_AT)
    if int.from_bytes(first[:8], "little") < int.from_bytes(second[:8], "little"):
        first, second = second, first
    found = decode_slot(first)
    if found is not None:
        return found
    return decode_slot(second)


def sound(stored: bytes) -> bool:
    """Return whether magic, reserved bytes and each slot that was ever written are intact."""
    if len(stored) != SIZE or stored[:8] != MAGIC or any(stored[RESERVED_AT : SLOTS_AT[0]]):
        return False
    slots = [stored[at : at + SLOT_BYTES] for at in SLOTS_AT]
    return all(decode_slot(slot) is not None or not any(slot) for slot in slots)

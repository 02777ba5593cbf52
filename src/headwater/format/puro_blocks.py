"""Blocks and the other control messages in a file of Puro (docs/TRANSFER.md, "Control messages").

```text
block start  topic 02   u8 signal (1: committed), in sized blocks also u32, big-endian: the bytes before the block end
block end    topic 03   u32, big-endian: the bytes from the block start to here
tombstone    topic 00   the end of a segment
invalid      topic 01   a message that Puro gave up; its bytes mean nothing
```

Bytes only; a `BlockReader` belongs to one thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, get_args

from headwater.format import puro
from headwater.format.puro import BLOCK_END, BLOCK_START, TOMBSTONE, Messages

PuroVariant = Literal["messages", "blocks", "sized-blocks", "documented"]
VARIANTS: tuple[PuroVariant, ...] = get_args(PuroVariant)
SIZED_START_BYTES = 10  # of the message that begins a sized block

_SIZE = struct.Struct(">I")


@dataclass(slots=True)
class PuroFile:
    """What an import found in a file of Puro.

    `variant` is empty while no message was found. `unfinished_at` is the position of a block that was never
    committed: Puro reads no further, and so does an import.
    """

    variant: PuroVariant | Literal[""] = ""
    messages: int = 0
    control_messages: int = 0
    unfinished_at: int | None = None

    def __str__(self) -> str:
        if not self.variant:
            return "Puro file, empty"
        counts = f"{_count(self.messages, 'message')}, {_count(self.control_messages, 'control message')}"
        end = "" if self.unfinished_at is None else f", an unfinished block at byte {self.unfinished_at} left out"
        return f"Puro file, variant {self.variant}, {counts}{end}"


def encode_block(body: bytes | bytearray, *, sized: bool) -> bytes:
    """Messages as a committed block."""
    if sized:
        size = _SIZE.pack(SIZED_START_BYTES + len(body))
        start = puro.encode_control(BLOCK_START, b"\1" + size)
    else:
        start = puro.encode_control(BLOCK_START, b"\1")
        size = _SIZE.pack(len(start) + len(body))
    return b"".join((start, body, puro.encode_control(BLOCK_END, size)))


class BlockReader:
    """Follows the control messages of a file, and says which messages count.

    `problem` says what is wrong with the control message at `position`, or is empty.
    """

    def __init__(self) -> None:
        self.file = PuroFile()
        self.problem = ""
        self.position = 0
        self._open_at: int | None = None  # where the block begins that has not ended
        self._claimed: int | None = None  # the size that its beginning gives

    @property
    def ended(self) -> bool:
        """Return whether nothing further is to be read."""
        return bool(self.problem) or self.file.unfinished_at is not None

    def take(self, messages: Messages, at: int, checksum: puro.Checksum) -> Messages:
        """Return the messages of these that are events, in order, and up to where reading ends.

        `at`: where they begin.
        """
        file = self.file
        count = len(messages)
        for row, begin, topic, value in messages.controls():
            self.position = at + begin
            self._control(topic, value)
            if self.ended:
                count = row
                break
            file.control_messages += 1
        events = messages.events(count)
        file.messages += len(events)
        if checksum == "documented" and len(messages):
            file.variant = "documented"
        elif not file.variant and len(messages):
            file.variant = "messages"
        return events

    def end(self, position: int) -> None:
        """Note the end of the file, which is no place for a block to be open."""
        if self._open_at is not None and not self.ended:
            self.position, self.problem = position, f"the block that begins at byte {self._open_at} is cut off"

    def _control(self, topic: int, value: bytes) -> None:
        if topic == BLOCK_START:
            self._start(value)
        elif topic == BLOCK_END:
            size = None if self._open_at is None else self.position - self._open_at
            if size is None:
                self.problem = "a block ends that did not begin"
            elif value != _SIZE.pack(size) or self._claimed not in (None, size):
                self.problem = "the length of a block does not fit"
            self._open_at = self._claimed = None
        elif topic == TOMBSTONE and self._open_at is not None:
            self.problem = "a segment ends within a block"

    def _start(self, value: bytes) -> None:
        sized = len(value) == 1 + _SIZE.size
        if self._open_at is not None:
            self.problem = "a block begins within another"
        elif not (sized or len(value) == 1) or value[0] > 1:
            self.problem = "a block begins with something unknown"
        elif value[0] == 0:
            self.file.unfinished_at = self.position
        else:
            self._open_at = self.position
            self._claimed = _SIZE.unpack(value[1:])[0] if sized else None
        if not self.problem and self.file.variant != "sized-blocks":
            self.file.variant = "sized-blocks" if sized else "blocks"


def _count(many: int, noun: str) -> str:
    return f"{many:,} {noun}{'' if many == 1 else 's'}"

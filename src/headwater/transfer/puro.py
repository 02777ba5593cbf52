"""Puro messages out and in (format/puro.py and format/puro_blocks.py have their bytes)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, get_args

from headwater.errors import Corrupt, Invalid, TooLarge
from headwater.event import Event
from headwater.format import puro
from headwater.format.events import EventBatch
from headwater.format.puro_blocks import VARIANTS, BlockReader, PuroFile, PuroVariant, encode_block
from headwater.limits import PURO_KEY_BYTES_MAX, PURO_TOPIC_BYTES_MAX, PURO_VALUE_BYTES_MAX
from headwater.transfer.chunks import EventChunk, ImportChunk, ImportOptions
from headwater.transfer.files import Input, events_of, too_large

BLOCK_BYTES = 4 * 1024 * 1024

Report = Callable[[PuroFile], None]
"""Called once with what a file of Puro holds, when all of it was read."""


class MessageWriter:
    """Writes a message for each event: its topic, key and data, and nothing else of it."""

    def __init__(self, out: IO[bytes], variant: PuroVariant) -> None:
        if variant not in VARIANTS:
            raise Invalid(f"there is no variant {variant!r} of Puro", hint=f"variants are {', '.join(VARIANTS)}")
        self._out = out
        self._variant = variant

    def write(self, group: list[EventBatch]) -> None:
        events = [event for batch in group for event in events_of(batch)]
        topic = events[0].topic.encode()
        if len(topic) > PURO_TOPIC_BYTES_MAX:
            raise _too_long("a topic", len(topic), PURO_TOPIC_BYTES_MAX, events[0])
        keys = [event.key or b"" for event in events]
        values = [event.data or b"" for event in events]
        for event, key, value in zip(events, keys, values, strict=True):
            if len(value) > PURO_VALUE_BYTES_MAX:
                raise too_large(event, "puro_value_bytes_max", PURO_VALUE_BYTES_MAX)
            if len(key) > PURO_KEY_BYTES_MAX:
                raise _too_long("a key", len(key), PURO_KEY_BYTES_MAX, event)
        written = puro.encode(topic, keys, values, "documented" if self._variant == "documented" else "code")
        blocks = self._variant in ("blocks", "sized-blocks")
        self._out.write(encode_block(written, sized=self._variant == "sized-blocks") if blocks else written)

    def close(self) -> None:
        """Nothing ends a file of messages."""


def read(input: Input, wanted: ImportOptions, report: Report | None) -> Iterator[ImportChunk]:
    """The messages as events. Raises Corrupt with the position of one that is damaged or cut off, after the others.

    Which checksum a file has is known when its messages fit one and not the other.
    """
    if wanted.keep_times:
        raise Invalid("Puro messages have no times", hint="import them without keeping times")
    rest, position = b"", input.position
    checksums: tuple[puro.Checksum, ...] = get_args(puro.Checksum)
    blocks = BlockReader()
    while block := input.read(BLOCK_BYTES):
        buffer = rest + block
        found = {checksum: puro.decode(buffer, checksum) for checksum in checksums}
        most = max(messages.right for messages in found.values())
        checksums = tuple(checksum for checksum in checksums if found[checksum].right == most)
        messages = found[checksums[0]]
        events = blocks.take(messages, position, checksums[0])
        if len(events):
            yield _chunk(events, wanted)
        position += messages.consumed
        rest = buffer[messages.consumed :]
        if blocks.ended:
            break
        if messages.problem:
            raise _corrupt(messages.problem, input.name, position, len(rest), blocks.file)
    else:
        if rest:
            raise _corrupt("a message is cut off", input.name, position, len(rest), blocks.file)
        blocks.end(position)
    if blocks.problem:
        raise _corrupt(blocks.problem, input.name, blocks.position, input.position - blocks.position, blocks.file)
    if report is not None:
        report(blocks.file)


def _chunk(messages: puro.Messages, wanted: ImportOptions) -> EventChunk:
    keys: list[bytes | None] = [key or None for key in messages.all_keys()]
    topics: list[str | None] | None = None
    if wanted.by_topic:
        found = messages.all_topics()
        names = {name: _name(name) for name in set(found)}
        topics = [names[name] for name in found]
    return EventChunk(messages.all_values(), wanted.content or "bytes", topics, keys=keys if any(keys) else None)


def _name(topic: bytes) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"the topic {topic!r} of a message is not UTF-8", hint="name the topic to import to") from error


def _corrupt(reason: str, name: str, position: int, size: int, file: PuroFile) -> Corrupt:
    return Corrupt(
        f"{reason} in {name}, at byte {position}",
        path=name,
        position=position,
        size=size,
        reason=reason,
        variant=file.variant,
    )


def _too_long(what: str, size: int, maximum: int, event: Event) -> TooLarge:
    return TooLarge(
        f"{what} of event {event.partition}:{event.offset} has {size} bytes; in a Puro message the limit is {maximum}",
        hint="use another format",
        limit="puro_key_bytes_max" if what == "a key" else "puro_topic_bytes_max",
        maximum=maximum,
        size=size,
    )

"""Puro messages out and in (format/puro.py has their bytes)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from headwater.engine.transfer.chunks import Chunk, EventChunk, Wanted
from headwater.engine.transfer.files import Input
from headwater.engine.transfer.memory import events_of, too_large
from headwater.errors import Corrupt, Invalid, TooLarge
from headwater.event import Event
from headwater.format import puro
from headwater.format.events import EventBatch
from headwater.limits import PURO_KEY_BYTES_MAX, PURO_TOPIC_BYTES_MAX, PURO_VALUE_BYTES_MAX

BLOCK_BYTES = 4 * 1024 * 1024


class MessageWriter:
    """Writes a message for each event: its topic, key and data, and nothing else of it."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

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
        self._out.write(puro.encode(topic, keys, values))

    def close(self) -> None:
        """Nothing ends a file of messages."""


def read(input: Input, wanted: Wanted) -> Iterator[Chunk]:
    """The messages as events. Raises Corrupt with the position of one that is damaged or cut off, after the others."""
    if wanted.keep_times:
        raise Invalid("messages of Puro have no times", hint="import them without keeping times")
    rest, position = b"", input.position
    while block := input.read(BLOCK_BYTES):
        buffer = rest + block
        messages = puro.decode(buffer)
        if len(messages):
            yield _chunk(messages, wanted)
        position += messages.consumed
        rest = buffer[messages.consumed :]
        if messages.problem:
            raise _corrupt(messages.problem, input.name, position, len(rest))
    if rest:
        raise _corrupt("a message is cut off", input.name, position, len(rest))


def _chunk(messages: puro.Messages, wanted: Wanted) -> EventChunk:
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


def _corrupt(reason: str, name: str, position: int, size: int) -> Corrupt:
    return Corrupt(
        f"{reason} in {name}, at byte {position}",
        path=name,
        position=position,
        size=size,
        reason=reason,
    )


def _too_long(what: str, size: int, maximum: int, event: Event) -> TooLarge:
    return TooLarge(
        f"{what} of event {event.partition}:{event.offset} has {size} bytes, and in a message of Puro up to {maximum}",
        hint="use another format",
        limit="puro_key_bytes_max" if what == "a key" else "puro_topic_bytes_max",
        maximum=maximum,
        size=size,
    )

"""Events of a file on their way into a log, the options of an import, and the verbs that a transfer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from headwater.errors import Invalid
from headwater.event import Content
from headwater.format import given
from headwater.format.column import I64
from headwater.format.contents import CODES
from headwater.format.events import EventBatch
from headwater.info import TopicInfo
from headwater.limits import DEFAULTS
from headwater.requests import Append

T = TypeVar("T")

ORIGINAL = (
    "time",
    "partition",
    "offset",
)  # new in an import; keep_times keeps the old ones in meta: original_time …


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How to read a file. `content` applies where the file does not say what the data is."""

    content: Content | None = None
    keep_times: bool = False
    by_topic: bool = False  # whether it matters which topic an event names
    data_column: str | None = None
    key_column: str | None = None
    type_column: str | None = None


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """The destination of events. They are appended without a sync of their own."""

    log: TransferLog
    topic: str
    content: Content
    partition: int | None

    def append_one(
        self, data: bytes, type: str, key: bytes | None, meta: dict[str, str] | None, *, as_stored: bool = False
    ) -> None:
        """Append one event, of any size. With `as_stored`, data that does not match its content is accepted."""
        options: dict[str, Any] = {"content": self.content, "durability": "os", "partition": self.partition}
        try:
            self.log.append(self.topic, data, type=type, key=key, meta=meta, **options)
        except Invalid as error:
            if not as_stored or error.code not in CODES:
                raise
            event = given.encode_type(type), key, given.encode_meta(meta, DEFAULTS)
            self.log.backend.append(Append(self.topic, data, self.content, *event, self.partition, sync=False))


class ImportChunk(Protocol):
    """Events in the order of the file."""

    def __len__(self) -> int: ...

    def runs(self) -> Iterator[tuple[str | None, Content, ImportChunk]]:
        """Yield consecutive events of the same topic and content, which can be appended together."""
        ...

    def part(self, lo: int, hi: int) -> ImportChunk:
        """Return the events `lo` to `hi`."""
        ...

    def sizes(self) -> I64:
        """Return the number of bytes of each event's data."""
        ...

    def fits(self) -> bool:
        """Return whether one append accepts all of them."""
        ...

    def append(self, place: ImportTarget) -> None:
        """Append them together. Raises Invalid only if nothing was appended."""
        ...

    def append_alone(self, place: ImportTarget) -> None:
        """Append the only one."""
        ...


@dataclass(slots=True)
class EventChunk:
    """Events as lists. A value that is not a list applies to all of them."""

    data: list[bytes]
    content: Content | list[Content]
    topic: str | list[str | None] | None = None
    types: str | list[str] = ""
    keys: list[bytes | None] | None = None
    metas: list[dict[str, str] | None] | None = None
    as_stored: bool = False  # they were exported, and so were stored before

    def __len__(self) -> int:
        return len(self.data)

    def runs(self) -> Iterator[tuple[str | None, Content, ImportChunk]]:
        return runs(self, self.topic, self.content)

    def part(self, lo: int, hi: int) -> EventChunk:
        return EventChunk(
            self.data[lo:hi],
            _part(self.content, lo, hi),
            _part(self.topic, lo, hi),
            _part(self.types, lo, hi),
            _part(self.keys, lo, hi),
            _part(self.metas, lo, hi),
            self.as_stored,
        )

    def sizes(self) -> I64:
        return np.fromiter(map(len, self.data), np.int64, len(self.data))

    def fits(self) -> bool:
        return True

    def append(self, place: ImportTarget) -> None:
        place.log.append_many(
            place.topic,
            self.data,
            types=self.types,
            keys=self.keys,
            metas=self.metas,
            content=place.content,
            durability="os",
            partition=place.partition,
        )

    def append_alone(self, place: ImportTarget) -> None:
        type = self.types[0] if isinstance(self.types, list) else self.types
        key = self.keys[0] if self.keys else None
        meta = self.metas[0] if self.metas else None
        place.append_one(self.data[0], type, key, meta, as_stored=self.as_stored)


def runs(
    chunk: ImportChunk, topic: str | list[str | None] | None, content: Content | list[Content]
) -> Iterator[tuple[str | None, Content, ImportChunk]]:
    """Yield parts of a chunk in which all events have the same topic and content."""
    topics = topic if isinstance(topic, list) else [topic] * len(chunk)
    contents = content if isinstance(content, list) else [content] * len(chunk)
    if topics.count(topics[0]) == contents.count(contents[0]) == len(chunk):
        yield topics[0], contents[0], chunk
        return
    kinds = list(zip(topics, contents, strict=True))
    lo = 0
    while lo < len(kinds):
        hi = lo + 1
        while hi < len(kinds) and kinds[hi] == kinds[lo]:
            hi += 1
        yield *kinds[lo], chunk.part(lo, hi)
        lo = hi


def original(meta: dict[str, str] | None, **facts: object) -> dict[str, str]:
    """Return meta with the original time and place of an event; those of an earlier import are kept."""
    return {f"original_{name}": str(fact) for name, fact in facts.items()} | (meta or {})


def _part(values: T, lo: int, hi: int) -> T:
    return values[lo:hi] if isinstance(values, list) else values  # type: ignore[return-value]  # a list stays one


class TransferLog(Protocol):
    """The verbs that a transfer needs."""

    def describe(self, topic: str) -> TopicInfo: ...
    def sync(self, topic: str) -> None: ...
    @property
    def read_batches(self) -> Callable[..., Iterator[EventBatch]]: ...
    @property
    def append(self) -> Callable[..., object]: ...
    @property
    def backend(self) -> Any: ...
    @property
    def append_many(self) -> Callable[..., object]: ...
    @property
    def append_arrow(self) -> Callable[..., object]: ...

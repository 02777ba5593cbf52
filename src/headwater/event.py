"""The vocabulary: an event, the reference to one, and how ticks become times and ids.

Immutable values without I/O. Ticks are 100 ns since 1582-10-15 UTC, as in docs/FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import IO, Any, Literal, Protocol
from uuid import UUID

import msgspec

from headwater.errors import Invalid, Unsupported

Durability = Literal["fsync", "os"]
Content = Literal["bytes", "text", "json", "bson"]
CONTENTS: tuple[Content, ...] = ("bytes", "text", "json", "bson")  # by their number in the format; must stay

UNIX_EPOCH_TICKS = 122_192_928_000_000_000
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NODE_MASK = (1 << 62) - 1
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_decode_json = msgspec.json.Decoder().decode


def ticks_of(time: datetime) -> int:
    """Return the ticks of a time. A naive time is refused: it would mean something else on another machine."""
    if time.tzinfo is None:
        raise Invalid(f"time {time.isoformat()} has no time zone", hint="use datetime.now(UTC) or .astimezone()")
    delta = time - _UNIX_EPOCH
    return UNIX_EPOCH_TICKS + (delta.days * 86_400_000_000 + delta.seconds * 1_000_000 + delta.microseconds) * 10


def time_of(ticks: int) -> datetime:
    """Return the time of ticks, rounded down to microseconds."""
    return _UNIX_EPOCH + timedelta(microseconds=(ticks - UNIX_EPOCH_TICKS) // 10)


def id_of(ticks: int, node: int) -> UUID:
    """Return the UUIDv6 of an event: `ticks` in its 60 bits of time, the log's `node` in the other 62."""
    high = (ticks >> 12) << 16 | 0x6000 | (ticks & 0x0FFF)
    return UUID(int=high << 64 | 2 << 62 | node)


def id_text(ticks: int, node: int) -> str:
    """Return the id as text, several times as fast as by way of a UUID."""
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0x0FFF:03x}-{_node_text(node)}"


@lru_cache(maxsize=256)  # a log has one node
def _node_text(node: int) -> str:
    text = f"{2 << 62 | node:016x}"
    return f"{text[:4]}-{text[4:]}"


def ticks_and_node(id: UUID) -> tuple[int, int]:
    """Return the ticks and the log's node that an event's id was made of."""
    high, low = id.int >> 64, id.int & ((1 << 64) - 1)
    if id.version != 6 or low >> 62 != 2:
        raise Invalid(f"{id} is not an event's id", hint="ids of events are UUIDs of version 6")
    return (high >> 16) << 12 | (high & 0x0FFF), low & _NODE_MASK


class Blob(Protocol):
    """The data of a huge event, kept outside its batch. Safe to use from several threads."""

    size: int

    def chunks(self) -> Iterator[bytes]: ...


class Event(msgspec.Struct, frozen=True, gc=False):
    """One immutable fact. `data` is None only for a huge event: stream it with `chunks()` or `save()`."""

    topic: str
    partition: int
    offset: int
    ticks: int
    type: str
    key: bytes | None
    data: bytes | None
    content: Content
    node: int
    raw_meta: bytes | None = None
    blob: Blob | None = None

    @property
    def id(self) -> UUID:
        return id_of(self.ticks, self.node)

    @property
    def time(self) -> datetime:
        return time_of(self.ticks)

    @property
    def meta(self) -> dict[str, str]:
        """Return what the producer noted beside the data; empty if nothing."""
        return {} if self.raw_meta is None else _decode_meta(self.raw_meta)

    @property
    def size(self) -> int:
        """Return bytes of the data, also when it is not in memory."""
        return self.blob.size if self.blob is not None else len(self.data or b"")

    @property
    def value(self) -> Any:
        """Return the data as its content says: bytes, str, or what the JSON or BSON holds.

        It never depends on what the data looks like: bytes that are JSON stay bytes, and `json()` parses them.
        """
        data, content = self.data, self.content
        if data is None:
            data = b"".join(self.chunks())
        if content == "json":
            return _decode_json(data)
        if content == "text":
            return data.decode()
        if content == "bson":
            return _decode_bson(self, data)
        return data

    def json(self) -> Any:
        """Return what the data holds as JSON, whatever its content says; of BSON, its document.

        Raises Invalid with the code `bad_json` or `bad_bson` for other data.
        """
        data = b"".join(self.chunks()) if self.data is None else self.data
        if self.content == "bson":
            return _decode_bson(self, data)
        try:
            return _decode_json(data)
        except (ValueError, RecursionError) as error:
            what = f"is not JSON: {error}"
            raise Invalid(f"{_named(self)} {what}", hint=_HINT, code="bad_json", **_place(self)) from error

    def chunks(self) -> Iterator[bytes]:
        """Yield the data in verified pieces of at most 1 MiB, for any event, with bounded memory."""
        if self.data is None and self.blob is not None:
            yield from self.blob.chunks()
        elif self.data:
            yield self.data

    def save(self, file: IO[bytes]) -> int:
        """Write the data to an open binary file; returns the number of bytes."""
        return sum(file.write(chunk) for chunk in self.chunks())


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Where an appended event is, given once its `durability` is reached."""

    topic: str
    partition: int
    offset: int
    ticks: int
    node: int
    durability: Durability

    @property
    def id(self) -> UUID:
        return id_of(self.ticks, self.node)

    @property
    def time(self) -> datetime:
        return time_of(self.ticks)


class Run(msgspec.Struct, frozen=True, gc=False):
    """Events that were appended to one partition by one call: contiguous offsets and ticks."""

    partition: int
    node: int
    offset: int
    ticks: int
    count: int


class Refs(Sequence[Ref]):
    """The references of many appended events, in the order of the call; each is made when looked at."""

    def __init__(
        self, topic: str, durability: Durability, runs: Sequence[Run], rows: Sequence[Any] | None = None
    ) -> None:
        """`rows[i]` lists which events of the call run `i` holds; None means that the runs follow each other."""
        self.topic = topic
        self.durability = durability
        self.runs = tuple(runs)
        self._count = sum(run.count for run in self.runs)
        self._rows = rows
        self._place: list[tuple[Run, int]] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(index)
        run, i = self._locate(index)
        return Ref(self.topic, run.partition, run.offset + i, run.ticks + i, run.node, self.durability)

    def _locate(self, index: int) -> tuple[Run, int]:
        if self._rows is None:
            for run in self.runs:
                if index < run.count:
                    return run, index
                index -= run.count
        if self._place is None:
            places: list[Any] = [None] * self._count
            for run, rows in zip(self.runs, self._rows or (), strict=True):
                for i, row in enumerate(rows):
                    places[row] = (run, i)
            self._place = places
        return self._place[index]

    def __repr__(self) -> str:
        return f"<Refs {self.topic!r}: {self._count} events, durability={self.durability!r}>"


def _decode_bson(event: Event, data: bytes) -> Any:
    try:
        import bson
    except ImportError as error:
        raise Unsupported("reading BSON needs pymongo", hint="pip install 'headwater[bson]'") from error
    # A date beyond the years of Python stays a number: one of them must not keep a document from being read.
    options: Any = bson.CodecOptions(datetime_conversion=bson.DatetimeConversion.DATETIME_AUTO)
    try:
        return bson.decode(data, options)
    except (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
        what = f"is not BSON: {error}"
        raise Invalid(f"{_named(event)} {what}", hint=_HINT, code="bad_bson", **_place(event)) from error


_HINT = "its bytes are in event.data"


def _named(event: Event) -> str:
    return f"event {event.offset} of topic {event.topic!r}, partition {event.partition},"


def _place(event: Event) -> dict[str, Any]:
    return {"topic": event.topic, "partition": event.partition, "offset": event.offset}

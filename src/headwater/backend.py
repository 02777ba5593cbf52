"""`Backend`: the protocol of a place that keeps events, and of what a `Store` needs besides.

A directory, a bucket and a server implement `Backend`, each in a room of its own. They take requests that are checked
(`requests.py`) and answer with the vocabulary. What a place lacks is data, `Backend.lacks`: `Store` raises Unsupported
from it, and the table in docs/BACKENDS.md is made of it. Everything here is safe from any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from headwater.event import Event, Ref, Refs
from headwater.format.events import EventBatch
from headwater.format.producers import Producer
from headwater.format.settings import Replica, Retention, TopicSettings
from headwater.info import ConsumerInfo, DeletedSegment, Split, TopicInfo, ViewInfo
from headwater.limits import Limits
from headwater.position import Position, Positions
from headwater.protocols import AppendHandle, Binder, Consumer, Follow
from headwater.requests import Append, AppendMany, Consume, Drain, Read
from headwater.transaction import Transaction

Kind = Literal["directory", "bucket", "server"]


class Lack(NamedTuple):
    """A verb that a backend does not have: what cannot be done there, and what to do instead."""

    what: str  # as in: a bucket cannot …
    hint: str


class KnownProducers(NamedTuple):
    """The ids of the producers that a log remembers, and how many it remembers at most."""

    ids: Collection[str]
    most: int


class Backend(Protocol):
    """A place that keeps events: a directory, a bucket or a server."""

    kind: ClassVar[Kind]
    lacks: ClassVar[Mapping[str, Lack]]  # by the name of the verb

    @property
    def address(self) -> str:
        """Return where it is, as `headwater.open` takes it."""
        ...

    @property
    def uuid(self) -> str:
        """Return what identifies the log, wherever it is moved."""
        ...

    @property
    def limits(self) -> Limits:
        """Return what it accepts."""
        ...

    @property
    def archive_url(self) -> str | None:
        """Return where it is archived; None if it is not, or if that cannot be known from here."""
        ...

    @property
    def replica(self) -> Replica | None:
        """Return what it is a replica of, even after it was promoted; None if it never was one."""
        ...

    def create(self, topic: str, partitions: int, settings: TopicSettings) -> bool: ...
    def topics(self) -> list[str]: ...
    def describe(self, topic: str) -> TopicInfo: ...
    def delete(self, topic: str) -> None: ...
    def append(self, request: Append) -> Ref: ...
    def append_many(self, request: AppendMany) -> Refs: ...
    def append_later(self, request: Append) -> AppendHandle: ...
    def flush(self) -> None: ...
    def sync(self, topic: str) -> None: ...
    def producers(self, topic: str, partition: int) -> KnownProducers | None: ...
    def transaction(self, sync: bool | None, producer: Producer | None) -> Transaction: ...
    def read(self, request: Read) -> Iterator[Event]: ...
    def read_batches(self, request: Read) -> Iterator[EventBatch]: ...
    def follow(self, request: Read, timeout: float | None) -> Follow: ...
    def splits(
        self, topic: str, start: Positions, end: Positions, partition: int | None, split_bytes: int
    ) -> list[Split]: ...
    def version(self, topic: str, key: bytes, partition: int | None) -> int | None: ...
    def retain(
        self,
        topic: str,
        before: int | datetime | None,
        partition: int | None,
        dry_run: bool,
        changes: Retention,
    ) -> list[DeletedSegment]: ...
    def remember_archive(self, url: str) -> None: ...
    def close(self) -> None: ...


class DrainVisit(Protocol):
    """A visit to a consumer, as `drain` needs it."""

    def monotonic(self) -> float:
        """Return the seconds of the clock that `events` compares with."""

    def behind(self) -> bool:
        """Return whether events wait for the consumer."""

    def join(self) -> Consumer:
        """Join the consumer; closing it ends the visit."""

    def events(self, until_s: float) -> Iterator[Event]:
        """Yield the events that wait, after `join`. Ends when there are none, or at `until_s`."""


class ConsumerVerbs(Protocol):
    """The consumers of a store."""

    def join(self, request: Consume) -> Consumer: ...
    def visit(self, request: Drain) -> DrainVisit: ...
    def infos(self, topic: str | None) -> list[ConsumerInfo]: ...
    def seek(self, consumer: str, topic: str, at: Position, partition: int | None) -> dict[int, int]: ...
    def forget(self, consumer: str, topic: str) -> None: ...
    def replay(self, topic: str, consumer: str | None) -> int: ...


class ViewVerbs(Protocol):
    """The documents of a store, and what keeps them up to date."""

    def binder(self, name: str) -> Binder: ...
    def binders(self) -> list[str]: ...
    def views(self) -> list[ViewInfo]: ...
    def close(self) -> None: ...


class QueryVerbs(Protocol):
    """The queries of an application, where its server runs them."""

    def query(self, name: str, arguments: dict[str, Any]) -> Any: ...

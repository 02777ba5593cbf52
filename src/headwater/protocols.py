"""The types that the verbs of a `Store` return and a program holds on to: followers, consumers, binders.

These are the types to annotate with. Each backend has classes of its own that implement them; their docstrings say how
they differ, if they do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, overload

from headwater.document import Change, Document
from headwater.errors import within_memory
from headwater.event import Event, Ref, Refs
from headwater.info import BinderInfo
from headwater.position import Position

AtLeast = int | Ref | Event | Refs | Sequence[Ref | Event]
"""An offset or appended events, which a read of documents waits for."""

READ_TIMEOUT_S = 10.0  # how long such a read waits


class Follow(Iterator[Event], Protocol):
    """An endless read. Belongs to one thread; only `stop` may be called from others.

    Ends when `timeout` seconds pass without an event, when it is stopped, or when the store is closed. Raises NotFound
    when the topic is deleted. Events of one partition come in order; those of several partitions as they are found.
    """

    def stop(self) -> None:
        """End the iteration within a second; events that were not handed out are not lost."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@within_memory()
class Consumer(Iterator[Event], ABC):
    """One member of a named consumer. Close it, or use it in a `with` statement.

    Delivery is at least once: events that were handed out and not acked go to the next member. Iterating ends after
    `timeout` seconds without an event, and when the consumer or its store is stopped or closed; while other members
    hold all partitions, it waits. It belongs to one thread; acks and failures may come from any. If the `with` block
    raises, the event in hand has failed.
    """

    name: str
    topic: str

    @property
    @abstractmethod
    def id(self) -> str:
        """Return the id of this member: the owner of its leases. On a server, joining again gives it another one."""

    @property
    @abstractmethod
    def partitions(self) -> list[int]:
        """Return the partitions that it holds."""

    @property
    @abstractmethod
    def fences(self) -> dict[int, int]:
        """Return the fence of each partition that it holds. It grows with every owner: others can refuse older ones."""

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Return how many offsets were skipped because retention deleted them first, or their events are lost."""

    @overload
    def drain(self) -> Iterator[Event]: ...
    @overload
    def drain(self, handler: Callable[[Event], object]) -> int: ...
    def drain(self, handler: Callable[[Event], object] | None = None) -> Iterator[Event] | int:
        """Hand out what is there now, then end; with a `handler`, call it for each event and return how many it took.

        It waits for partitions that other members hold, or held when they died. An event is acked when the handler
        returns, and has failed if it raises; all acks are durable when this returns.
        """
        events = self._drain()
        if handler is None:
            return events
        handled = sum(self.handle(event, handler) for event in events)
        self.flush()
        return handled

    def handle(self, event: Event, handler: Callable[[Event], object]) -> bool:
        """Call `handler` with an event, and ack it: True. If the handler raises, the event has failed: False."""
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001  # any error is stored with the event
            failure = error
        else:
            self.ack(event)
            return True
        self.fail(event, failure)
        return False

    @abstractmethod
    def ack(self, event: Event | Iterable[Event], *more: Event) -> None:
        """Mark events as handled. Stored within `ack_ms`, on `flush` and on closing; over a network within twice that.

        The cursor is the lowest offset that is not acked. Acking again changes nothing. Raises Fenced if another member
        has the partition now, or the consumer was moved: the event is delivered again.
        """

    @abstractmethod
    def ack_to(self, at: Event | tuple[int, int]) -> None:
        """Mark all events up to and including one as handled: an event, or a partition and an offset."""

    @abstractmethod
    def fail(self, event: Event, error: object = "") -> bool:
        """Count a failure of an event. It is delivered again after a pause, before others of its partition: False.

        After `failures_max` it is moved to the topic `<topic>.dead` with the error, and acked: True.
        """

    @abstractmethod
    def failures(self, event: Event) -> int:
        """Return how often an event has failed so far, as far as this member knows."""

    @abstractmethod
    def flush(self) -> None:
        """Store all acks; they are durable when this returns. Raises Fenced if some came too late to be stored."""

    @abstractmethod
    def seek(self, at: Position, partition: int | None = None) -> dict[int, int]:
        """Move the consumer to a position, durably, in one partition or all that it holds; returns the new cursors.

        What was handed out before can no longer be acked. Raises Fenced if a partition is not held.
        """

    @abstractmethod
    def lag(self) -> dict[int, int]:
        """Return how many offsets each partition of the topic is ahead of the consumer, held here or not."""

    @abstractmethod
    def stop(self) -> None:
        """End the iteration soon, from any thread; what was handed out can still be acked."""

    @abstractmethod
    def close(self) -> None:
        """Store all acks and release the leases, durably. May be called twice.

        On a server, raises Unavailable if that cannot be reached; what was not stored is delivered again.
        """

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    @abstractmethod
    def _drain(self) -> Iterator[Event]:
        """Return the events that are there now, as `drain` hands them out."""


class AppendHandle(Protocol):
    """An append that is on its way. Safe from any thread."""

    def done(self) -> bool:
        """Tell whether it is durable, or has failed."""

    def result(self, timeout: float | None = None) -> Ref:
        """Wait until the event is durable and return where it is.

        Raises what kept it from being appended, and Unavailable if the time is over.
        """


class DocumentIterator(Iterator[Document], Protocol):
    """Documents that were found. Close it, or read it to its end."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Changes(Iterator[Change], Protocol):
    """Changes of documents, as they come. For one thread; only `stop` may be called from others."""

    @property
    def place(self) -> str:
        """Return where to go on after the last change that was given."""
        ...

    def stop(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Binder(Protocol):
    """A collection of documents. Safe from any thread; raises NotFound while no projection has made it.

    `at_least` has a read wait until the projections have passed what was appended: up to `timeout` seconds, then it
    raises Unavailable with the code `view_behind`, or at once with `projection_stopped`.
    """

    name: str

    def get(self, id: str, *, at_least: AtLeast | None = None, timeout: float = READ_TIMEOUT_S) -> Document | None:
        """Return a document; None if there is none."""

    def find(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
        fields: Sequence[str] | None = None,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> DocumentIterator:
        """Return the documents that match, as they are at this moment; each is read when it is asked for.

        By id, unless `sort` says otherwise: a path, with `-` before it for descending order, or a list of those.
        `fields` lists the only paths that are wanted. Close the iterator if you do not read it to its end. Raises
        Invalid for a bad query, TooLarge if too many documents would have to be sorted without an index.
        """

    def count(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> int:
        """Return how many documents match."""

    def explain(self, match: Mapping[str, Any] | None = None, *, sort: str | Sequence[str] = ()) -> str:
        """Return the plan of a query in a line: the index, or a scan."""

    def follow(self, *, after: str | None = None, timeout: float | None = None) -> Changes:
        """Return changes of documents, as they come, until `timeout` seconds bring none.

        Without `after` it begins with all documents that are there, with "latest" with what comes, else behind a place.
        Several changes of a document may be given as one. Every change has the place to go on from: nothing is lost
        then, but what was given last may be repeated. Raises NotFound; Invalid for what is no place.
        """

    def index(self, field: str) -> None:
        """Create an index over a field, durably; nothing happens if it is there.

        Projections wait meanwhile: for a million documents some ten seconds. Raises Invalid for what is no path of a
        field, TooLarge if there are too many.
        """

    def info(self) -> BinderInfo:
        """Return what the binder holds, and what fills it."""

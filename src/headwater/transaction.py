"""`Transaction`: appends and acks that are gathered as requests, and committed together by a backend.

The verbs are declared once, here. A backend gives each transaction a `Committer` of its own, which may keep what it
needs until the end: a directory and a bucket the topics that are open (log/log_committer.py), a client the request that
it sent (remote/committer.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

from headwater.errors import Closed, TooLarge, Unavailable, within_memory
from headwater.event import Event, Ref
from headwater.format.given import Data
from headwater.limits import Limits
from headwater.requests import Append, AppendMany, EventOptions, ManyOptions

Requests = Sequence[Append | AppendMany]
Acks = Mapping[object, list[Event]]
"""The events to ack, by the consumer that handed them out."""


class Committer(Protocol):
    """Commits one transaction; for one thread."""

    @property
    def limits(self) -> Limits: ...

    def check_open(self) -> None:
        """Raise Closed if the store was closed."""

    def admit(self, request: Append | AppendMany) -> None:
        """Raise what can be said against a request before it is committed, such as a missing partition."""

    def absorb(self, other: Any) -> None:
        """Take over what another committer of the same backend keeps of the requests that it admitted."""

    def holder(self, event: Event, consumer: object) -> object:
        """Return the consumer that acks an event: `consumer`, or the only one that holds it.

        Raises Invalid if there is none, Unsupported where a transaction cannot ack.
        """

    def commit(self, requests: Requests, acks: Acks) -> list[Ref]:
        """Do it all or nothing, durably; returns where the events are, in the order of the requests.

        Unavailable with a `producer` among its facts means: it may be done, and may be called again.
        """


@within_memory()
class Transaction:
    """Appends and acks that happen together or not at all; for one thread.

    Nothing is visible before `commit`, which the end of a `with` block calls, unless the block raises.
    """

    def __init__(self, committer: Committer) -> None:
        self.refs: list[Ref] = []
        """The places of the events, in the order of the appends, once it is committed."""
        self.requests: list[Append | AppendMany] = []
        """The appends that were gathered so far, for code that extends Headwater."""
        self._committer = committer
        self._acks: dict[object, list[Event]] = {}
        self._size = self._count = 0
        self._over = False

    def append(self, topic: str, data: Data, **options: Unpack[EventOptions]) -> None:
        """Append one event with the rest, with the options of `Store.append`.

        `expected_version` is the key's before the transaction. Raises TooLarge for data that would need a file of its
        own (on a server, `commit` does), and when the transaction outgrows its limits.
        """
        self._add(Append.of(topic, data, self._committer.limits, **options))

    def append_many(self, topic: str, data: Sequence[Data], **options: Unpack[ManyOptions]) -> None:
        """Append many events with the rest, as `Store.append_many` does; nothing if `data` is empty."""
        self._add(AppendMany.of_events(topic, data, self._committer.limits, **options))

    def add(self, request: Append | AppendMany) -> None:
        """Append what a request says with the rest; durability and producer are those of the transaction."""
        self._add(request)

    def ack(self, *events: Event, consumer: Any = None) -> None:
        """Mark events as handled with the rest; `consumer` is the one that handed them out, if several did.

        Raises Invalid if no consumer of this store holds an event, Unsupported in a bucket. `commit` raises Fenced if
        another member took over.
        """
        self._check()
        for event in events:
            self._acks.setdefault(self._committer.holder(event, consumer), []).append(event)

    def absorb(self, other: Transaction) -> None:
        """Do with the rest what another transaction, which is over then, was to do.

        Raises TooLarge if both together outgrow the limits; then neither has changed.
        """
        self._check()
        other._check()
        self._grow(other._size, other._count)
        self._committer.absorb(other._committer)
        self.requests += other.requests
        for consumer, events in other._acks.items():
            self._acks.setdefault(consumer, []).extend(events)
        other.discard()

    def commit(self) -> list[Ref]:
        """Commit, and return where the events are; durable when it returns.

        Raises Conflict if an expected version does not hold: nothing is done. If its producer's request was committed
        before, it does nothing, and returns the first answer. Over a network, Unavailable with the code
        `transaction_in_doubt` means that it may be done: called again, it finds out, and does it if it is not. So does
        another transaction with the same appends and acks under the error's `producer`.
        """
        self._check()
        self._over = True
        try:
            self.refs = self._committer.commit(self.requests, self._acks)
        except Unavailable as error:
            self._over = "producer" not in error.facts
            raise
        return self.refs

    @property
    def appended(self) -> int:
        """Return how many events it appends."""
        return self._count

    def discard(self) -> None:
        """End it; nothing of it is done."""
        self._over = True
        self.requests, self._acks = [], {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._over:
            self.commit()

    def _add(self, request: Append | AppendMany) -> None:
        self._check()
        if isinstance(request, AppendMany):
            if not request.count:
                return
            columns = [column for column in request.columns.values() if column is not None]
            self._committer.admit(request)
            self._grow(sum(column.bytes_of() for column in columns), request.count)
        else:
            self._committer.admit(request)
            assert isinstance(request.data, bytes), "no committer admits a stream"
            self._grow(len(request.data) + len(request.key or b"") + len(request.meta or b""), 1)
        self.requests.append(request)

    def _grow(self, size: int, count: int) -> None:
        size, count = self._size + size, self._count + count
        check_growth(size, count, self._committer.limits)
        self._size, self._count = size, count

    def _check(self) -> None:
        if self._over:
            raise Closed("the transaction has ended", hint="start another: hw.transaction()")
        self._committer.check_open()


def check_data(size: int, limits: Limits) -> None:
    """Raise TooLarge for data of one event that would need a file of its own."""
    if size > limits.blob_bytes_min:
        raise TooLarge(
            f"data has {size} bytes; in a transaction the limit is {limits.blob_bytes_min}",
            hint="append it first, then append a reference to it in the transaction",
            limit="blob_bytes_min",
            maximum=limits.blob_bytes_min,
        )


def check_growth(size: int, count: int, limits: Limits) -> None:
    """Raise TooLarge for more bytes of data, keys and meta, or more events, than one transaction may have."""
    if size > limits.transaction_bytes_max:
        raise _too_large("bytes", "transaction_bytes_max", limits.transaction_bytes_max)
    if count > limits.transaction_events_max:
        raise _too_large("events", "transaction_events_max", limits.transaction_events_max)


def _too_large(unit: str, limit: str, maximum: int) -> TooLarge:
    message, hint = f"a transaction may have at most {maximum} {unit}", "split it into several transactions"
    return TooLarge(message, hint=hint, limit=limit, maximum=maximum)

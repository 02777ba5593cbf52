"""The first argument of an application's code: `Views` for queries, `Context` for functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Unpack

from headwater.errors import Closed, Invalid
from headwater.event import Event
from headwater.format.given import Data
from headwater.protocols import Binder
from headwater.requests import EventOptions, ManyOptions, ReadOptions
from headwater.store import Store
from headwater.transaction import Transaction


class Views:
    """A read-only log, passed to named queries. Safe from any thread."""

    def __init__(self, hw: Store) -> None:
        self._hw = hw

    def binder(self, name: str) -> Binder:
        """Return the documents of a binder; reading it raises NotFound while no projection has made it."""
        return self._hw.binder(name)

    def read(self, topic: str, **options: Unpack[ReadOptions]) -> Iterator[Event]:
        """Return the events of a topic, with the options of `Store.read`."""
        return self._hw.read(topic, **options)

    def version(self, topic: str, key: bytes | str, *, partition: int | None = None) -> int | None:
        """Return the offset of the key's last event; None if there is none."""
        return self._hw.version(topic, key, partition=partition)


class Context(Views):
    """Passed to a function for one event, to append until it returns; only for the thread that it runs in.

    What earlier events of the same batch appended is committed before anything is read, and before a version is
    expected: a function sees, and is compared with, all that it has done for the events before.
    """

    def __init__(self, hw: Store, attempt: int, commit_earlier: Callable[[], None]) -> None:
        super().__init__(hw)
        self.attempt = attempt  # 1 for the first try of the event, 2 for the second, …
        self.alone = False  # whether its transaction must hold nothing else: a version was expected
        self._commit_earlier = commit_earlier
        self._thread = threading.get_ident()
        self._transaction: Transaction | None = None
        self._over = False

    def append(self, topic: str, data: Data, **options: Unpack[EventOptions]) -> None:
        """Append one event when the function returns, with the options of `Store.append`; nothing if it raises.

        An `expected_version` that does not hold by then is a failure: the function is called again for the event.
        """
        transaction = self._begun()
        if options.get("expected_version") is not None:
            self._commit_earlier()
            self.alone = True
        transaction.append(topic, data, **options)

    def append_many(self, topic: str, data: Sequence[Data], **options: Unpack[ManyOptions]) -> None:
        """Append many events of a topic when the function returns. If it raises, none of them is appended."""
        self._begun().append_many(topic, data, **options)

    def binder(self, name: str) -> Binder:
        self._before_reading()
        return super().binder(name)

    def read(self, topic: str, **options: Unpack[ReadOptions]) -> Iterator[Event]:
        self._before_reading()
        return super().read(topic, **options)

    def version(self, topic: str, key: bytes | str, *, partition: int | None = None) -> int | None:
        self._before_reading()
        return super().version(topic, key, partition=partition)

    def end(self) -> Transaction | None:
        """Refuse further appends: the function has returned or raised. Return what it appended; None if nothing."""
        self._over = True
        return self._transaction

    def _begun(self) -> Transaction:
        if self._over:
            raise Closed("append was called after the function returned", hint="append before it returns")
        if threading.get_ident() != self._thread:
            raise Invalid(
                "append was called in another thread than the function",
                hint="return the events from other threads, and append them in the function",
            )
        if self._transaction is None:
            self._transaction = self._hw.directory.transaction(None, None)
        return self._transaction

    def _before_reading(self) -> None:
        if not self._over and threading.get_ident() == self._thread:
            self._commit_earlier()

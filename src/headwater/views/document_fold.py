"""Folding events into the documents of a binder, inside of a transaction: what live projections and rebuilds share.

A `DocumentFold` belongs to one projection and one connection, and so to one thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from headwater.event import Event
from headwater.format.jsonl import holds_json
from headwater.info import ViewError
from headwater.limits import MIB, QUARANTINED_MAX
from headwater.views.app import Projection
from headwater.views.draft import Documents, Draft
from headwater.views.encoding import document_id, encode_error, view_error

LOOK_EVERY = 256  # events between two looks at the clock, at most
LOOK_S = 0.02  # and where they take longer than this, fewer
AHEAD_MAX = 4096  # events whose documents are loaded with one statement, at most
AHEAD_BYTES = 8 * MIB  # and where they have more than this, fewer

_event_key = attrgetter("key")


class Halt(Exception):  # it is no error of ours
    """A fold raised, and its projection is to stop at this event."""

    def __init__(self, error: ViewError) -> None:
        super().__init__(error.error)
        self.error = error


class DocumentFold:
    """The documents that one transaction changes for a projection: `begin`, `fold` as often as wanted, `write`."""

    def __init__(
        self, connection: sqlite3.Connection, projection: Projection, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """`stop` is asked now and then whether to end early."""
        self._stop = stop
        self._ahead = 16  # so many events' documents are loaded together
        self._group = 1  # so many events are folded between two looks at the clock
        self._connection = connection
        self._projection = projection
        self._draft = Draft(connection)
        self._documents = Documents(self._draft)
        self._key_of = key_function(projection)
        self._reset()

    def _reset(self) -> None:
        self.folded = 0
        self._skipped = 0
        self._failed: list[ViewError] = []

    def begin(self) -> None:
        """Begin, inside of a transaction that writes."""
        self._draft.begin()
        self._reset()

    def abandon(self) -> None:
        """Forget everything since `begin`, after the transaction failed."""
        self._draft.abandon()
        self._reset()

    def fold(self, events: Sequence[Event], until_s: float) -> int:
        """Fold events in their order, and return how many: not all if the time is over, it is to stop, or is `full`.

        Raises Halt if a fold raises and the projection is to stop: what came before that event is folded.
        """
        ids = self._ids(events)
        single = not self._projection.many
        loaded = done = 0
        now_s = time.monotonic()
        while done < len(events):
            end = done + self._group
            if single:
                if done >= loaded:
                    loaded = done + self._load_ahead(ids[done : done + AHEAD_MAX])
                end = min(end, loaded)
                self._fold_each(events[done:end], ids[done:end])
            else:
                self._fold_many(events[done:end])
            done = min(end, len(events))
            began_s, now_s = now_s, time.monotonic()
            self._group = min(self._group * 2, LOOK_EVERY) if now_s - began_s < LOOK_S else max(self._group // 2, 1)
            if now_s >= until_s or self._stop() or self.full:
                break
        return done

    def _load_ahead(self, ids: Sequence[str | None]) -> int:
        """Load the documents of the next events, as many as are not too large together; of how many events."""
        ahead = self._ahead
        heavy = self._draft.load(ids[:ahead]) > AHEAD_BYTES
        self._ahead = max(ahead // 4, 1) if heavy else min(ahead * 4, AHEAD_MAX)
        return ahead

    @property
    def full(self) -> bool:
        """Return whether so much is changed and remembered that it should be written."""
        return self._draft.full()

    def _fold_each(self, events: Sequence[Event], ids: list[str | None]) -> None:
        if len(ids) < len(events):  # the key of one of them raises
            for event in events:
                self._fold_one(event)
            return
        while events:
            done, error = self._draft.fold(self._projection.fold, events, ids)
            skipped = ids[:done].count(None)
            self._skipped += skipped
            self.folded += done - skipped
            if error is None:
                return
            self.fail(events[done], error)
            events, ids = events[done + 1 :], ids[done + 1 :]

    def _fold_one(self, event: Event) -> None:
        try:
            id = document_id(self._key_of(event))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever the user's code raises
            self.fail(event, error)
        else:
            self._draft.load((id,))
            self._fold_each((event,), [id])

    def _fold_many(self, events: Sequence[Event]) -> None:
        fold, documents = self._projection.fold, self._documents
        for event in events:
            try:
                fold(documents, event)
                documents.keep(event.offset)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever the user's code raises
                documents.drop()
                self.fail(event, error)
            else:
                self.folded += 1

    def fail(self, event: Event, error: BaseException | str) -> None:
        """Quarantine an event that cannot be folded, or raise Halt to stop the projection before it."""
        told = view_error(event, error)
        if self._projection.on_error == "stop":
            raise Halt(told)
        (before,) = self._connection.execute(
            "SELECT count(*) FROM quarantined WHERE projection = ?", (self._projection.name,)
        ).fetchone()
        if before + len(self._failed) >= QUARANTINED_MAX:
            raise Halt(told)
        self._failed.append(told)

    def write(self, reached: Mapping[int, int], *, missed: int = 0, rate: float | None = None) -> None:
        """Write the documents, the cursor of each partition, and the counters; the caller commits."""
        name, execute = self._projection.name, self._connection.execute
        self._draft.write()
        for partition, next in reached.items():
            execute("UPDATE cursors SET next = ? WHERE projection = ? AND partition = ?", (next, name, partition))
        for failed in self._failed:
            place = name, failed.partition, failed.offset, encode_error(failed)
            execute(
                'INSERT OR REPLACE INTO quarantined (projection, partition, "offset", error) VALUES (?, ?, ?, ?)', place
            )
        counts = self.folded, self._skipped, missed, len(self._failed), rate, int(time.time() * 1000), name
        execute(
            "UPDATE projections SET folded = folded + ?, skipped = skipped + ?, missed = missed + ?,"
            " errors = errors + ?, rate = coalesce(?, rate), changed_ms = ? WHERE name = ?",
            counts,
        )
        if self._failed:
            last = encode_error(self._failed[-1])
            execute("UPDATE projections SET error = ? WHERE name = ?", (last, name))

    def halt(self, error: ViewError) -> None:
        """Note that the projection has stopped, and why, after `write`; the caller commits."""
        values = encode_error(error), self._projection.name
        self._connection.execute(
            "UPDATE projections SET state = 'stopped', errors = errors + 1, error = ? WHERE name = ?", values
        )

    def _ids(self, events: Sequence[Event]) -> list[str | None]:
        """Return the ids of the documents of events, up to the first whose key raises."""
        if self._projection.many:
            return []
        ids: list[str | None] = []
        try:
            if self._projection.key is None:
                return [None if (key := event.key) is None else key.decode() for event in events]
            ids.extend(map(document_id, map(self._key_of, events)))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # it is raised again, and told, when the event has its turn
            return ids
        return ids


def _fields(event: Event) -> Any:
    """Return the data as JSON, also of bytes and text that are a JSON object; None for others, which have no fields."""
    if event.content in ("json", "bson"):
        return event.value
    data = b"".join(event.chunks()) if event.data is None else event.data
    return event.json() if holds_json(data) else None


def key_function(projection: Projection) -> Callable[[Event], Any]:
    key = projection.key
    if key is None:
        return _event_key
    if callable(key):
        return key
    path = key.split(".")

    def find(event: Event) -> Any:
        value = _fields(event)
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    return find

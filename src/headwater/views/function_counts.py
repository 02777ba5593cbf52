"""The counters of functions, kept in `functions.sqlite`, so that another process can read them.

The counts serve people, and nothing depends on them: they are written about once a second, without waiting for the
disk, and what cannot be written is written later, or lost with the process. Where a function is, its consumer knows.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from headwater.errors import HeadwaterError, NotFound
from headwater.event import Event
from headwater.info import ConsumerInfo, ViewError, ViewInfo, ViewPartition
from headwater.store import Store
from headwater.views import database
from headwater.views.app import Function
from headwater.views.encoding import decode_error, encode_error, view_error

FILE = "functions.sqlite"
WRITE_S = 1.0  # how often, at most, counts are written, but for errors
RATE_S = 5.0  # a rate that is older says nothing about now

_COUNT = """
INSERT INTO functions (name, topic, handled, appended, failed, aside, missed, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET topic = excluded.topic, handled = handled + excluded.handled,
    appended = appended + excluded.appended, failed = failed + excluded.failed, aside = aside + excluded.aside,
    missed = missed + excluded.missed, error = coalesce(excluded.error, error)
"""


class FunctionTally:
    """What one function has done in this process since it was last written. For one thread; raises nothing."""

    def __init__(self, hw: Store, function: Function) -> None:
        self._path = hw.directory.path / FILE
        self._clock = hw.directory.clock
        self._name = function.name
        self._topic = function.topic
        self._member = f"{os.getpid()}.{self._clock.random_bytes(4).hex()}"
        self._connection: sqlite3.Connection | None = None
        self._written_s = self._clock.monotonic()
        self._handled = self._appended = self._failed = self._aside = self._missed = 0
        self._error: ViewError | None = None

    def handled(self, events: int, appended: int) -> None:
        """Count events that are finished, and what they appended."""
        self._handled += events
        self._appended += appended

    def missed(self, events: int) -> None:
        """Count events that retention took before they were handled."""
        self._missed += events

    def failed(self, event: Event, error: BaseException) -> None:
        """Count a failure, and keep why."""
        self._failed += 1
        self._error = view_error(event, error)

    def set_aside(self, event: Event, error: object) -> None:
        """Count an event that was given up. One that ended its process never came to tell why."""
        self._aside += 1
        if not isinstance(error, BaseException):
            self._error = view_error(event, error)

    def write_if_due(self) -> None:
        """Write, if something was counted, and the last time is long enough ago."""
        if self._clock.monotonic() >= self._written_s + WRITE_S and (self._handled or self._aside or self._missed):
            self.write()

    def write(self) -> None:
        """Add all that was counted to what is stored; what cannot be written now is kept for the next time."""
        now_s = self._clock.monotonic()
        rate = self._handled / max(now_s - self._written_s, WRITE_S)
        self._written_s = now_s
        try:
            with database.translated(self._path):
                if self._connection is None:
                    self._connection = database.connect_counts(self._path, create=True)
                with database.writing(self._connection) as connection:
                    self._store(connection, rate)
        except HeadwaterError:
            self.close()
            return
        self._handled = self._appended = self._failed = self._aside = self._missed = 0
        self._error = None

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _store(self, connection: sqlite3.Connection, rate: float) -> None:
        counts = self._handled, self._appended, self._failed, self._aside, self._missed
        error = None if self._error is None else encode_error(self._error)
        connection.execute(_COUNT, (self._name, self._topic, *counts, error))
        now_ms = _ms(self._clock.ticks())
        connection.execute("DELETE FROM rates WHERE changed_ms < ?", (now_ms - int(RATE_S * 1000),))
        connection.execute(
            "INSERT OR REPLACE INTO rates (name, member, rate, changed_ms) VALUES (?, ?, ?, ?)",
            (self._name, self._member, rate, now_ms),
        )


def function_infos(hw: Store) -> list[ViewInfo]:
    """Return all functions that have run here, by name; empty if there are none.

    One whose consumer was forgotten is left out.
    """
    consumers: dict[str, list[ConsumerInfo] | None] = {}
    infos = []
    for name, topic, handled, failed, aside, missed, error, rate in _rows(hw):
        if topic not in consumers:
            try:
                consumers[topic] = hw.consumers(topic)
            except HeadwaterError:
                consumers[topic] = None  # it waits for the topic to be made, or the topic is damaged
        found = consumers[topic]
        ours = [each for each in found or () if each.name == f"function.{name}"]
        if not ours and found is not None:
            continue
        partitions = [ViewPartition(each.partition, each.cursor, each.end, each.lag, each.owner) for each in ours]
        infos.append(
            ViewInfo(
                kind="function",
                name=name,
                topic=topic,
                binder=None,
                version=1,
                state="running" if any(each.owner for each in ours) else "idle",
                lag=sum(each.lag for each in ours),
                events=handled,
                rate=rate,
                skipped=0,
                missed=missed,
                errors=failed,
                aside=aside,
                error=decode_error(error),
                partitions=partitions,
            )
        )
    return infos


def _rows(hw: Store) -> list[tuple[str, str, int, int, int, int, str | None, float]]:
    path: Path = hw.directory.path / FILE
    since_ms = _ms(hw.directory.clock.ticks()) - int(RATE_S * 1000)
    try:
        with database.translated(path), contextlib.closing(database.connect_counts(path)) as connection:
            return connection.execute(
                "SELECT name, topic, handled, failed, aside, missed, error, (SELECT total(rate) FROM rates"
                " WHERE rates.name = functions.name AND changed_ms >= ?) FROM functions ORDER BY name",
                (since_ms,),
            ).fetchall()
    except NotFound:
        return []


def _ms(ticks: int) -> int:
    return ticks // 10_000

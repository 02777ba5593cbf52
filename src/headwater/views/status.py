"""The state of projections and functions: progress, owners and errors.

Everything is read from files, so that any process can report it; nothing is changed. An unreadable file is reported
in its place, and hides nothing else. Safe from any thread.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Literal, NamedTuple

from headwater.errors import HeadwaterError, NotFound
from headwater.event import time_of
from headwater.info import ViewError, ViewInfo, ViewPartition
from headwater.store import Store
from headwater.views import database, function_counts, registry
from headwater.views.encoding import decode_error
from headwater.views.files import Files
from headwater.views.registry import Row, TopicBounds

RATE_S = 5.0  # a rate that is older says nothing about now


class _ProjectionRow(NamedTuple):
    """A projection as recorded in a binder's file."""

    row: Row
    cursors: dict[int, int]
    quarantined: int


def views(hw: Store) -> list[ViewInfo]:
    """Return all projections, by binder and name, and all functions; empty if there are none.

    A binder that cannot be read is listed in state `unreadable`, with its name and the reason.
    """
    return [*projections(hw), *functions(hw)]


def functions(hw: Store) -> list[ViewInfo]:
    """Return all functions that have run here, by name."""
    try:
        return function_counts.function_infos(hw)
    except HeadwaterError as error:
        return [_unreadable(hw, "function", function_counts.FILE, None, error)]


def projections(hw: Store) -> list[ViewInfo]:
    """Return all projections that binders know of."""
    files, topics = Files.of(hw), _Topics(hw)
    found: list[ViewInfo] = []
    for binder in files.names():
        try:
            with _reading(files, binder) as connection:
                known = _known(connection)
            building = files.is_building(binder)
        except NotFound:
            continue  # it is gone meanwhile
        except HeadwaterError as error:
            found.append(_unreadable(hw, "projection", binder, binder, error))
        else:
            found += [_info(hw, binder, each, topics, building) for each in known]
    return found


def quarantined(hw: Store, projection: str) -> list[ViewError]:
    """Return the events that a projection has passed over, by partition and offset; empty if there are none.

    Raises NotFound if no binder knows such a projection.
    """
    files = Files.of(hw)
    found: list[ViewError] = []
    for binder in _binders_of(files, projection):
        with _reading(files, binder) as connection:
            rows = connection.execute(
                'SELECT error FROM quarantined WHERE projection = ? ORDER BY partition, "offset"', (projection,)
            ).fetchall()
        found += [error for (text,) in rows if (error := decode_error(text)) is not None]
    return found


def resume(hw: Store, projection: str) -> list[str]:
    """Resume a projection that an error has stopped, durably; return the names of the binders that it fills.

    Nothing changes for one that runs. Raises NotFound if no binder knows such a projection.
    """
    files = Files.of(hw)
    binders = _binders_of(files, projection)
    for binder in binders:
        file = files.current(binder)
        with (
            database.translated(file),
            contextlib.closing(database.connect(file)) as connection,
            database.writing(connection),
        ):
            registry.resume(connection, projection)
    return binders


class _Topics:
    """Topics and who reads them, each looked at once; nothing of those that are not there, or cannot be read."""

    def __init__(self, hw: Store) -> None:
        self._hw = hw
        self._found: dict[str, tuple[TopicBounds | None, dict[tuple[str, int], str]]] = {}

    def find(self, name: str) -> tuple[TopicBounds | None, dict[tuple[str, int], str]]:
        """Return the topic, and the owners of its partitions by consumer and partition."""
        if name not in self._found:
            topic, owners = None, {}
            with contextlib.suppress(HeadwaterError):
                topic = registry.topic_of(self._hw, name)
                owners = {(c.name, c.partition): c.owner for c in self._hw.consumers(name) if c.owner is not None}
            self._found[name] = topic, owners
        return self._found[name]


@contextlib.contextmanager
def _reading(files: Files, binder: str) -> Iterator[sqlite3.Connection]:
    """Return a look into a binder's file, at one moment."""
    file = files.current(binder)
    with (
        database.translated(file),
        contextlib.closing(database.connect(file)) as connection,
        database.reading(connection),
    ):
        yield connection


def _known(connection: sqlite3.Connection) -> list[_ProjectionRow]:
    counts = dict(connection.execute("SELECT projection, count(*) FROM quarantined GROUP BY projection").fetchall())
    return [
        _ProjectionRow(row, registry.cursors(connection, row.name), counts.get(row.name, 0))
        for row in registry.rows(connection)
    ]


def _binders_of(files: Files, projection: str) -> list[str]:
    """Return the binders that know a projection. One that cannot be read raises only if no other knows it."""
    found, trouble = [], None
    for binder in files.names():
        try:
            with _reading(files, binder) as connection:
                if registry.find(connection, projection) is not None:
                    found.append(binder)
        except HeadwaterError as error:
            trouble = error
    if not found:
        if trouble is not None and not isinstance(trouble, NotFound):
            raise trouble
        raise NotFound(
            f"no such projection: {projection!r}", hint="'headwater views status' lists them", code="no_such_view"
        )
    return found


def _info(hw: Store, binder: str, known: _ProjectionRow, topics: _Topics, building: bool) -> ViewInfo:
    row = known.row
    topic, owners = topics.find(row.topic)
    partitions = [
        ViewPartition(number, next, end, max(0, end - next), owners.get((f"projection.{row.name}", number)))
        for number, next, end in _places(known, topic)
    ]
    state = "idle"
    if row.state == "stopped":
        state = "stopped"
    elif building:
        state = "rebuilding"
    elif any(partition.owner for partition in partitions):
        state = "running"
    age_s = time_of(hw.directory.clock.ticks()).timestamp() - row.changed_ms / 1000
    return ViewInfo(
        kind="projection",
        name=row.name,
        topic=row.topic,
        binder=binder,
        version=row.version,
        state=state,
        lag=sum(partition.lag for partition in partitions),
        events=row.folded,
        rate=row.rate if age_s <= RATE_S else 0.0,
        skipped=row.skipped,
        missed=row.missed,
        errors=row.errors,
        aside=known.quarantined,
        error=row.error,
        partitions=partitions,
    )


def _places(known: _ProjectionRow, topic: TopicBounds | None) -> list[tuple[int, int, int]]:
    """Return partition, next offset and end: nothing is left of a deleted topic, everything of a recreated one."""
    if topic is None:
        return [(number, next, next) for number, next in known.cursors.items()]
    ours = known.cursors if topic.uuid == known.row.topic_uuid else {}
    return [
        (number, ours.get(number, start), end)
        for number, (start, end) in enumerate(zip(topic.starts, topic.ends, strict=True))
    ]


def _unreadable(
    hw: Store, kind: Literal["projection", "function"], name: str, binder: str | None, error: HeadwaterError
) -> ViewInfo:
    told = ViewError(
        "", 0, 0, "", "", str(error), "", time_of(hw.directory.clock.ticks()).isoformat(timespec="milliseconds")
    )
    return ViewInfo(
        kind=kind,
        name=name,
        topic="",
        binder=binder,
        version=0,
        state="unreadable",
        lag=0,
        events=0,
        rate=0.0,
        skipped=0,
        missed=0,
        errors=1,
        aside=0,
        error=told,
        partitions=[],
    )

"""Rebuilds a binder beside the current one, and replaces that atomically.

The new file is made by folding everything from the beginning. When it has nearly caught up, the old file is locked
against writers, the last events are folded, at least as far as the old file has come, and the link is replaced: readers
never see documents go back in time, and writers wait only for that moment. A crash before that has no effect.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from headwater.disk.disk import Disk
from headwater.errors import Conflict, Corrupt, NotFound, Unavailable
from headwater.event import Event
from headwater.store import Store
from headwater.views import database, registry, shards
from headwater.views.app import Projection
from headwater.views.document_fold import DocumentFold
from headwater.views.files import Files
from headwater.views.shards import ProjectionRange, Shard

Progress = Callable[[int, int], object]
"""Called with the events that are folded, and all there are now."""


class RemoteFold(Protocol):
    """Folds the bulk of the history faster than one process can."""

    def fold(
        self,
        spans: Sequence[ProjectionRange],
        fields: Sequence[str],
        beside: Path,
        progress: Progress,
        *,
        by_partition: bool,
    ) -> list[Shard]:
        """Fold all events of these spans into shards, whose documents have room for indexes over these fields.

        The order is that of one process: projection after projection, partition after partition, by offset. With
        `by_partition` each shard may leave it at one partition, as long as documents are those of the event's key. The
        files have names that begin as `beside` does, and end with .tmp: they are removed when the rebuild ends, or by
        the next one. Raises Unavailable or what else keeps it from that; what a fold raises is in the shards.
        """
        ...


ROUND_EVENTS = 200_000  # in one transaction
CLOSE_EVENTS = 10_000  # so few may be left when the old file is locked


def rebuild(
    hw: Store,
    projections: Sequence[Projection],
    *,
    indexes: Sequence[str] = (),
    instead_of: Path | None = None,
    wait: bool = True,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    elsewhere: RemoteFold | None = None,
) -> int:
    """Rebuild the binder of these projections, and make it current; returns the number of events folded.

    `projections` are all that fill it. With `instead_of`, nothing is done unless that is the file that is read. Raises
    Halt if a fold raises, Conflict with the code `superseded` if the binder was built by a newer version, Unavailable
    with the code `locked` if another process does the same, and with `stopped` when `stop` says so: then everything is
    as before. `elsewhere` folds what is there when it begins; the rest is folded here.
    """
    files = Files.of(hw)
    name = projections[0].binder
    with (
        files.building(name, wait=wait) as file,
        database.translated(file),
        contextlib.closing(database.connect(file)) as new,
        contextlib.ExitStack() as stack,
    ):
        old = _old(files, name, stack)
        if instead_of is not None and (old is None or files.current(name) != instead_of):
            return 0  # another process was first
        if old is not None:
            _check_newest(old, projections)
        build = _Build(hw, new, projections, stop, progress)
        fields = sorted({*indexes, *(() if old is None else database.indexes(old))})
        build.begin(fields)
        if elsewhere is not None:
            build.fold_elsewhere(elsewhere, fields, file)
        build.index(fields)
        while build.left() > CLOSE_EVENTS:
            build.catch_up()
        if old is not None:
            # Other writers wait, and then look up the current file.
            stack.enter_context(database.writing(old, give_up=stop))
            with database.writing(new):
                for path in database.indexes(old):
                    database.ensure_index(new, path)  # it may have been asked for meanwhile
        build.catch_up()
        build.finish()
        _sync(hw.directory.disk, file)
        files.take_place(name, file)
    return build.folded


def _old(files: Files, name: str, stack: contextlib.ExitStack) -> sqlite3.Connection | None:
    """Return the file that is read now, if there is one that can be."""
    try:
        return stack.enter_context(contextlib.closing(database.connect(files.current(name))))
    except (NotFound, Corrupt):
        return None


def _check_newest(old: sqlite3.Connection, projections: Sequence[Projection]) -> None:
    versions = {row.name: row.version for row in registry.rows(old)}
    for each in projections:
        built = versions.get(each.name, 0)
        if built > each.version:
            raise Conflict(
                f"projection {each.name!r} has version {each.version}, but the binder was built by version {built}",
                hint="give it a higher version",
                code="superseded",
            )


def _sync(disk: Disk, file: Path) -> None:
    """Make a file durable: what SQLite wrote back while it was not to sync, it does not sync later."""
    try:
        fd = disk.open_write(file)
        try:
            disk.fdatasync(fd)
        finally:
            disk.close(fd)
    except OSError as error:
        raise Unavailable(f"{file} cannot be made durable: {error.strerror}", hint="fix the disk") from error


def _untold(_done: int, _all: int) -> None:
    """Ignore progress."""


class _Build:
    """A new file, and the progress of each projection in it."""

    def __init__(
        self,
        hw: Store,
        connection: sqlite3.Connection,
        projections: Sequence[Projection],
        stop: Callable[[], bool],
        progress: Progress | None,
    ) -> None:
        self.folded = 0
        self._hw = hw
        self._connection = connection
        self._projections = projections
        self._stop = stop
        self._progress = progress
        self._passed = 0
        self._next: dict[str, list[int]] = {}

    def begin(self, fields: Iterable[str]) -> None:
        """Make the projections known, with their oldest events ahead of them; documents have room for indexes."""
        self._connection.execute("PRAGMA synchronous = OFF")  # until `finish`: there are no readers before that
        with database.writing(self._connection):
            for path in fields:
                database.add_column(self._connection, path)
            for projection in self._projections:
                try:
                    topic = registry.topic_of(self._hw, projection.topic)
                except NotFound:
                    continue  # there is nothing to fold; it is made known when its topic is made
                registry.check_order(self._projections, projection, len(topic.ends))
                registry.add(self._connection, projection, topic)
                self._next[projection.name] = list(topic.starts)

    def fold_elsewhere(self, elsewhere: RemoteFold, fields: Sequence[str], file: Path) -> None:
        """Fold all present events in other processes, and load the result."""
        spans = [
            ProjectionRange(each, tuple(self._next[each.name]), registry.topic_of(self._hw, each.topic).ends)
            for each in self._known()
        ]
        if not sum(span.events for span in spans):
            return
        by_partition = all(span.projection.by_event_key for span in spans) and len(spans) == 1
        fold = partial(elsewhere.fold, spans, fields, file, self._progress or _untold)
        try:
            self.folded += shards.load_shards(self._connection, fold(by_partition=by_partition), spans, fields)
        except Conflict as error:
            if error.code != "shards_overlap" or not by_partition:
                raise
            # Partitions were chosen by hand, and a key is in several: each continues with the result of the one before.
            self.folded += shards.load_shards(self._connection, fold(by_partition=False), spans, fields)
        for span in spans:
            self._next[span.projection.name] = list(span.ends)
            self._passed += span.events
        self._tell()

    def index(self, fields: Iterable[str]) -> None:
        """Make the indexes: over many documents at once, that takes a part of the time."""
        with database.writing(self._connection):
            for path in fields:
                database.create_index(self._connection, path)

    def left(self) -> int:
        """Return how many events are still to be looked at."""
        return sum(
            max(0, end - next)
            for projection in self._known()
            for next, end in zip(
                self._next[projection.name], registry.topic_of(self._hw, projection.topic).ends, strict=True
            )
        )

    def catch_up(self) -> None:
        """Fold everything that is there now."""
        for projection in self._known():
            folder = DocumentFold(self._connection, projection, self._stop)
            for partition, end in enumerate(registry.topic_of(self._hw, projection.topic).ends):
                while self._next[projection.name][partition] < end:
                    self._round(projection, folder, partition, end)

    def finish(self) -> None:
        """Make it all durable, and the events that it tells of."""
        for projection in self._known():
            self._hw.sync(projection.topic)
        self._connection.execute("PRAGMA synchronous = FULL")
        (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Unavailable("the new file of the binder is in use by another program", code="locked")

    def _known(self) -> list[Projection]:
        return [projection for projection in self._projections if projection.name in self._next]

    def _round(self, projection: Projection, folder: DocumentFold, partition: int, end: int) -> None:
        """Fold about one transaction's worth of events of one partition."""
        places = self._next[projection.name]
        start = places[partition]
        batches = self._batches(projection, partition, start, end)
        try:
            with database.writing(self._connection):
                folder.begin()
                reached = end
                for batch in batches:
                    done = 0
                    while done < len(batch) and not folder.full:
                        done += folder.fold(batch[done:], math.inf)
                        self._check_stop()
                    if folder.full or folder.folded >= ROUND_EVENTS:
                        reached = batch[done - 1].offset + 1
                        break
                folder.write({partition: reached})
        except NotFound as error:
            folder.abandon()
            if error.code != "offset_gone":
                raise
            places[partition] = error.oldest  # retention was there first
            with database.writing(self._connection):
                folder.begin()
                folder.write({partition: error.oldest}, missed=error.oldest - start)
            return
        places[partition] = reached
        self.folded += folder.folded
        self._passed += reached - start
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._passed, self._passed + self.left())

    def _batches(self, projection: Projection, partition: int, start: int, end: int) -> Iterator[list[Event]]:
        filters = {"type": projection.type, "match": projection.match}
        found = self._hw.read_batches(projection.topic, partition=partition, start=start, end=end, **filters)  # type: ignore[arg-type]
        return (events for batch in found if (events := batch.events()))

    def _check_stop(self) -> None:
        if self._stop():
            raise Unavailable("the rebuild was stopped; the binder is unchanged", code="stopped")

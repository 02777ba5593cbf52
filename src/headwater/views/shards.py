"""Fills a new binder with documents that were folded elsewhere, shard by shard and in parallel.

A shard is a scratch file with documents that no other shard has, and what was counted on the way. All shards together
are what folding the same events one after the other would have made: the documents, the counts, the events that were
passed over, or the one event at which a projection stops.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headwater.errors import Conflict
from headwater.info import ViewError
from headwater.limits import QUARANTINED_MAX
from headwater.views import database
from headwater.views.app import Projection
from headwater.views.document_fold import Halt
from headwater.views.encoding import encode_error


class ProjectionRange(msgspec.Struct, frozen=True):
    """The events that a projection must process: of each partition, from its start to before its end."""

    projection: Projection
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def events(self) -> int:
        """Return how many there are at most: not all may be of the projection's type."""
        return sum(self.ends) - sum(self.starts)


class ShardTally(msgspec.Struct):
    """The counts of a shard for one projection."""

    folded: int = 0
    skipped: int = 0
    missed: dict[int, int] = {}
    """By partition, the events that retention took before they were read."""
    failed: list[ViewError] = []
    """What could not be folded, in order. No more than tell whether, and where, the projection stops."""


class Shard(msgspec.Struct):
    """A file with documents, and what was counted, by the name of a projection."""

    file: str
    tallies: dict[str, ShardTally]


def failures_wanted(projection: Projection) -> int:
    """Return how many of the first failures decide whether a projection stops, and where."""
    return 1 if projection.on_error == "stop" else QUARANTINED_MAX + 1


def load_shards(
    connection: sqlite3.Connection, shards: Sequence[Shard], spans: Sequence[ProjectionRange], fields: Sequence[str]
) -> int:
    """Take everything of the shards into a new file, which has no documents; returns how many events were folded.

    Raises Halt if a projection is to stop, and Conflict with the code `shards_overlap` if two shards have a document of
    the same id: then the file is as it was.
    """
    tallies = {span.projection.name: _together(shards, span.projection) for span in spans}
    # The file has no readers yet, so a large transaction need not go through a write-ahead log first.
    connection.execute("PRAGMA journal_mode = MEMORY")
    try:
        files = [Path(shard.file) for shard in shards]
        for first in range(0, len(files), database.ATTACHED_MAX):
            with database.attached(connection, files[first : first + database.ATTACHED_MAX]) as names:
                _copy(connection, names, fields)
        with database.writing(connection):
            for span in spans:
                _note(connection, span, tallies[span.projection.name])
    finally:
        connection.execute("PRAGMA journal_mode = WAL")
    return sum(tally.folded for tally in tallies.values())


def _together(shards: Sequence[Shard], projection: Projection) -> ShardTally:
    """Return the sum of the shards' counts for a projection; raises Halt if it is to stop."""
    found = [shard.tallies[projection.name] for shard in shards if projection.name in shard.tallies]
    failed = sorted(
        itertools.chain.from_iterable(each.failed for each in found), key=lambda each: (each.partition, each.offset)
    )
    wanted = failures_wanted(projection)
    if len(failed) >= wanted:
        raise Halt(failed[wanted - 1])
    missed: dict[int, int] = {}
    for each in found:  # shards of one partition have missed the same events, or some of them
        missed |= {number: max(count, missed.get(number, 0)) for number, count in each.missed.items()}
    return ShardTally(sum(each.folded for each in found), sum(each.skipped for each in found), missed, failed)


def _copy(connection: sqlite3.Connection, names: Sequence[str], fields: Sequence[str]) -> None:
    """Take over the documents of attached files, in the order of ids: each page of the file is then visited once.

    SQLite merges what each file has in order, without sorting, so that no size needs more memory.
    """
    columns = ", ".join(("id", "version", "data", *map(database.column, fields)))
    selects = " UNION ALL ".join(f"SELECT {columns} FROM {name}.documents" for name in names)  # noqa: S608  # ours
    try:
        with database.writing(connection):
            connection.execute(f"INSERT INTO documents ({columns}) {selects} ORDER BY 1")
    except sqlite3.IntegrityError as error:
        with database.writing(connection):
            connection.execute("DELETE FROM documents")
        raise Conflict("two shards have a document with the same id", code="shards_overlap") from error


def _note(connection: sqlite3.Connection, span: ProjectionRange, tally: ShardTally) -> None:
    """Store the cursors and the counts of a projection."""
    name, execute = span.projection.name, connection.execute
    for partition, end in enumerate(span.ends):
        execute("UPDATE cursors SET next = ? WHERE projection = ? AND partition = ?", (end, name, partition))
    for failed in tally.failed:
        place = name, failed.partition, failed.offset, encode_error(failed)
        execute('INSERT INTO quarantined (projection, partition, "offset", error) VALUES (?, ?, ?, ?)', place)
    last = encode_error(tally.failed[-1]) if tally.failed else None
    missed, failures, now_ms = sum(tally.missed.values()), len(tally.failed), int(time.time() * 1000)
    counts = tally.folded, tally.skipped, missed, failures, last, now_ms, name
    execute(
        "UPDATE projections SET folded = ?, skipped = ?, missed = ?, errors = ?, error = ?, changed_ms = ?"
        " WHERE name = ?",
        counts,
    )

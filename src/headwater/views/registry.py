"""The projections recorded in a binder's file: names, versions, cursors, and errors that stopped them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from headwater.errors import Invalid, Unavailable
from headwater.info import ViewError
from headwater.store import Store
from headwater.views import database
from headwater.views.app import Projection
from headwater.views.encoding import decode_error, encode_error


class TopicBounds(msgspec.Struct, frozen=True):
    """A topic as it is now: where each partition begins and ends."""

    uuid: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class Row(msgspec.Struct, frozen=True):
    """A projection as its binder knows it."""

    name: str
    topic: str
    topic_uuid: str
    version: int
    state: str
    folded: int
    skipped: int
    missed: int
    errors: int
    rate: float
    changed_ms: int
    error: ViewError | None


def topic_of(hw: Store, topic: str) -> TopicBounds:
    """Return the bounds of a topic. Raises NotFound if there is no such topic."""
    found = hw.directory.cursor(topic)
    return TopicBounds(found.uuid, found.offsets, found.ends())


def rows(connection: sqlite3.Connection) -> list[Row]:
    """Return all projections of a binder, by name."""
    found = connection.execute(
        "SELECT name, topic, topic_uuid, version, state, folded, skipped, missed, errors, rate, changed_ms, error"
        " FROM projections ORDER BY name"
    )
    return [_row(*values) for values in found]


def _row(*values: Any) -> Row:
    return Row(**dict(zip(Row.__struct_fields__, (*values[:-1], decode_error(values[-1])), strict=True)))


def find(connection: sqlite3.Connection, name: str) -> Row | None:
    """Return one of them."""
    return next((row for row in rows(connection) if row.name == name), None)


def cursors(connection: sqlite3.Connection, name: str) -> dict[int, int]:
    """Return the next offset of each partition."""
    found = connection.execute("SELECT partition, next FROM cursors WHERE projection = ? ORDER BY partition", (name,))
    return dict(found.fetchall())


def enter(
    connection: sqlite3.Connection,
    projection: Projection,
    topic: TopicBounds,
    together: Sequence[Projection],
    *,
    retry: bool,
) -> Row:
    """Return the projection as the binder knows it; made known if it is new. `retry`: what stopped it is tried again.

    Raises Invalid if it is new, and others fill the binder already that are not among those of this application.
    """
    with database.writing(connection):
        row = find(connection, projection.name)
        if row is None:
            _check_alone(connection, projection, together)
            add(connection, projection, topic)
        elif retry and row.error is not None and row.version <= projection.version:
            resume(connection, projection.name)
        row = find(connection, projection.name)
    assert row is not None
    return row


def _check_alone(connection: sqlite3.Connection, projection: Projection, together: Sequence[Projection]) -> None:
    others = {row.name for row in rows(connection)} - {each.name for each in together}
    if others and not projection.unordered:
        raise Invalid(
            f"binder {projection.binder!r} is filled by {', '.join(sorted(others))}, but projection {projection.name!r}"
            " is not declared unordered",
            hint="if it was renamed, rebuild: headwater views rebuild; or give it its own binder",
            code="needs_order",
        )


def add(connection: sqlite3.Connection, projection: Projection, topic: TopicBounds) -> None:
    """Make a projection known, inside of a transaction. It begins with the oldest events."""
    connection.execute(
        "INSERT INTO projections (name, topic, topic_uuid, version) VALUES (?, ?, ?, ?)",
        (projection.name, projection.topic, topic.uuid, projection.version),
    )
    connection.executemany(
        "INSERT INTO cursors (projection, partition, next) VALUES (?, ?, ?)",
        [(projection.name, number, start) for number, start in enumerate(topic.starts)],
    )


def resume(connection: sqlite3.Connection, name: str) -> int:
    """Resume a projection that an error has stopped, inside of a transaction; return how many rows changed."""
    changed = connection.execute("UPDATE projections SET state = 'running', error = NULL WHERE name = ?", (name,))
    return changed.rowcount


def note_error(connection: sqlite3.Connection, name: str, error: ViewError) -> None:
    """Note an error that did not stop what is there, inside of a transaction: a rebuild has failed."""
    values = encode_error(error), name
    connection.execute("UPDATE projections SET errors = errors + 1, error = ? WHERE name = ?", values)


def check_running(connection: sqlite3.Connection, name: str) -> None:
    """Raise Unavailable if a projection has been stopped by an error."""
    row = find(connection, name)
    if row is not None and row.state == "stopped":
        raise stopped(row)


def stopped(row: Row) -> Unavailable:
    """Return the error for callers that wait for a projection that an error has stopped."""
    error = row.error
    what = "" if error is None else f" at offset {error.offset} of partition {error.partition}: {error.error}"
    return Unavailable(
        f"projection {row.name!r} has stopped{what}",
        hint="fix the projection function and restart the application, or run: headwater views resume",
        code="projection_stopped",
    )


def check_order(together: Sequence[Projection], projection: Projection, partitions: int) -> None:
    """Raise Invalid if several partitions or topics would change a document, and nothing says that this is right."""
    if len(together) > 1 and not projection.unordered:
        raise Invalid(
            f"projection {projection.name!r} shares binder {projection.binder!r} with others, but is not declared"
            " unordered",
            hint="give unordered=True if the order of events does not matter, or give it its own binder",
            code="needs_order",
        )
    if partitions > 1 and not projection.by_event_key and not projection.unordered:
        raise Invalid(
            f"projection {projection.name!r} has a key of its own, and topic {projection.topic!r} has {partitions}"
            " partitions, so the events of a document have no order",
            hint="give unordered=True if the order of events does not matter, or use the event's key",
            code="needs_order",
        )

"""What a binder's file tells, read straight from it, and what a plain fold over the whole log makes of the events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from headwater.event import Event
from headwater.info import ViewError
from headwater.store import Store
from headwater.views import database, registry
from headwater.views.encoding import decode
from headwater.views.files import Files

Documents = dict[str, tuple[int, dict[str, Any]]]
"""By id: version and data."""

KeyOf = Callable[[Event], Any]


def documents(hw: Store, binder: str) -> Documents:
    """All documents of a binder, as they are at one moment."""
    with contextlib.closing(database.connect(Files.of(hw).current(binder))) as connection:
        rows = connection.execute("SELECT id, version, data FROM documents").fetchall()
    return {id: (version, decode(data)) for id, version, data in rows}


def data(hw: Store, binder: str) -> dict[str, dict[str, Any]]:
    """The same, without versions."""
    return {id: data for id, (_, data) in documents(hw, binder).items()}


def row(hw: Store, binder: str, name: str) -> registry.Row:
    """What the binder tells of a projection."""
    with contextlib.closing(database.connect(Files.of(hw).current(binder))) as connection:
        found = registry.find(connection, name)
    assert found is not None
    return found


def cursors(hw: Store, binder: str, name: str) -> dict[int, int]:
    """How far a projection has come."""
    with contextlib.closing(database.connect(Files.of(hw).current(binder))) as connection:
        return registry.cursors(connection, name)


def quarantined(hw: Store, binder: str) -> list[tuple[int, int]]:
    """The partition and the offset of each event that was passed over."""
    with contextlib.closing(database.connect(Files.of(hw).current(binder))) as connection:
        return connection.execute('SELECT partition, "offset" FROM quarantined ORDER BY 1, 2').fetchall()


def error(hw: Store, binder: str, name: str) -> ViewError:
    """What stopped a projection."""
    found = row(hw, binder, name).error
    assert found is not None
    return found


def resume(hw: Store, binder: str, name: str) -> None:
    """As `headwater views resume`."""
    connection = database.connect(Files.of(hw).current(binder))
    with contextlib.closing(connection), database.writing(connection):
        assert registry.resume(connection, name) == 1


def plain(hw: Store, topic: str, fold: Callable[[Any, Event], Any], key: KeyOf) -> Documents:
    """What folding the whole log gives: each partition in the order of its offsets, one after the other."""
    partitions = range(len(hw.describe(topic).partitions))
    events = (event for partition in partitions for event in hw.read(topic, partition=partition))
    return plain_of(events, fold, key)


def plain_of(events: Iterable[Event], fold: Callable[[Any, Event], Any], key: KeyOf) -> Documents:
    """What folding these events gives."""
    found: Documents = {}
    for event in events:
        id = key(event)
        if id is None:
            continue
        document = fold(found[id][1] if id in found else None, event)
        if document is None:
            found.pop(id, None)
        else:
            found[id] = event.offset, document
    return found

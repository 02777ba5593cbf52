"""Creates an index on a field of existing documents."""

from __future__ import annotations

import sqlite3

from headwater.errors import TooLarge
from headwater.limits import BINDER_INDEXES_MAX
from headwater.views import database
from headwater.views.codec import decode
from headwater.views.keys import index_key

PAGE_ROWS = 1000  # documents that are read before their keys are written

_PAGE = "SELECT row, data FROM documents WHERE row > ? ORDER BY row LIMIT ?"


def ensure(connection: sqlite3.Connection, path: str) -> bool:
    """Have an index over a field, inside of `database.writing`; True if it is new. Raises TooLarge for one too many."""
    there = database.indexes(connection)
    if path in there:
        return False
    if len(there) >= BINDER_INDEXES_MAX:
        raise TooLarge(
            f"the binder already has {len(there)} indexes",
            hint="each index adds a write for each changed document",
            limit="binder_indexes_max",
            maximum=BINDER_INDEXES_MAX,
        )
    database.add_column(connection, path)
    _fill(connection, path)
    database.create_index(connection, path)
    return True


def _fill(connection: sqlite3.Connection, path: str) -> None:
    update = f"UPDATE documents SET {database.column(path)} = ? WHERE row = ?"  # noqa: S608  # it is quoted
    last = -1
    while rows := connection.execute(_PAGE, (last, PAGE_ROWS)).fetchall():
        last = rows[-1][0]
        keys = ((index_key(decode(data), path), row) for row, data in rows)
        connection.executemany(update, [each for each in keys if each[0] is not None])

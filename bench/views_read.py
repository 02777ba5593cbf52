"""How fast documents of a binder are read, beside the same done by hand in SQLite."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import headwater
from bench.rounds import interleave
from bench.table import Figure, Row, at_most
from bench.work import Benchmark, Work

TOPIC, BINDER = "orders", "baskets"
FOUND = 10  # documents that one find gives
APPEND_EVENTS = 50_000
LOOKS = 500  # of which one figure is the median
BY_HAND = "sqlite3 by hand: a table of JSON with an index"


def reading(work: Work) -> list[Row]:
    count = work.pick(20_000, 1_000_000)
    path, by_hand = work.fresh("views"), work.fresh("by-hand.sqlite")
    _make(path, count)
    _make_by_hand(by_hand, count)
    source = random.Random(7)
    with headwater.open(path, mode="existing") as hw, closing(sqlite3.connect(by_hand)) as connection:

        def get() -> object:
            return hw.binder(BINDER).get(_id(source.randrange(count)))

        def find() -> object:
            low = source.randrange(count - FOUND)
            return list(hw.binder(BINDER).find({"total": {"$gte": low, "$lt": low + FOUND}}, sort="total"))

        def get_by_hand() -> object:
            return _get(connection, _id(source.randrange(count)))

        def find_by_hand() -> object:
            return _find(connection, source.randrange(count - FOUND))

        samples = interleave(
            work.pick(3, 9, 15),
            {
                "get": lambda: _seconds(get),
                "find": lambda: _seconds(find),
                "get by hand": lambda: _seconds(get_by_hand),
                "find by hand": lambda: _seconds(find_by_hand),
            },
        )

    def row(name: str, ours: str, unit: str, scale: float, bound: float) -> Row:
        theirs = Figure(samples.median(f"{ours} by hand") * scale, unit)
        ratio = samples.ratio(ours, f"{ours} by hand")
        return Row(
            name, Figure(samples.median(ours) * scale, unit), BY_HAND, theirs, ratio, target=at_most(bound, unit)
        )

    return [
        row(f"get of one of {count:,} documents", "get", "µs", 1e6, 50),
        row(f"find of {FOUND} documents in {count:,}, by an index, sorted", "find", "ms", 1e3, 1),
    ]


def _make(path: Path, count: int) -> None:
    """A binder with one document for each event, and an index on its total."""
    app = headwater.App()
    app.binder(BINDER).index("total")

    @app.projection(TOPIC, BINDER)
    def basket(_: Any, event: headwater.Event) -> Any:
        return event.value

    with headwater.open(path, durability="os") as hw:
        for start in range(0, count, APPEND_EVENTS):
            numbers = range(start, min(count, start + APPEND_EVENTS))
            keys = [_id(number).encode() for number in numbers]
            hw.append_many(TOPIC, [_document(number, count) for number in numbers], keys=keys)
        hw.sync(TOPIC)
        app.catch_up(hw, timeout=600)
        assert hw.binder(BINDER).count() == count


def _make_by_hand(path: Path, count: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, total INTEGER, data BLOB)")
        rows = (
            (_id(number), (found := _document(number, count))["total"], msgspec.json.encode(found))
            for number in range(count)
        )
        connection.executemany("INSERT INTO documents VALUES (?, ?, ?)", rows)
        connection.execute("CREATE INDEX by_total ON documents (total)")
        connection.commit()


def _id(number: int) -> str:
    return f"c-{number:07}"


def _document(number: int, count: int) -> dict[str, Any]:
    """Totals are all different, and in no order: 7919 is a prime that divides no power of ten."""
    return {"total": number * 7919 % count, "items": 3, "customer": f"customer {number}", "paid": True}


def _get(connection: sqlite3.Connection, id: str) -> Any:
    (data,) = connection.execute("SELECT data FROM documents WHERE id = ?", (id,)).fetchone()
    return msgspec.json.decode(data)


def _find(connection: sqlite3.Connection, low: int) -> Any:
    rows = connection.execute(
        "SELECT data FROM documents WHERE total >= ? AND total < ? ORDER BY total", (low, low + FOUND)
    )
    return [msgspec.json.decode(data) for (data,) in rows]


def _seconds(look: Callable[[], object]) -> float:
    """How long one look takes: the median of many, since each is somewhere else."""
    taken = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        found = look()
        taken.append(time.perf_counter() - began)
        assert len(found) == FOUND if isinstance(found, list) else found is not None
    return median(taken)


BENCHMARKS = (
    Benchmark(
        "views-read",
        "`get` by id, and `find` of ten documents by an indexed field in its order, out of a binder of small "
        "documents, beside the same by hand: a table with the JSON, an index, and `msgspec` to decode. Each look is "
        "somewhere else; the pages of the files are in memory.",
        reading,
    ),
)

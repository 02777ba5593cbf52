"""How fast a projection folds JSON events into a binder, beside the same done by hand in SQLite."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

import headwater
from bench.rounds import Samples, interleave, rate
from bench.table import Figure, Row, at_least
from bench.work import BATCH_EVENTS, Benchmark, Work
from headwater.views.projection_worker import ROUND_EVENTS

TOPIC = "orders"
BINDER = "customers"
PEER = "by hand: read_batches, json, a dict, INSERT … ON CONFLICT in SQLite"
KEYS = {"100 k keys": 100_000, "100 keys": 100}

_numbers = count()


def folding(work: Work) -> list[Row]:
    total, rounds = work.pick(50_000, 500_000, 1_000_000), work.pick(2, 5, 9)
    rows: list[Row] = []
    for name, keys in KEYS.items():
        path = work.fresh(f"fold-{keys}")
        append_orders(path, total, keys)
        samples = _measured(path, total, rounds)
        shutil.rmtree(path)
        ours, theirs = (Figure(samples.median(each), "/s") for each in ("headwater", "by hand"))
        measured = f"projection over JSON events, {name}, one core"
        rows.append(Row(measured, ours, target=at_least(100e3, "/s")))
        rows.append(Row(measured, ours, PEER, theirs, samples.ratio("headwater", "by hand")))
    return rows


def _measured(path: Path, total: int, rounds: int) -> Samples:
    contenders = {
        "headwater": lambda: rate(total, lambda: _project(path)),
        "by hand": lambda: rate(total, lambda: _by_hand(path)),
    }
    with one_core():
        return interleave(rounds, contenders)


def append_orders(path: Path, total: int, keys: int) -> None:
    """Orders of customers, in batches of 1,000, each event with the customer as its key."""
    source = random.Random(7)
    with headwater.open(path, durability="os") as log:
        for _ in range(total // BATCH_EVENTS):
            customers = [f"c-{source.randrange(keys):06}" for _ in range(BATCH_EVENTS)]
            events = [
                msgspec.json.encode(
                    {"customer": customer, "item": "kettle, stainless steel", "n": 1, "total": source.randrange(1000)}
                )
                for customer in customers
            ]
            log.append_many(TOPIC, events, keys=[each.encode() for each in customers], content="json")
        log.sync(TOPIC)


def fold(doc: dict[str, Any] | None, event: headwater.Event) -> dict[str, Any]:
    """What a user would write."""
    order = event.value
    if doc is None:
        return {"customer": order["customer"], "orders": 1, "total": order["total"]}
    doc["orders"] += 1
    doc["total"] += order["total"]
    return doc


def _project(path: Path) -> None:
    """A new binder, from the first event to the last, each transaction durable."""
    app, name = headwater.App(), f"{BINDER}-{next(_numbers)}"
    app.projection(TOPIC, name, name=name)(fold)
    with headwater.open(path, mode="existing") as hw:
        app.catch_up(hw, timeout=600)
    for file in (path / "binders").glob(f"{name}*"):
        file.unlink()


def _by_hand(path: Path) -> None:
    """What somebody writes who has only the log and SQLite: JSON in the table, a dict for each transaction."""
    file = path / f"by-hand-{next(_numbers)}.sqlite"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL)")
    connection.execute("CREATE TABLE cursor (next INTEGER NOT NULL)")
    connection.execute("INSERT INTO cursor VALUES (0)")
    with headwater.open(path, mode="existing") as log, contextlib.closing(connection):
        for keys, values, end in _rounds(log):
            _transaction(connection, keys, values, end)
    for found in path.glob(f"{file.name}*"):
        found.unlink()


def _rounds(log: headwater.Store) -> Iterator[tuple[list[str], list[Any], int]]:
    """The keys and the decoded data of about as many events as the other takes for a transaction."""
    decode = msgspec.json.Decoder().decode
    keys: list[str] = []
    values: list[Any] = []
    end = 0
    for batch in log.read_batches(TOPIC):
        for event in batch.events():
            assert event.key is not None
            assert event.data is not None
            keys.append(event.key.decode())
            values.append(decode(event.data))
            end = event.offset + 1
        if len(keys) >= ROUND_EVENTS:
            yield keys, values, end
            keys, values = [], []
    if keys:
        yield keys, values, end


def _transaction(connection: sqlite3.Connection, keys: list[str], values: list[Any], end: int) -> None:
    documents: dict[str, Any] = {}
    versions: dict[str, int] = {}
    connection.execute("BEGIN IMMEDIATE")
    wanted = sorted(set(keys))
    for start in range(0, len(wanted), 10_000):
        some = wanted[start : start + 10_000]
        found = connection.execute(
            "SELECT id, data FROM documents WHERE id IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(some).decode(),),
        )
        documents.update((id, msgspec.json.decode(data)) for id, data in found)
    for version, (key, order) in enumerate(zip(keys, values, strict=True), end - len(keys)):
        doc = documents.get(key)
        if doc is None:
            documents[key] = {"customer": order["customer"], "orders": 1, "total": order["total"]}
        else:
            doc["orders"] += 1
            doc["total"] += order["total"]
        versions[key] = version
    connection.executemany(
        "INSERT INTO documents (id, version, data) VALUES (?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET version = excluded.version, data = excluded.data",
        [(key, version, msgspec.json.encode(documents[key])) for key, version in versions.items()],
    )
    connection.execute("UPDATE cursor SET next = ?", (end,))
    connection.execute("COMMIT")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Run this process, and the threads that it starts, on one core alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


BENCHMARKS = (
    Benchmark(
        "fold",
        "A new projection over JSON events of about 80 bytes in batches of 1,000, keyed by customer, into small "
        "documents (customer, orders, total), until all is durable in the binder; beside the same by hand: the log "
        "read in batches, documents kept as JSON in SQLite, upserted once for each transaction of as many events, in "
        "WAL mode with full syncs. By hand a document stays an object within a transaction, where a projection's fold "
        "is given what was stored. Both on one core.",
        folding,
    ),
)

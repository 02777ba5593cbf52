"""Documents while a transaction changes them: what folds are given, whether it was decoded alone or with others."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import App, Event
from headwater.views import database, document_fold, draft
from headwater.views.draft import Draft
from headwater.views.rebuild import rebuild

IDS = [f"d-{number}" for number in range(40)]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    file = tmp_path / "binder.sqlite"
    database.create(file)
    with contextlib.closing(database.connect(file)) as connection:
        yield connection


def event(offset: int) -> Event:
    return Event("t", 0, offset, offset, "", None, b"", "bytes", 0)


def fold_all(connection: sqlite3.Connection, fold: Any, ids: list[str | None], *, first: int = 0) -> tuple[int, Any]:
    """Fold one event for each id, in a transaction of its own."""
    with database.writing(connection):
        made = Draft(connection)
        made.begin()
        made.load(ids)
        answer = made.fold(fold, [event(first + number) for number in range(len(ids))], ids)
        made.write()
    return answer


def stored(connection: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    from headwater.views.encoding import decode

    return {id: decode(data) for id, data in connection.execute("SELECT id, data FROM documents ORDER BY id")}


def count(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
    seen = [] if doc is None else doc["seen"]
    seen.append(event.offset)
    return {"seen": seen}


@pytest.mark.parametrize("together", [draft.DECODED_BYTES, 0])
def test_each_event_sees_what_the_one_before_left(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(draft, "DECODED_BYTES", together)
    fold_all(connection, count, ["a", "b", "a"])
    assert fold_all(connection, count, ["b", None, "a", "b", "c", "b"], first=3) == (6, None)
    assert stored(connection) == {"a": {"seen": [0, 2, 5]}, "b": {"seen": [1, 3, 6, 8]}, "c": {"seen": [7]}}


def test_what_a_fold_keeps_of_a_document_changes_nothing_later(connection: sqlite3.Connection) -> None:
    fold_all(connection, count, [*IDS])
    kept: list[Any] = []

    def meddling(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        for before in kept:
            before["seen"].append("meddled")
        changed = count(doc, event)
        kept.append(changed)
        return changed

    fold_all(connection, meddling, [*IDS, *IDS], first=100)
    expected = {id: {"seen": [number, 100 + number, 140 + number]} for number, id in enumerate(IDS)}
    assert stored(connection) == expected


def test_a_fold_that_raises_leaves_its_document_as_it_was_and_the_rest_go_on(connection: sqlite3.Connection) -> None:
    fold_all(connection, count, ["a", "b"])

    def failing(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        changed = count(doc, event)
        if event.offset == 3:
            raise ValueError("no")
        return changed

    with database.writing(connection):
        made = Draft(connection)
        made.begin()
        made.load(["a", "b"])
        events, ids = [event(number) for number in (2, 3, 4)], ["a", "b", "b"]
        done, error = made.fold(failing, events, ids)
        assert (done, str(error)) == (1, "no")
        assert made.fold(failing, events[2:], ids[2:]) == (1, None)
        made.write()
    assert stored(connection) == {"a": {"seen": [0, 2]}, "b": {"seen": [1, 4]}}


def test_a_damaged_document_stops_only_the_event_that_needs_it(connection: sqlite3.Connection) -> None:
    fold_all(connection, count, ["a", "b", "c"])
    connection.execute("UPDATE documents SET data = substr(data, 1, 12) WHERE id = 'b'")
    done, error = fold_all(connection, count, ["a", "c", "b", "a"], first=3)
    assert done == 2
    assert "InvalidBSON" in type(error).__name__
    connection.execute("DELETE FROM documents WHERE id = 'b'")
    assert stored(connection) == {"a": {"seen": [0, 3]}, "c": {"seen": [2, 4]}}


def test_types_are_the_same_decoded_alone_or_together(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    told = {"at": datetime(2025, 3, 1, tzinfo=UTC), "raw": b"\x00\xff", "n": 2**40, "deep": {"list": [1, 2.5, None]}}

    def noting(doc: dict[str, Any] | None, _: Event) -> dict[str, Any]:
        given.append(doc)
        return dict(told)

    fold_all(connection, noting, ["a", "b"])
    fold_all(connection, noting, ["a", "b"])
    monkeypatch.setattr(draft, "DECODED_BYTES", 0)
    fold_all(connection, noting, ["a", "b"])
    assert given == [None, None, *[told] * 4]
    assert all(type(doc) is dict for doc in given[2:])


def test_what_is_remembered_stays_within_bounds(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "CACHE_BYTES", 40 * (draft.ENTRY_BYTES + 100))
    made = Draft(connection)

    def rounds(ids: list[str | None], number: int) -> list[bool]:
        known = []
        for first in range(number):
            with database.writing(connection):
                made.begin()
                known.append("d-0" in made._data)
                made.load(ids)
                made.fold(lambda _, event: {"n": event.offset}, [event(first)] * len(ids), ids)
                made.write()
        return known

    few: list[str | None] = [*IDS[:10]]
    assert rounds(few, 200) == [False] + [True] * 199  # replaced documents do not count for ever
    assert rounds([f"e-{number}" for number in range(60)], 3)[1:] == [False, False]


def test_a_file_without_documents_is_not_searched_for_them(connection: sqlite3.Connection) -> None:
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    made = Draft(connection)
    for first in (0, 100):
        with database.writing(connection):
            made.begin()
            made.load(IDS)
            made.fold(count, [event(first + number) for number in range(len(IDS))], IDS)
            made.write()
    assert not [text for text in asked if "json_each" in text]
    assert stored(connection) == {id: {"seen": [number, 100 + number]} for number, id in enumerate(IDS)}


def test_what_others_put_into_an_empty_file_is_found(connection: sqlite3.Connection, tmp_path: Path) -> None:
    made = Draft(connection)
    with database.writing(connection):
        made.begin()
        made.load(IDS[:1])
    with contextlib.closing(database.connect(tmp_path / "binder.sqlite")) as other:
        fold_all(other, count, [*IDS[:2]])
    with database.writing(connection):
        made.begin()
        made.load(IDS[:2])
        made.fold(count, [event(7), event(8)], IDS[:2])
        made.write()
    assert stored(connection) == {IDS[0]: {"seen": [0, 7]}, IDS[1]: {"seen": [1, 8]}}


def test_a_transaction_ends_when_its_documents_take_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "CACHE_BYTES", 200_000)
    app = App()

    @app.projection("t", "many", version=1)
    def grow(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:  # noqa: ARG001
        return {"text": "x" * 2000, "count": (doc or {"count": 0})["count"] + 1}

    with headwater.open(tmp_path / "log", durability="os") as hw:
        hw.append_many("t", [b""] * 2000, keys=[f"k-{number % 1000}" for number in range(2000)])
        app.catch_up(hw)
        assert hw.binder("many").count({"count": 2}) == 1000
        with contextlib.closing(database.connect(tmp_path / "log/binders/many.sqlite")) as found:
            largest = found.execute("SELECT max(count) FROM changes").fetchone()[0]
        assert largest < 400  # the limit, and what is folded between two looks
        rebuild(hw, app.of_binder("many"))
        assert hw.binder("many").count({"count": 2}) == 1000
        with contextlib.closing(database.connect(tmp_path / "log/binders/many.sqlite")) as found:
            assert found.execute("SELECT max(count) FROM changes").fetchone()[0] < 400


def test_large_documents_are_loaded_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_fold, "AHEAD_BYTES", 10_000)
    app = App()

    @app.projection("t", "large")
    def grow(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:  # noqa: ARG001
        return {"text": "x" * 5000, "count": (doc or {"count": 0})["count"] + 1}

    with headwater.open(tmp_path / "log", durability="os") as hw:
        keys = [f"k-{number}" for number in range(300)]
        hw.append_many("t", [b""] * 300, keys=keys)
        app.catch_up(hw)
        loaded: list[int] = []
        load = Draft.load

        def counted(self: Draft, ids: Any) -> int:
            loaded.append(load(self, ids))
            return loaded[-1]

        monkeypatch.setattr(Draft, "load", counted)
        hw.append_many("t", [b""] * 300, keys=keys)
        app.catch_up(hw)
        assert hw.binder("large").count({"count": 2}) == 300
    assert sum(loaded) > 300 * 5000
    assert max(loaded) < 100_000

"""Reading a binder: documents by id, how many, what it tells of itself, and the connections behind it."""

from __future__ import annotations

import math
import multiprocessing
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from bson import Decimal128, Int64, ObjectId

from headwater.document import Document
from headwater.errors import Closed, Corrupt, Invalid, NotFound, TooLarge
from headwater.limits import BINDER_INDEXES_MAX, FIND_FIELDS_MAX, FIND_SORTS_MAX
from headwater.opening import open_directory
from headwater.store import Store
from headwater.views import database, pool, rebuild
from headwater.views.app import App
from headwater.views.draft import Draft
from headwater.views.local_views import BINDERS_KEPT, LocalViews
from tests.opened import binder_of
from tests.views.filling import Filling, ids, plain

SOME: dict[str, dict[str, Any] | None] = {"ann": {"total": 120}, "bob": {"total": 42}, "cem": {"total": 7}}


def test_a_document_has_its_id_version_and_data(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    assert binder_of(hw, "baskets").get("bob") == Document("bob", 1, {"total": 42})


def test_what_is_not_there_is_none(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    assert binder.get("nobody") is None
    assert binder.get("not quite text \ud800") is None
    filling.put({"ann": None})
    assert binder.get("ann") is None


def test_an_id_may_be_what_an_events_key_may_be(hw: Store, filling: Filling) -> None:
    filling.put({"17": {"a": 1}})
    binder = binder_of(hw, "baskets")
    assert binder.get(17) == binder.get(b"17") == binder.get("17")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        binder.get(None)  # type: ignore[arg-type]


def test_documents_hold_what_bson_can(hw: Store, filling: Filling) -> None:
    document = {
        "text": "größer",
        "numbers": [2**63 - 1, Int64(1), 0.5, math.inf, Decimal128("0.1")],
        "none": None,
        "yes": True,
        "date": datetime(2025, 3, 1, 12, 0, 0, 123000, tzinfo=UTC),
        "bytes": b"\0\xff",
        "id": ObjectId("0" * 24),
        "uuid": UUID(int=7),
        "object": {"nested": {"deep": [1, [2]]}},
    }
    filling.put({"a": document})
    found = binder_of(hw, "baskets").get("a")
    assert found is not None
    assert found.data == document


def test_a_binder_that_is_not_there_is_not_found_and_not_made(hw: Store) -> None:
    binder = binder_of(hw, "nothing")
    for read in (
        lambda: binder.get("a"),
        binder.find,
        binder.count,
        binder.explain,
        binder.follow,
        binder.info,
        lambda: binder.index("a"),
    ):
        with pytest.raises(NotFound) as refused:
            read()
        assert refused.value.code == "no_such_binder"
    assert hw.binders() == []
    with pytest.raises(Invalid):
        binder_of(hw, "")
    with pytest.raises(TooLarge):
        binder_of(hw, "x" * 1000)


def test_a_binder_that_is_made_later_is_found_by_the_same_object(hw: Store) -> None:
    binder = binder_of(hw, "baskets")
    with pytest.raises(NotFound):
        binder.get("ann")
    with Filling(hw) as filling:
        filling.put(SOME)
        assert binder.get("ann") is not None


def test_it_counts_all_documents_and_those_that_match(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    assert binder.count() == binder.count({}) == 3
    assert binder.count({"total": {"$gt": 10}}) == 2
    assert binder.count({"total": "nothing"}) == 0
    binder.index("total")
    assert binder.count({"total": {"$gt": 10}}) == 2


def test_it_tells_what_it_holds_and_what_fills_it(hw: Store, filling: Filling) -> None:
    hw.create("orders")
    filling.put(SOME)
    filling.fold_from("orders", "second")
    filling.fold_from("orders", "first")
    binder = binder_of(hw, "baskets")
    binder.index("total")
    info = binder.info()
    assert (info.name, info.documents) == ("baskets", 3)
    assert (info.indexes, info.projections) == (["total"], ["first", "second"])
    files = [path for path in filling.file.parent.glob("baskets.*.sqlite*") if not path.is_symlink()]
    assert info.bytes == sum(path.stat().st_size for path in files) > 0


def test_a_damaged_document_is_corrupt(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    filling.connection.execute("UPDATE documents SET data = x'00' WHERE id = 'ann'")
    binder = binder_of(hw, "baskets")
    with pytest.raises(Corrupt, match="rebuilt from the log"):
        binder.get("ann")
    with pytest.raises(Corrupt):
        list(binder.find())
    assert binder.get("bob") is not None


def test_a_file_that_is_no_binder_is_corrupt(hw: Store, filling: Filling) -> None:
    filling.connection.close()
    filling.file.write_bytes(b"something else" * 1000)
    with pytest.raises(Corrupt):
        binder_of(hw, "baskets").get("ann")


@pytest.mark.parametrize(
    "asked",
    [
        {"skip": -1},
        {"skip": True},
        {"skip": "1"},
        {"skip": 2**63},
        {"limit": -1},
        {"limit": 1.5},
        {"sort": 7},
        {"sort": [1]},
        {"sort": "-"},
        {"sort": ""},
        {"sort": "a..b"},
        {"sort": {"a": 1}},
        {"sort": b"a"},
        {"fields": "total"},
        {"fields": 7},
        {"fields": [7]},
        {"fields": ["a."]},
        {"fields": {"a": 1}},
        {"match": 7},
        {"match": [1]},
        {"match": 0},
        {"match": {"a": {"$above": 1}}},
        {"timeout": -1, "at_least": 0},
        {"timeout": math.nan, "at_least": 0},
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(hw: Store, filling: Filling, asked: dict[str, Any]) -> None:
    filling.put(SOME)
    with pytest.raises(Invalid):
        binder_of(hw, "baskets").find(**asked)


def test_too_many_fields_are_refused(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    many = [f"a{number}" for number in range(max(FIND_SORTS_MAX, FIND_FIELDS_MAX) + 1)]
    assert len(list(binder.find(sort=many[:FIND_SORTS_MAX], fields=many[:FIND_FIELDS_MAX]))) == 3
    with pytest.raises(TooLarge):
        binder.find(sort=many[: FIND_SORTS_MAX + 1])
    with pytest.raises(TooLarge):
        binder.find(fields=many[: FIND_FIELDS_MAX + 1])


# Indexes


def test_an_index_is_made_once_and_kept_when_opened_again(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as hw, Filling(hw) as filling:
        filling.put(SOME)
        binder_of(hw, "baskets").index("total")
        binder_of(hw, "baskets").index("total")
    with open_directory(tmp_path / "data") as hw:
        binder = binder_of(hw, "baskets")
        assert binder.info().indexes == ["total"]
        assert "USING INDEX" in binder.explain({"total": 42})
        assert ids(binder.find({"total": 42})) == ["bob"]


@pytest.mark.parametrize("field", ["", ".", "a.", "a..b", 7, None, b"a", "a\0b", "\ud800", "a." * 40 + "a", "x" * 2000])
def test_an_index_over_what_is_no_path_is_refused(hw: Store, filling: Filling, field: Any) -> None:
    filling.put(SOME)
    with pytest.raises(Invalid):
        binder_of(hw, "baskets").index(field)
    assert binder_of(hw, "baskets").info().indexes == []


def test_there_are_only_so_many_indexes(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    for number in range(BINDER_INDEXES_MAX):
        binder.index(f"a{number}")
    with pytest.raises(TooLarge, match="indexes"):
        binder.index("one more")
    binder.index("a0")  # which is there
    assert len(binder.info().indexes) == BINDER_INDEXES_MAX


def test_names_that_differ_only_in_capitals_or_are_odd_have_indexes_of_their_own(hw: Store, filling: Filling) -> None:
    names = ["total", "Total", "TOTAL", "^total", '"quoted"', "'", "größe", "GRÖSSE", "; DROP TABLE documents", "a b"]
    filling.put({str(number): {name: number} for number, name in enumerate(names)})
    binder = binder_of(hw, "baskets")
    for name in names:
        binder.index(name)
    for number, name in enumerate(names):
        assert ids(binder.find({name: {"$gte": 0}})) == [str(number)]
        assert "USING INDEX" in binder.explain({name: {"$gte": 0}})


def test_an_index_is_kept_up_to_date_by_a_writer_that_was_there_before(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    binder.index("total")
    filling.put({"dan": {"total": 50}, "ann": {"total": 1}, "bob": None})
    assert ids(binder.find({"total": {"$gt": 5}}, sort="total")) == ["cem", "dan"]
    assert ids(binder.find({"total": 1})) == ["ann"]


def test_an_index_has_all_documents_however_many(hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PAGE_ROWS", 3)
    filling.put({f"{number:02}": {"total": number} for number in range(20)})
    binder = binder_of(hw, "baskets")
    binder.index("total")
    assert [each.data["total"] for each in binder.find({"total": {"$gte": 0}}, sort="total")] == list(range(20))


def test_an_index_that_is_asked_for_in_the_midst_of_a_transaction_has_its_documents(
    hw: Store, filling: Filling
) -> None:
    filling.put(SOME)
    with ThreadPoolExecutor(1) as other:
        with filling.putting({"dan": {"total": 50}}):
            made = other.submit(binder_of(hw, "baskets").index, "total")
            assert not made.done()
        made.result(10)
    assert ids(binder_of(hw, "baskets").find({"total": 50})) == ["dan"]
    filling.put({"eve": {"total": 50}})
    assert ids(binder_of(hw, "baskets").find({"total": 50})) == ["dan", "eve"]


def test_an_index_that_fails_leaves_nothing_behind(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    filling.connection.execute("UPDATE documents SET data = x'00' WHERE id = 'ann'")
    with pytest.raises(Corrupt):
        binder_of(hw, "baskets").index("total")
    filling.put({"ann": {"total": 1}})
    binder_of(hw, "baskets").index("total")
    assert ids(binder_of(hw, "baskets").find({"total": 1})) == ["ann"]


def test_an_index_is_made_in_the_file_that_is_read_when_it_is_done(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    writing = database.writing
    replaced: list[bool] = []

    def replace_then_write(connection: Any) -> Any:
        if not replaced:
            replaced.append(True)
            filling.rebuild(SOME)
        return writing(connection)

    monkeypatch.setattr("headwater.views.binder.database.writing", replace_then_write)
    binder.index("total")
    assert binder.info().indexes == ["total"]


def test_an_index_that_is_asked_for_while_the_binder_is_rebuilt_is_kept(
    hw: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "CLOSE_EVENTS", 0)
    app = App()
    app.projection("orders", "baskets", name="basket")(lambda _doc, event: event.value)
    hw.append_many("orders", [{"total": 1}, {"total": 2}], keys=[b"ann", b"bob"])
    app.catch_up(hw)
    binder = binder_of(hw, "baskets")
    before = binder.place()
    rebuild.rebuild(hw, app.of_binder("baskets"), progress=lambda _done, _all: binder.index("total"))
    assert binder.place() != before
    assert binder.info().indexes == ["total"]
    assert ids(binder.find({"total": 2})) == ["bob"]


# Connections


def test_the_same_binder_is_given_each_time_and_few_are_kept(hw: Store) -> None:
    first = binder_of(hw, "a")
    assert binder_of(hw, "a") is first
    for number in range(2 * BINDERS_KEPT):
        binder_of(hw, f"b{number}")
    assert isinstance(hw.attached_views, LocalViews)
    assert len(hw.attached_views._binders) == BINDERS_KEPT
    with Filling(hw, "a") as filling:
        filling.put(SOME)
        assert first.count() == binder_of(hw, "a").count() == 3


def test_a_connection_is_used_again(hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    filling.put(SOME)
    opened: list[Path] = []
    connect = database.connect

    def counted(path: Path) -> sqlite3.Connection:
        opened.append(path)
        return connect(path)

    monkeypatch.setattr(database, "connect", counted)
    binder = binder_of(hw, "baskets")
    for _ in range(10):
        assert binder.get("ann") is not None
        assert len(list(binder.find())) == binder.count() == 3
        with binder.find() as some:
            next(some)
        with pytest.raises(Invalid):
            binder.find(limit=-1)
        assert next(iter(binder.follow())).id == "ann"
    assert len(opened) == 1


def test_several_finds_at_once_have_connections_of_their_own(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    many = [binder.find() for _ in range(20)]
    assert [[document.id for document in each] for each in zip(*many, strict=True)] == [
        [id] * 20 for id in ("ann", "bob", "cem")
    ]
    assert len(binder._pool._free) <= pool.FREE_MAX


def test_many_threads_read_at_once(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    begin = threading.Barrier(8)

    def read(_: int) -> set[str]:
        begin.wait()
        return {
            document.id for _ in range(50) for document in (*binder.find(sort="-total"), binder.get("ann")) if document
        }

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(8))) == [set(SOME)] * 8


def test_a_rebuilt_binder_is_read_at_once(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    assert binder.count() == 3
    begun = binder.find()
    filling.rebuild({"new": {"total": 1}})
    assert plain(binder.find()) == {"new": {"total": 1}}
    assert binder.get("ann") is None
    assert ids(begun) == ["ann", "bob", "cem"], "what was begun before sees what was there then"


def test_a_file_that_is_replaced_while_it_is_opened_is_not_read(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.put(SOME)
    connect = database.connect
    replaced: list[bool] = []

    def opened_late(path: Path) -> Any:
        if not replaced:
            replaced.append(True)
            filling.rebuild({"new": {"total": 1}})
            assert not path.exists()
        return connect(path)

    def replaced_late(path: Path) -> Any:
        connection = connect(path)
        if len(replaced) == 1:
            replaced.append(True)
            filling.rebuild({"newer": {"total": 1}})
        return connection

    binder = binder_of(hw, "baskets")
    monkeypatch.setattr("headwater.views.pool.database.connect", opened_late)
    assert ids(binder.find()) == ["new"]
    binder.close()
    monkeypatch.setattr("headwater.views.pool.database.connect", replaced_late)
    assert ids(binder_of(hw, "baskets").find()) == ["newer"]


def test_a_link_that_leads_nowhere_is_not_found(hw: Store, filling: Filling) -> None:
    filling.connection.close()
    filling.file.unlink()
    with pytest.raises(NotFound):
        binder_of(hw, "baskets").get("ann")


def test_a_forked_child_reads_with_connections_of_its_own(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    assert binder.count() == 3
    begun = binder.find()
    next(begun)

    def child() -> None:
        mine = binder._pool._free
        assert binder.get("ann") is not None
        assert binder._pool._free is not mine
        with pytest.raises(Closed):
            next(begun)
        os._exit(7)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 7
    assert ids(begun) == ["bob", "cem"]
    filling.put({"dan": {"total": 1}})
    assert binder.count() == 4


def test_nothing_is_open_when_the_log_is_closed(tmp_path: Path) -> None:
    hw = open_directory(tmp_path / "data")
    with Filling(hw) as filling:
        filling.put(SOME)
    binder = binder_of(hw, "baskets")
    assert binder.count() == 3
    begun, ended, followed = binder.find(), binder.find(), binder.follow()
    next(begun)
    list(ended)
    next(followed)
    hw.close()
    for read in (lambda: binder.get("ann"), binder.find, binder.count, lambda: next(begun)):
        with pytest.raises(Closed):
            read()
    assert list(ended) == []
    assert len(list(followed)) <= 2
    assert [name for name in os.listdir("/proc/self/fd") if "baskets" in _target(name)] == []


def test_a_find_that_is_forgotten_gives_its_connection_back(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    begun = binder.find()
    next(begun)
    assert len(binder._pool._free) == 0
    del begun
    (free,) = binder._pool._free
    assert not free.connection.in_transaction


def test_a_draft_and_a_reader_agree_on_the_order_of_ids(hw: Store, filling: Filling) -> None:
    assert isinstance(filling.draft, Draft)
    odd = ["", " ", "A", "a", "ab", "b", "ü", "\uffff", "\U00010000"]
    filling.put({id: {} for id in reversed(odd)})
    assert ids(binder_of(hw, "baskets").find()) == odd


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""

"""Finding documents: what is found, in which order, from which moment, and how much of it is read."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import Closed, TooLarge
from headwater.opening import open_directory
from headwater.store import Store
from headwater.views import finding
from headwater.views.encoding import decode, encode
from headwater.views.keys import index_key, order_of
from headwater.views.stored_documents import StoredDocument
from tests.engine import matches
from tests.opened import binder_of
from tests.views.filling import Filling, ids, plain

SOME: dict[str, dict[str, Any] | None] = {
    "ann": {"total": 120, "by": {"name": "Ann", "city": "Oslo"}, "lines": [{"item": "pot", "n": 1}, {"item": "cup"}]},
    "bob": {"total": 42, "by": {"name": "Bob"}},
    "cem": {"total": 42.0, "tags": ["new"]},
    "dan": {"total": None},
    "eve": {},
    "fay": {"total": "much"},
    "gil": {"total": [1, 50]},
}


@pytest.fixture
def some(filling: Filling) -> Filling:
    filling.put(SOME)
    return filling


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every document that a find decodes from now on."""
    seen: list[bytes] = []

    def counted(data: bytes) -> dict[str, Any]:
        seen.append(data)
        return decode(data)

    monkeypatch.setattr(finding, "decode", counted)
    return seen


# What is found


@pytest.mark.usefixtures("some")
def test_nothing_asked_is_everything_by_id(hw: Store) -> None:
    binder = binder_of(hw, "baskets")
    assert plain(binder.find()) == plain(binder.find({})) == SOME
    assert ids(binder.find()) == sorted(SOME)


@pytest.mark.usefixtures("some")
def test_documents_are_found_by_the_language_of_matches(hw: Store) -> None:
    binder = binder_of(hw, "baskets")
    for _ in range(2):  # without an index, and with one
        assert ids(binder.find({"total": {"$gt": 41}})) == ["ann", "bob", "cem", "gil"]
        assert ids(binder.find({"total": 42})) == ["bob", "cem"]
        assert ids(binder.find({"total": None})) == ["dan", "eve"]
        assert ids(binder.find({"total": {"$exists": False}})) == ["eve"]
        assert ids(binder.find({"total": {"$in": [120, "much", None]}})) == ["ann", "dan", "eve", "fay"]
        assert ids(binder.find({"by.name": {"$regex": "^A"}})) == ["ann"]
        assert ids(binder.find({"total": {"$ne": 42}})) == ["ann", "dan", "eve", "fay", "gil"]
        assert ids(binder.find({"$or": [{"total": 120}, {"total": "much"}]})) == ["ann", "fay"]
        assert ids(binder.find({"total": {"$gt": 1, "$lt": 50}})) == ["bob", "cem", "gil"]
        assert ids(binder.find({"total": {"$lt": "\ud800"}})) == ["fay"]
        assert ids(binder.find({"total": {"$in": ["\ud800", 120]}})) == ["ann"]
        binder.index("total")


@pytest.mark.usefixtures("some")
def test_skip_and_limit_cut_out_of_what_is_sorted(hw: Store) -> None:
    binder = binder_of(hw, "baskets")
    everything = ids(binder.find(sort="-total"))
    for sort, match in (("-total", None), ("-total", {"total": {"$exists": True}})):
        whole = ids(binder.find(match, sort=sort))
        for skip in range(9):
            for limit in (None, 0, 1, 2, 9):
                end = None if limit is None else skip + limit
                assert ids(binder.find(match, sort=sort, skip=skip, limit=limit)) == whole[skip:end]
    assert ids(binder.find(skip=2, limit=2)) == ["cem", "dan"]
    binder.index("total")
    assert ids(binder.find(sort="-total")) == everything
    assert ids(binder.find(sort="-total", skip=1, limit=3)) == everything[1:4]


@pytest.mark.usefixtures("some")
def test_only_the_fields_that_are_wanted_are_given(hw: Store) -> None:
    binder = binder_of(hw, "baskets")

    def ann(*fields: str) -> Any:
        (found,) = binder.find({"by.name": "Ann"}, fields=fields)
        assert (found.id, found.version) == ("ann", 0)
        return found.data

    assert ann() == {}
    assert ann("total") == {"total": 120}
    assert ann("by.name", "nothing", "total.x", "by.none.x") == {"by": {"name": "Ann"}}
    assert ann("by.name", "by") == ann("by", "by.name") == {"by": {"name": "Ann", "city": "Oslo"}}
    assert ann("by.name", "by.city") == {"by": {"name": "Ann", "city": "Oslo"}}
    assert ann("lines.item") == {"lines": [{"item": "pot"}, {"item": "cup"}]}
    assert ann("lines.n") == {"lines": [{"n": 1}, {}]}


# Order


@pytest.mark.usefixtures("some")
def test_what_is_missing_comes_first_then_numbers_text_and_arrays_last(hw: Store) -> None:
    binder = binder_of(hw, "baskets")
    ascending = ["dan", "eve", "bob", "cem", "ann", "fay", "gil"]
    for _ in range(2):
        assert ids(binder.find(sort="total")) == ascending
        assert ids(binder.find(sort="-total")) == ascending[::-1], "also those that are equal, by id"
        assert ids(binder.find({"total": {"$gt": 41}}, sort="-total")) == ["gil", "ann", "cem", "bob"]
        assert ids(binder.find({"total": {"$in": [None, 1, 42, 120]}}, sort="-total")) == [
            *("gil", "ann", "cem", "bob", "eve", "dan")
        ]
        binder.index("total")


def test_several_fields_are_sorted_in_directions_of_their_own(hw: Store, filling: Filling) -> None:
    filling.put({str(number): {"a": number % 2, "b": number // 4, "c": 0} for number in range(8)})
    binder = binder_of(hw, "baskets")
    for _ in range(2):
        assert ids(binder.find(sort=["a", "-b"])) == ["6", "4", "2", "0", "7", "5", "3", "1"]
        assert ids(binder.find(sort=["-a", "b"])) == ["1", "3", "5", "7", "0", "2", "4", "6"]
        assert ids(binder.find(sort=["-a", "b"], skip=1, limit=2)) == ["3", "5"]
        assert ids(binder.find(sort=["c", "c", "-c"])) == list("76543210")
        binder.index("a")


# One moment


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("sort", ["", "total", "-total"])
def test_a_find_sees_one_moment_and_nobody_waits_for_it(hw: Store, some: Filling, sort: str, indexed: bool) -> None:
    binder = binder_of(hw, "baskets")
    if indexed:
        binder.index("total")
    before = ids(binder.find(sort=sort or ()))
    begun, asked = binder.find(sort=sort or ()), binder.find(sort=sort or ())
    found = [next(begun).id]
    some.connection.execute("PRAGMA busy_timeout = 0")
    some.put({"ann": None, "bob": None, "zoe": {"total": 1}})
    assert [*found, *ids(begun)] == before
    assert ids(asked) == before, "from when it was asked, not from when it is read"
    assert set(ids(binder.find())) == {*before, "zoe"} - {"ann", "bob"}


def test_what_was_written_is_moved_into_the_file_once_a_find_is_closed(hw: Store, some: Filling) -> None:
    some.connection.execute("PRAGMA busy_timeout = 0")
    begun = binder_of(hw, "baskets").find()
    next(begun)
    some.put({"zoe": {}})
    assert _checkpoint(some.connection) == 1, "SQLite keeps what an open find may still want"
    begun.close()
    begun.close()
    assert list(begun) == []
    assert _checkpoint(some.connection) == 0


def _checkpoint(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0])


# How much is read


def test_an_index_is_used_and_only_what_matches_is_read(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.put({f"{number:04}": {"total": number, "by": number % 100} for number in range(1000)})
    binder = binder_of(hw, "baskets")
    assert binder.explain({"total": 5}).startswith("all documents, by id: SCAN documents")
    binder.index("total")
    plan = binder.explain({"total": 5})
    assert "SEARCH documents USING INDEX index of total (field total=?)" in plan
    assert plan.startswith("the index on 'total'")
    assert "\n" not in plan
    seen = decoded(monkeypatch)
    asked: list[tuple[dict[str, Any], int, int]] = [
        ({"total": 5}, 1, 1),
        ({"total": {"$in": [5, 6, 6, 2000]}}, 2, 2),
        ({"total": {"$gte": 990}}, 10, 10),
        ({"total": {"$gt": 100, "$lt": 105}, "by": {"$gt": 2}}, 6, 2),  # the edges are looked at too
        ({"$and": [{"total": {"$gte": 100}}, {"total": {"$lt": 105}}]}, 6, 5),
        ({"total": None}, 0, 0),
        ({"total": {"$gt": "a"}}, 0, 0),
    ]
    for match, visited, found in asked:
        seen.clear()
        assert binder.count(match) == found
        assert len(seen) == visited


def test_how_many_there_are_in_all_is_told_without_reading_them(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.put(SOME)
    seen = decoded(monkeypatch)
    assert binder_of(hw, "baskets").count() == len(SOME)
    assert binder_of(hw, "baskets").info().documents == len(SOME)
    assert seen == []


def test_a_sort_by_an_index_reads_no_more_than_is_wanted(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.put({f"{number:04}": {"total": number * 7 % 1000} for number in range(1000)})
    binder = binder_of(hw, "baskets")
    binder.index("total")
    seen = decoded(monkeypatch)
    assert [each.data["total"] for each in binder.find(sort="-total", limit=10)] == list(range(999, 989, -1))
    assert len(seen) == 10
    seen.clear()
    found = binder.find({"total": {"$gt": 100}}, sort="total", skip=1, limit=2)
    assert [each.data["total"] for each in found] == [102, 103]
    assert len(seen) == 4, "101 has to be looked at, and 100 is at the edge"
    seen.clear()
    assert ids(binder.find(skip=990, limit=2)) == ["0990", "0991"]
    assert len(seen) == 2, "what is skipped is not read if everything matches"
    with binder.find() as begun:
        seen.clear()
        next(begun)
        assert len(seen) == 1


def test_a_small_limit_is_not_answered_by_sorting_half_of_all(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling.put({f"{number:04}": {"total": number % 2, "rank": number} for number in range(2000)})
    binder = binder_of(hw, "baskets")
    binder.index("total")
    seen = decoded(monkeypatch)
    assert len(ids(binder.find({"total": 1}, limit=5))) == 5
    assert len(seen) == 10
    seen.clear()
    assert len(ids(binder.find({"total": 1}))) == 1000
    assert len(seen) == 2000
    assert "all documents, by id" in binder.explain({"total": 1}), "as quick as to sort half of them, without memory"
    seen.clear()
    assert len(ids(binder.find({"total": 1}, sort="-rank", limit=5))) == 5
    assert len(seen) == 1000 + 5, "there is no index for this order: those that match are sorted"
    assert "then sorted" in binder.explain({"total": 1}, sort="-rank")


def test_of_several_indexes_the_one_that_leaves_least_is_used(hw: Store, filling: Filling) -> None:
    filling.put({f"{number:04}": {"a": number, "b": number, "c": number} for number in range(100)})
    binder = binder_of(hw, "baskets")
    for field in "abc":
        binder.index(field)
    assert "'b'" in binder.explain({"a": {"$gt": 5}, "b": 7, "c": {"$in": [1, 2]}})
    assert "'c'" in binder.explain({"a": {"$gt": 5}, "c": {"$in": [1, 2]}})
    assert "'c'" in binder.explain({"a": {"$gt": 5}, "c": {"$gt": 1, "$lt": 9}}, sort="b")
    assert "'b'" in binder.explain(sort="-b")
    assert "'a'" in binder.explain({"a": {"$gt": 5}}, sort="a")
    for scanned in ({"$or": [{"a": 1}, {"b": 2}]}, {"a": {"$ne": 1}}, {"a": {"$exists": True}}, {"d": 1}):
        assert "all documents, by id" in binder.explain(scanned)


def test_only_so_many_documents_are_sorted(hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "FIND_SORTED_MAX", 50)
    monkeypatch.setattr(finding, "SORTED_MIN", 10)
    filling.put({f"{number:04}": {"total": number * 7 % 100} for number in range(100)})
    binder = binder_of(hw, "baskets")
    with pytest.raises(TooLarge, match="index"):
        list(binder.find(sort="total"))
    with pytest.raises(TooLarge):
        list(binder.find(sort="total", limit=60))
    assert [each.data["total"] for each in binder.find(sort="total", limit=20)] == list(range(20))
    assert [each.data["total"] for each in binder.find(sort="-total", skip=3, limit=45)] == list(range(96, 51, -1))
    assert len(list(binder.find())) == 100
    binder.index("total")
    assert [each.data["total"] for each in binder.find(sort="total")] == list(range(100))


# The same as going through everything


def wanted(documents: dict[str, Any], match: dict[str, Any], sort: list[str]) -> list[str]:
    """The ids that a find must give: a plain filter, and a comparison of each two."""
    found = [id for id, document in documents.items() if matches.matches(match, document)]

    def compare(one: str, other: str) -> int:
        for field in sort:
            path = field.removeprefix("-")
            left, right = (order_of(index_key(documents[id], path)) for id in (one, other))
            if left != right:
                return (-1 if left < right else 1) * (-1 if field.startswith("-") else 1)
        return (-1 if one < other else 1) * (-1 if sort and sort[-1].startswith("-") else 1)

    return sorted(found, key=functools.cmp_to_key(compare))


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Store, Filling, Filling]]:
    """Two binders for all examples, since making files takes longer than all the rest."""
    with (
        tempfile.TemporaryDirectory() as directory,
        open_directory(Path(directory) / "data") as hw,
        Filling(hw, "plain") as one,
        Filling(hw, "indexed") as other,
    ):
        for each in (one, other):
            each.connection.execute("PRAGMA synchronous = OFF")
        for path in ("a", "b", "a.a", "a.b", "a.0", "b.a", "two words", 'a "quoted" name'):
            binder_of(hw, "indexed").index(path)
        yield hw, one, other


paths = st.sampled_from(["a", "a", "a", "b", "a.a", "a.b", "a.0", "b.a", "ü", "two words"])
sorts = st.lists(st.tuples(st.sampled_from(["", "-"]), paths).map("".join), max_size=3)


def test_results_are_counted_before_the_first_and_come_as_they_are_stored(some: Filling) -> None:
    binder = binder_of(some.hw, some.name)
    for match in (None, {"by.name": {"$exists": True}}):
        with binder.results(match) as results:
            some.put({"ann": {"total": 0}, "zoe": {"total": 1, "by": {"name": "Zoe"}}})
            found = {each.id: (each.version, each.data) for each in results if isinstance(each, StoredDocument)}
            assert results.count == len(found)
        some.put({"zoe": None, "ann": SOME["ann"]})
        assert found["bob"] == (1, encode(SOME["bob"]))
        assert found["ann"][1] == encode(SOME["ann"])
        assert "zoe" not in found


def test_results_that_nobody_wants_any_more_are_not_looked_for(some: Filling) -> None:
    looked = iter([False, False, True])
    with pytest.raises(Closed):
        binder_of(some.hw, some.name).results({"total": 42}, over=lambda: next(looked))
    assert next(looked, None) is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_indexes_change_nothing_but_the_time(pair: tuple[Store, Filling, Filling], data: st.DataObject) -> None:
    hw, one, other = pair
    drawn = data.draw(st.lists(matches.documents(matches.bson_scalars), min_size=1, max_size=8))
    stored = {str(number): decode(encode(document)) for number, document in enumerate(drawn)}
    gone = {document.id: None for document in binder_of(hw, "plain").find()}
    for filling in (one, other):
        filling.put({**gone, **stored})
    asked: list[dict[str, Any]] = data.draw(st.lists(matches.some_matches(matches.bson_scalars), max_size=3))
    asked += data.draw(st.lists(st.sampled_from(matches.pointed(stored["0"])), max_size=4))
    for match in asked:
        sort = data.draw(sorts)
        skip, limit = data.draw(st.integers(0, 2)), data.draw(st.none() | st.integers(0, 4))
        expected = wanted(stored, match, sort)
        for name in ("plain", "indexed"):
            binder = binder_of(hw, name)
            assert ids(binder.find(match, sort=sort)) == expected
            end = None if limit is None else skip + limit
            assert ids(binder.find(match, sort=sort, skip=skip, limit=limit)) == expected[skip:end]
            assert binder.count(match) == len(expected)
            with binder.results(match, sort=sort, skip=skip, limit=limit) as results:
                assert (results.count, [each.id for each in results]) == (len(expected[skip:end]), expected[skip:end])


def test_the_planner_uses_indexes_for_what_is_compared_with_the_plain_way(
    pair: tuple[Store, Filling, Filling],
) -> None:
    """Else the test above would show nothing."""
    hw, _, other = pair
    other.put({"0": {"a": 1}})
    explain = binder_of(hw, "indexed").explain
    for operator in ("$eq", "$gt", "$gte", "$lt", "$lte"):
        assert "INDEX index of a " in explain({"a": {operator: 1}}, sort="ü")
    assert "INDEX index of a " in explain({"a": {"$in": [1, [2], None]}}, sort="ü")
    assert "INDEX index of a " in explain({"a": {"$exists": False}}, sort="ü")
    assert "INDEX index of a.b " in explain({"a.b": None}, sort="ü")

"""Projections: which events reach which documents, and what they are afterwards (docs/VIEWS.md)."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import bson
import pytest

from headwater.errors import Invalid, Unavailable
from headwater.event import Event
from headwater.limits import DOCUMENT_BYTES_MAX, DOCUMENT_ID_BYTES_MAX, Limits
from headwater.store import Store
from headwater.views.app import App
from tests.views import seen

SETTLE_S = 20.0


@pytest.fixture
def limits() -> Limits:
    return Limits(lease_ms=1000, blob_bytes_min=2000)


def count(doc: Any, event: Event) -> Any:
    doc = doc or {"n": 0, "last": None}
    doc["n"] += 1
    doc["last"] = event.type
    return doc


def app_of(fold: Any, topic: str = "t", binder: str = "b", **arguments: Any) -> App:
    app = App()
    app.projection(topic, binder, **{"name": "p", **arguments})(fold)
    return app


def folded(hw: Store, fold: Any, **arguments: Any) -> dict[str, dict[str, Any]]:
    """The documents that a projection of the topic `t` makes."""
    app_of(fold, **arguments).catch_up(hw, SETTLE_S)
    return seen.data(hw, "b")


# Which document


def test_a_document_is_that_of_the_events_key(hw: Store) -> None:
    hw.append_many("t", [b"", b"", b""], keys=["a", "b", "a"], types=["x", "y", "z"])
    assert folded(hw, count) == {"a": {"n": 2, "last": "z"}, "b": {"n": 1, "last": "y"}}


def test_a_key_may_be_a_path_of_fields(hw: Store) -> None:
    for by in ({"name": "ann"}, {"name": "bob"}, {"name": "ann"}):
        hw.append("t", {"by": by})
    assert {id: doc["n"] for id, doc in folded(hw, count, key="by.name").items()} == {"ann": 2, "bob": 1}


def test_a_key_may_be_a_function_of_the_event(hw: Store) -> None:
    for number in range(5):
        hw.append("t", {"number": number})
    found = folded(hw, count, key=lambda event: "even" if event.value["number"] % 2 == 0 else "odd")
    assert {id: doc["n"] for id, doc in found.items()} == {"even": 3, "odd": 2}


def test_events_without_a_document_are_skipped_and_counted(hw: Store) -> None:
    for data in ({"by": "ann"}, {"by": None}, {}, {"by": {"name": "x"}}, [1], "text", b"bytes"):
        hw.append("t", data)
    found = folded(hw, count, key=lambda event: event.value.get("by") if event.offset == 0 else None)
    assert list(found) == ["ann"]
    told = seen.row(hw, "b", "p")
    assert (told.folded, told.skipped, told.errors, told.state) == (1, 6, 0, "running")


def test_a_path_into_what_has_no_fields_leads_nowhere(hw: Store) -> None:
    for data in ({"by": {"name": "ann"}}, {"by": "text"}, {"by": None}, {}, [1], "text", b"\xff"):
        hw.append("t", data)
    assert list(folded(hw, count, key="by.name")) == ["ann"]
    assert seen.row(hw, "b", "p").skipped == 6


def test_a_path_leads_into_bytes_and_text_that_are_a_json_object(hw: Store) -> None:
    for data in (b'{"by": {"name": "ann"}}', ' {"by": {"name": "bob"}}', b'{"by": {"name": "eve"}', '"by"', b"[1]"):
        hw.append("t", data)
    assert list(folded(hw, count, key="by.name")) == ["ann", "bob"]
    assert seen.row(hw, "b", "p").skipped == 3


def test_numbers_and_bytes_become_text(hw: Store) -> None:
    keys: list[Any] = [17, -3, b"ann", "ann", "\u00e9", "a\0b", "a", ""]
    for number in range(len(keys)):
        hw.append("t", {"number": number})
    found = folded(hw, count, key=lambda event: keys[event.offset])
    assert {id: doc["n"] for id, doc in found.items()} == {"17": 1, "-3": 1, "ann": 2, "é": 1, "a\0b": 1, "a": 1, "": 1}
    hw.append_many("t", [{"number": number} for number in range(len(keys))])
    app_of(count, key=lambda event: keys[event.offset % len(keys)]).catch_up(hw, SETTLE_S)
    assert seen.data(hw, "b")["a\0b"]["n"] == 2
    assert seen.data(hw, "b")["ann"]["n"] == 4


@pytest.mark.parametrize(
    "key", [b"\xff", 1.5, True, ["a"], {"a": 1}, "\ud800", "x" * (DOCUMENT_ID_BYTES_MAX + 1), StopIteration]
)
def test_what_cannot_be_an_id_stops_the_projection_at_that_event(hw: Store, key: Any) -> None:
    def key_of(event: Event) -> Any:
        if event.offset == 2:
            if key is StopIteration:
                raise key
            return key
        return "a"

    hw.append_many("t", [b""] * 4)
    with pytest.raises(Unavailable, match="offset 2"):
        folded(hw, count, key=key_of)
    assert seen.data(hw, "b")["a"]["n"] == 2
    assert seen.error(hw, "b", "p").offset == 2


def test_keys_of_events_that_are_no_text_stop_the_projection(hw: Store) -> None:
    hw.append_many("t", [b""] * 3, keys=[b"a", b"\xff", b"a"])
    with pytest.raises(Unavailable, match=r"offset 1 .* UTF-8"):
        folded(hw, count)
    assert seen.data(hw, "b")["a"]["n"] == 1


# Which events


def test_only_events_of_the_type_are_folded(hw: Store) -> None:
    hw.append_many("t", [b""] * 4, keys=["a"] * 4, types=["paid", "placed", "unpaid", "paid"])
    assert folded(hw, count, type="paid|placed") == {"a": {"n": 3, "last": "paid"}}
    assert seen.cursors(hw, "b", "p") == {0: 4}


def test_only_events_that_match_are_folded(hw: Store) -> None:
    for total in (5, 15, 25, 7):
        hw.append("t", {"total": total}, key="a")
    assert folded(hw, count, match={"total": {"$gt": 10}})["a"]["n"] == 2
    assert seen.documents(hw, "b")["a"][0] == 2
    assert seen.cursors(hw, "b", "p") == {0: 4}


def test_huge_events_are_folded_too(hw: Store) -> None:
    hw.append("t", {"text": "x" * 5000}, key="a")
    hw.append("t", b"y" * 3_000_000, key="b")
    found = folded(hw, lambda _doc, event: {"size": event.size, "length": len(event.value)})
    assert found == {"a": {"size": 5011, "length": 1}, "b": {"size": 3_000_000, "length": 3_000_000}}


def test_an_empty_topic_gives_an_empty_binder(hw: Store) -> None:
    hw.create("t", partitions=3)
    assert folded(hw, count) == {}
    assert seen.cursors(hw, "b", "p") == {0: 0, 1: 0, 2: 0}


# What becomes of it


def test_none_deletes_a_document(hw: Store) -> None:
    hw.append_many("t", [b""] * 5, keys=["a", "b", "a", "c", "c"], types=["put", "put", "end", "end", "put"])
    found = folded(hw, lambda doc, event: None if event.type == "end" else {"n": (doc or {"n": 0})["n"] + 1})
    assert found == {"b": {"n": 1}, "c": {"n": 1}}
    hw.append_many("t", [b""] * 2, keys=["a", "b"], types=["put", "end"])
    found = folded(hw, lambda doc, event: None if event.type == "end" else {"n": (doc or {"n": 0})["n"] + 1})
    assert found == {"a": {"n": 1}, "c": {"n": 1}}


def test_a_version_is_the_offset_of_the_last_event(hw: Store) -> None:
    hw.append_many("t", [b""] * 4, keys=["a", "b", "a", "c"])
    folded(hw, count)
    assert {id: version for id, (version, _) in seen.documents(hw, "b").items()} == {"a": 2, "b": 1, "c": 3}
    assert all(hw.version("t", id) == version for id, (version, _) in seen.documents(hw, "b").items())
    hw.append("t", b"", key="b")
    folded(hw, count)
    assert seen.documents(hw, "b")["b"] == (4, {"n": 2, "last": ""})


def test_what_a_fold_does_to_objects_of_other_calls_changes_nothing(hw: Store) -> None:
    kept: list[Any] = []
    shared: dict[str, Any] = {"n": 0}

    def fold(doc: Any, event: Event) -> Any:
        for each in kept:
            each["spoiled"] = True
        if doc is not None:
            kept.append(doc)
            doc["spoiled"] = event.offset
            return {"n": doc["n"] + 1}
        kept.append(shared)
        shared.clear()
        shared["n"] = 0
        return shared

    hw.append_many("t", [b""] * 6, keys=["a", "b", "a", "b", "a", "c"])
    assert folded(hw, fold) == {"a": {"n": 2}, "b": {"n": 1}, "c": {"n": 0}}


def test_a_document_that_was_given_may_be_changed_in_place(hw: Store) -> None:
    def fold(doc: Any, event: Event) -> Any:
        doc = doc or {"seen": []}
        doc["seen"].append(event.offset)
        return doc

    hw.append_many("t", [b""] * 3, keys=["a"] * 3)
    assert folded(hw, fold) == {"a": {"seen": [0, 1, 2]}}


def test_a_document_changed_in_place_and_not_returned_is_deleted(hw: Store) -> None:
    hw.append_many("t", [b""] * 2, keys=["a"] * 2)
    assert folded(hw, lambda doc, _event: doc.update(n=1) if doc else {"n": 0}) == {}


def test_documents_hold_what_bson_can(hw: Store) -> None:
    everything = {
        "text": "é\0 \U0001f600",
        "int": 2**63 - 1,
        "small": -(2**63),
        "float": 1.5,
        "infinite": float("inf"),
        "true": True,
        "none": None,
        "list": [1, "a", [None, {"b": []}]],
        "object": {"": 1, "a.b": 2, "$c": 3},
        "date": datetime(2024, 2, 29, 12, 30, 1, 5000, tzinfo=UTC),
        "bytes": b"\x00\xff",
        "id": bson.ObjectId("0123456789ab0123456789ab"),
        "decimal": bson.Decimal128("1.10"),
        "uuid": uuid.UUID(int=7),
        "pattern": bson.Regex("a.*b", "i"),
        "code": bson.Code("f()"),
        "stamp": bson.Timestamp(4, 5),
        "least": bson.MinKey(),
        "most": bson.MaxKey(),
        "late": bson.DatetimeMS(2**60),
    }
    given: list[Any] = []

    def fold(doc: Any, _event: Event) -> Any:
        given.append(doc)
        return doc if doc is not None else everything

    hw.append_many("t", [b""] * 2, keys=["a"] * 2)
    found = folded(hw, fold)
    assert given == [None, everything]
    assert found == {"a": everything}
    assert list(found["a"]) == list(everything)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("text", "TypeError"),
        (5, "TypeError"),
        ([1], "TypeError"),
        (True, "TypeError"),
        ({1: 2}, "InvalidDocument"),
        ({"a\0": 1}, "InvalidDocument"),
        ({"a": object()}, "InvalidDocument"),
        ({"a": 2**64}, "OverflowError"),
        ({"a": "\ud800"}, "Unicode"),
        ({"a": b"x" * DOCUMENT_BYTES_MAX}, "TooLarge"),
    ],
)
def test_what_is_no_document_stops_the_projection(hw: Store, returned: Any, told: str) -> None:
    hw.append_many("t", [b""] * 3, keys=["a", "a", "b"])
    with pytest.raises(Unavailable, match=rf"stopped at offset 1 .*{told}"):
        folded(hw, lambda _doc, event: returned if event.offset == 1 else {"n": 1})
    assert seen.documents(hw, "b") == {"a": (0, {"n": 1})}


def test_the_largest_document_is_kept(hw: Store) -> None:
    hw.append_many("t", [b""] * 2, keys=["a", "a"])
    largest = b"x" * (DOCUMENT_BYTES_MAX - 13)  # what BSON adds to one field
    assert folded(hw, lambda _doc, _event: {"a": largest}) == {"a": {"a": largest}}


# Several documents in one call


def transfer(docs: Any, event: Event) -> None:
    told = event.value
    for account, amount in ((told["from"], -told["amount"]), (told["to"], told["amount"])):
        before = docs.get(account) or {"balance": 0}
        docs[account] = {"balance": before["balance"] + amount}
    if told.get("close"):
        del docs[told["from"]]
    if told.get("fail"):
        raise ValueError("no")


def test_a_fold_of_many_changes_several_documents(hw: Store) -> None:
    hw.append("t", {"from": "a", "to": "b", "amount": 5})
    hw.append("t", {"from": "b", "to": "c", "amount": 2})
    hw.append("t", {"from": "a", "to": "a", "amount": 2})
    hw.append("t", {"from": "c", "to": "d", "amount": 1, "close": True})
    assert folded(hw, transfer, many=True) == {"a": {"balance": -5}, "b": {"balance": 3}, "d": {"balance": 1}}
    assert {id: version for id, (version, _) in seen.documents(hw, "b").items()} == {"a": 2, "b": 1, "d": 3}


def test_what_a_fold_of_many_does_for_one_event_is_done_together_or_not_at_all(hw: Store) -> None:
    hw.append("t", {"from": "a", "to": "b", "amount": 5})
    hw.append("t", {"from": "a", "to": "c", "amount": 5, "close": True, "fail": True})
    hw.append("t", {"from": "b", "to": "c", "amount": 1})
    found = folded(hw, transfer, many=True, on_error="quarantine")
    assert found == {"a": {"balance": -5}, "b": {"balance": 4}, "c": {"balance": 1}}
    assert seen.quarantined(hw, "b") == [(0, 1)]


def test_a_document_of_many_that_was_got_is_a_copy_until_it_is_put_back(hw: Store) -> None:
    def fold(docs: Any, event: Event) -> None:
        if event.offset == 0:
            made = {"n": 1}
            docs["a"] = docs["b"] = made
            made["n"] = 99
            docs["a"]["n"] = 98
            assert docs["a"] == {"n": 1}
        else:
            docs["a"]["n"] = 97
            got = docs["b"]
            got["n"] = 2
            docs["b"] = got
            assert "c" not in docs
            assert docs.pop("c", None) is None

    hw.append_many("t", [b""] * 2)
    assert folded(hw, fold, many=True) == {"a": {"n": 1}, "b": {"n": 2}}


@pytest.mark.parametrize("put", [None, 5, {"a": object()}])
def test_putting_what_is_no_document_keeps_nothing_of_the_event(hw: Store, put: Any) -> None:
    def fold(docs: Any, event: Event) -> None:
        docs["a"] = {"n": event.offset}
        if event.offset == 1:
            docs["b"] = put

    hw.append_many("t", [b""] * 2)
    with pytest.raises(Unavailable, match="offset 1"):
        folded(hw, fold, many=True)
    assert seen.documents(hw, "b") == {"a": (0, {"n": 0})}


@pytest.mark.parametrize("what", [list, len, lambda docs: docs[5]])
def test_a_fold_of_many_asks_for_documents_by_id(hw: Store, what: Any) -> None:
    hw.append("t", b"")
    with pytest.raises(Unavailable, match="TypeError"):
        folded(hw, lambda docs, _event: what(docs), many=True)


# Order


@pytest.mark.parametrize("arguments", [{"key": "by"}, {"key": lambda _event: "a"}, {"many": True}])
def test_a_key_of_its_own_over_several_partitions_is_refused(hw: Store, arguments: dict[str, Any]) -> None:
    hw.create("t", partitions=2)
    with pytest.raises(Invalid) as refused:
        folded(hw, count, **arguments)
    assert refused.value.code == "needs_order"
    app_of(lambda doc, _event: doc, unordered=True, **arguments).catch_up(hw, SETTLE_S)


def test_a_key_of_its_own_needs_no_order_in_one_partition(hw: Store) -> None:
    hw.append("t", {"by": "ann"})
    assert list(folded(hw, count, key="by")) == ["ann"]


def test_several_projections_of_one_binder_must_all_be_unordered(hw: Store) -> None:
    hw.append("t", b"", key="a")
    hw.append("u", b"", key="a")
    for flags in ((True, False), (False, True), (False, False)):
        app = App()
        app.projection("t", "b", name="p", unordered=flags[0])(count)
        app.projection("u", "b", name="q", unordered=flags[1])(count)
        with pytest.raises(Invalid) as refused:
            app.catch_up(hw, SETTLE_S)
        assert refused.value.code == "needs_order"
    app = App()
    app.projection("t", "b", name="p", unordered=True)(count)
    app.projection("u", "b", name="q", unordered=True)(count)
    app.catch_up(hw, SETTLE_S)
    assert seen.data(hw, "b")["a"]["n"] == 2


def test_a_topic_that_is_made_later_with_several_partitions_is_refused(hw: Store) -> None:
    with app_of(count, key="by").running(hw) as runner:
        runner.settle(SETTLE_S)
        hw.create("t", partitions=2)
        hw.append("t", {"by": "ann"})
        with pytest.raises(Unavailable, match="the events of a document have no order"):
            runner.settle(SETTLE_S)
    assert seen.data(hw, "b") == {}


def test_a_projection_that_was_renamed_does_not_fold_everything_a_second_time(hw: Store) -> None:
    hw.append("t", b"", key="a")
    folded(hw, count)
    with pytest.raises(Unavailable, match="is filled by p"):
        folded(hw, count, name="another")
    assert seen.data(hw, "b")["a"]["n"] == 1


def test_each_partition_is_folded_in_its_order(hw: Store) -> None:
    hw.create("t", partitions=3)
    for number in range(300):
        hw.append("t", {"number": number}, key=f"k{number % 17}", durability="os")

    def fold(doc: Any, event: Event) -> Any:
        doc = doc or {"numbers": []}
        doc["numbers"].append(event.value["number"])
        return doc

    found = folded(hw, fold)
    assert found == {f"k{rest}": {"numbers": list(range(rest, 300, 17))} for rest in range(17)}
    assert seen.documents(hw, "b") == seen.plain(hw, "t", fold, lambda event: (event.key or b"").decode())

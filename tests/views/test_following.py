"""Following a binder: all documents, changes as they come, places to go on from, and when all begins anew."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from headwater.document import Change
from headwater.errors import Invalid
from headwater.store import Store
from headwater.views import draft, following
from headwater.views.following import ChangePosition, DocumentChanges
from tests.opened import binder_of
from tests.views.filling import Filling, plain

SOME: dict[str, dict[str, Any] | None] = {"ann": {"total": 120}, "bob": {"total": 42}, "cem": {"total": 7}}


def told(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.id) for change in changes]


def followed(hw: Store, after: str | None = None) -> list[Change]:
    """All that there is to give now."""
    return list(binder_of(hw, "baskets").follow(after=after, timeout=0))


def applied(changes: list[Change], to: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a follower holds after changes."""
    held = {} if to is None else dict(to)
    for change in changes:
        if change.kind == "reset":
            held.clear()
        elif change.kind == "put":
            held[change.id] = change.data
        else:
            held.pop(change.id, None)
    return held


def test_it_begins_with_all_documents(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    changes = followed(hw)
    assert told(changes) == [("put", "ann"), ("put", "bob"), ("put", "cem")]
    assert (changes[1].version, changes[1].data) == (1, {"total": 42})


def test_then_come_changes_and_deletions(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    with binder_of(hw, "baskets").follow(timeout=10) as changes:
        assert applied([next(changes) for _ in range(3)]) == SOME
        filling.put({"dan": {"total": 1}})
        assert next(changes) == Change("put", changes.place, "dan", 3, {"total": 1})
        filling.put({"ann": None})
        assert next(changes) == Change("delete", changes.place, "ann")
        filling.put({"ann": {"total": 2}})
        assert next(changes).data == {"total": 2}


def test_an_empty_binder_is_followed_too(hw: Store, filling: Filling) -> None:
    assert followed(hw) == []
    with binder_of(hw, "baskets").follow(timeout=10) as changes:
        filling.put({"ann": {}})
        assert next(changes).id == "ann"


def test_latest_begins_with_what_comes(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    with binder_of(hw, "baskets").follow(after="latest", timeout=10) as changes:
        place = changes.place
        filling.put({"ann": {"total": 1}})
        assert told([next(changes)]) == [("put", "ann")]
    assert told(followed(hw, place)) == [("put", "ann")]
    assert followed(hw, changes.place) == []


def test_the_place_of_now_is_behind_everything(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    binder = binder_of(hw, "baskets")
    place = binder.place()
    assert place == binder.follow(after="latest").place == followed(hw)[-1].place
    filling.put({"dan": {}})
    assert binder.place() != place
    assert told(followed(hw, place)) == [("put", "dan")]


def test_several_changes_of_a_document_are_given_as_one(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    place = followed(hw)[-1].place
    for total in range(5):
        filling.put({"ann": {"total": total}})
    filling.put({"bob": {"total": 0}})
    filling.put({"bob": None})
    filling.put({"ann": {"total": 5}})
    changes = followed(hw, place)
    assert told(changes) == [("delete", "bob"), ("put", "ann")], "where it has changed last"
    assert changes[1].data == {"total": 5}


def test_a_document_that_was_never_seen_by_others_is_no_change(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    place = followed(hw)[-1].place
    filling.put({"nobody": None})
    assert followed(hw, place) == []


def test_a_document_that_changes_while_all_are_given_is_given_again(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE_DOCUMENTS", 2)
    filling.put(SOME)
    with binder_of(hw, "baskets").follow(timeout=0) as changes:
        given = [next(changes)]
        filling.put({"ann": {"total": 1}, "cem": None, "dan": {"total": 2}, "": {"total": 3}})
        given += list(changes)
    assert applied(given) == plain(binder_of(hw, "baskets").find())
    assert ("put", "ann") in told(given[1:])
    assert ("delete", "cem") in told(given)
    assert ("put", "") in told(given)


def test_every_place_can_be_gone_on_from_without_a_loss(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE_DOCUMENTS", 3)
    monkeypatch.setattr(following, "GROUP_IDS", 4)
    monkeypatch.setattr(following, "GROUP_COMMITS", 3)
    source = Random(7)

    def change() -> None:
        chosen = source.sample(range(30), source.randrange(1, 12))
        filling.put({f"ü-{number:02}": source.choice([None, {"n": source.random()}]) for number in chosen})

    for _ in range(3):
        change()
    held: list[tuple[str | None, dict[str, Any]]] = [(None, {})]
    for _ in range(12):
        change()
        with binder_of(hw, "baskets").follow(after=held[-1][0], timeout=0) as changes:
            now = held[-1][1]
            for number, each in enumerate(changes):
                now = applied([each], now)
                held.append((each.place, now))
                if number % 5 == 0:
                    change()
                if number > 20:
                    break
    end = plain(binder_of(hw, "baskets").find())
    assert len(held) > 100
    for place, holding in held:
        assert applied(followed(hw, place), holding) == end


def test_a_large_commit_is_given_in_pages_and_its_place_comes_with_the_last(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE_BYTES", 3000)
    filling.put({"first": {}})
    before = followed(hw)[-1].place
    with binder_of(hw, "baskets").follow(after=before, timeout=10) as changes:
        filling.put({f"{number:02}": {"text": "x" * 1000} for number in range(10)})
        given = [next(changes)]
        assert len(changes._ready) == 2, "three documents of a thousand bytes are a page"
        given += [next(changes) for _ in range(9)]
    assert told(followed(hw, given[0].place)) == [("put", f"{number:02}") for number in range(10)]
    assert followed(hw, given[-1].place) == []
    assert len([each for each in followed(hw) if each.kind == "put"]) == 11


def test_nothing_is_held_open_between_pages(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    filling.connection.execute("PRAGMA busy_timeout = 0")
    with binder_of(hw, "baskets").follow() as changes:
        next(changes)
        filling.put({"dan": {}})
        assert filling.connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0


# Beginning anew


def test_a_rebuilt_binder_begins_anew(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    before = followed(hw)[-1].place
    with binder_of(hw, "baskets").follow(timeout=10) as changes:
        held = applied([next(changes) for _ in range(3)])
        filling.rebuild({"new": {"total": 1}})
        given = [next(changes), next(changes)]
        assert told(given) == [("reset", ""), ("put", "new")]
        assert applied(given, held) == {"new": {"total": 1}}
        filling.put({"newer": {}})
        assert next(changes).id == "newer"
    assert told(followed(hw, before)) == [("reset", ""), ("put", "new"), ("put", "newer")]
    assert told(followed(hw, given[0].place))[:2] == [("put", "new"), ("put", "newer")], "all are still to come then"


def test_a_binder_that_is_rebuilt_in_the_midst_of_all_documents_begins_anew(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE_DOCUMENTS", 1)
    filling.put(SOME)
    with binder_of(hw, "baskets").follow(timeout=0) as changes:
        next(changes)
        filling.rebuild({"new": {"total": 1}})
        assert told(list(changes)) == [("reset", ""), ("put", "new")]


def test_a_binder_that_is_rebuilt_in_the_midst_of_changes_begins_anew(
    hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE_DOCUMENTS", 1)
    filling.put({"first": {}})
    with binder_of(hw, "baskets").follow(after="latest", timeout=0) as changes:
        filling.put(SOME)
        assert next(changes).id == "ann"
        filling.rebuild({"new": {"total": 1}})
        assert told(list(changes)) == [("reset", ""), ("put", "new")]
        assert followed(hw, changes.place) == []


def test_who_was_away_for_too_long_begins_anew(hw: Store, filling: Filling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "CHANGES_KEPT", 64)
    filling.put(SOME)
    places = [followed(hw)[-1].place]
    for number in range(200):
        filling.put({"ann": {"total": number}})
        places.append(followed(hw, places[-1])[-1].place)
    (first,) = filling.connection.execute("SELECT min(number) FROM changes").fetchone()
    assert 64 < first < 200, "else this test would show nothing"
    for place in places[:-1]:
        kinds = [change.kind for change in followed(hw, place)]
        forgotten = ChangePosition.parse(place).number + 1 < first
        assert kinds == (["reset", "put", "put", "put"] if forgotten else ["put"])


def test_a_place_that_is_still_to_come_begins_anew(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    place = ChangePosition.parse(followed(hw)[-1].place)
    ahead = str(place._replace(number=place.number + 1, listing=False, id=None))
    assert told(followed(hw, ahead))[0] == ("reset", ""), "the file is an older one than the place is of"


@pytest.mark.parametrize(
    "place",
    ["", "latest ", "7", "-", "0a-", "0a-x", "0a--1", "zz-1", "0a-1-x", "0a-1-.!", "0a-1-.A", "0a-" + "1" * 30, 7],
)
def test_what_is_no_place_is_refused_at_once(hw: Store, filling: Filling, place: Any) -> None:
    filling.put(SOME)
    with pytest.raises(Invalid) as refused:
        binder_of(hw, "baskets").follow(after=place)
    assert refused.value.code == "bad_place"


def test_places_are_text_without_spaces_whatever_the_id(hw: Store, filling: Filling) -> None:
    filling.put({id: {} for id in ("", "a\nb", "-", "ü " * 100)})
    for change in followed(hw):
        assert change.place.isascii()
        assert change.place.split() == [change.place]
        assert str(ChangePosition.parse(change.place)) == change.place
    assert [ChangePosition.parse(change.place).id for change in followed(hw)] == ["", "-", "a\nb", None]


# The end


def test_it_ends_when_nothing_comes_in_time(hw: Store, filling: Filling) -> None:
    filling.put(SOME)
    began = time.monotonic()
    assert len(list(binder_of(hw, "baskets").follow(timeout=0.05))) == 3
    assert 0.05 <= time.monotonic() - began < 5
    with pytest.raises(Invalid):
        binder_of(hw, "baskets").follow(timeout=-1)


@pytest.mark.parametrize("end", ["stop", "close the log"])
def test_a_thread_that_waits_ends(hw: Store, filling: Filling, end: str) -> None:
    filling.put(SOME)
    changes = binder_of(hw, "baskets").follow()
    three = threading.Event()
    given: list[Change] = []

    def follow(changes: DocumentChanges) -> None:
        for change in changes:
            given.append(change)
            if len(given) == 3:
                three.set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(follow, changes)
        assert three.wait(10)
        assert not waiting.done()
        if end == "stop":
            changes.stop()
        else:
            hw.close()
        waiting.result(10)
    assert told(given) == [("put", "ann"), ("put", "bob"), ("put", "cem")]
    assert list(changes) == []


def test_a_follower_in_another_thread_sees_every_last_state(hw: Store, filling: Filling) -> None:
    held: dict[str, Any] = {}
    done = threading.Event()

    def follow() -> None:
        with binder_of(hw, "baskets").follow(timeout=20) as changes:
            for change in changes:
                held.update(applied([change], held))
                if change.id == "end":
                    done.set()
                    return

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(follow)
        for number in range(100):
            filling.put({str(number % 7): {"n": number}})
        filling.put({"end": {}})
        waiting.result(20)
    assert done.is_set()
    assert held == plain(binder_of(hw, "baskets").find())

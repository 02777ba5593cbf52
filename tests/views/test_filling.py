"""Binders that pipelines fill: whole, in parts, and not by two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater import App, Conflict, Event, Invalid, Store
from headwater.views import pipeline_binder
from headwater.views.encoding import encode
from headwater.views.pipeline_binder import PipelineBatch
from tests.opened import binder_of


def documents(**found: int) -> list[tuple[str, bytes]]:
    return [(id, encode({"n": n})) for id, n in found.items()]


def shown(hw: Store) -> dict[str, int]:
    return {document.id: document.data["n"] for document in binder_of(hw, "b").find()}


def test_a_binder_is_replaced_as_a_whole_and_keeps_its_indexes(hw: Store) -> None:
    assert pipeline_binder.replace(hw, "b", PipelineBatch("p", "1"), documents(x=1, y=2), ["n"]) == 2
    assert pipeline_binder.replace(hw, "b", PipelineBatch("p", "2"), documents(y=3)) == 1
    assert shown(hw) == {"y": 3}
    assert binder_of(hw, "b").info().indexes == ["n"]
    assert "index" in binder_of(hw, "b").explain({"n": 3})
    assert [each.id for each in binder_of(hw, "b").find({"n": {"$gt": 2}})] == ["y"]


def test_no_documents_are_a_binder_too(hw: Store) -> None:
    pipeline_binder.replace(hw, "b", PipelineBatch("p", "1"), documents(x=1))
    assert pipeline_binder.replace(hw, "b", PipelineBatch("p", "2"), []) == 0
    assert shown(hw) == {}


def test_batches_of_a_run_are_put_once_each(hw: Store) -> None:
    assert pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 0), documents(x=1, y=1)) == 2
    assert pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 3), documents(y=2, z=2)) == 2  # numbers may have gaps
    for number in (0, 3):  # what was done before is not done again
        assert pipeline_binder.put(hw, "b", PipelineBatch("p", "1", number), documents(x=9, y=9)) is None
    assert shown(hw) == {"x": 1, "y": 2, "z": 2}
    assert [document.version for document in binder_of(hw, "b").find()] == [0, 3, 3]


def test_the_first_batch_of_another_run_replaces_what_is_there(hw: Store) -> None:
    pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 0), documents(x=1))
    pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 1), documents(y=1))
    pipeline_binder.put(hw, "b", PipelineBatch("p", "2", 0), documents(z=1))
    assert shown(hw) == {"z": 1}


def test_followers_are_told_of_what_was_put(hw: Store) -> None:
    pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 0), documents(x=1))
    place = binder_of(hw, "b").place()
    pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 1), documents(x=2, y=2))
    assert sorted(change.id for change in binder_of(hw, "b").follow(after=place, timeout=0)) == ["x", "y"]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("far", [False, True])
def test_two_rows_with_one_id_leave_all_as_it_was(
    hw: Store, number: int, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if far:
        monkeypatch.setattr(pipeline_binder, "CHUNK", 2)
    if number:
        pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 0), documents(old=1))
    rows = [*documents(x=1, y=1, z=1), *documents(y=2)]
    with pytest.raises(Invalid, match="two rows have the _id 'y'"):
        pipeline_binder.put(hw, "b", PipelineBatch("p", "1", number), rows)
    assert hw.binders() == (["b"] if number else [])
    if number:
        assert shown(hw) == {"old": 1}
        assert pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 1), documents(x=1)) == 1  # the batch was not done


def test_a_failure_while_documents_come_leaves_all_as_it_was(hw: Store) -> None:
    pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 0), documents(x=1))

    def failing() -> Iterator[tuple[str, bytes]]:
        yield from documents(x=2, y=2)
        raise RuntimeError("the cluster is gone")

    with pytest.raises(RuntimeError):
        pipeline_binder.put(hw, "b", PipelineBatch("p", "1", 1), failing())
    with pytest.raises(RuntimeError):
        pipeline_binder.replace(hw, "b", PipelineBatch("p", "2"), failing())
    assert shown(hw) == {"x": 1}


def test_what_a_projection_or_another_pipeline_fills_is_left_alone(hw: Store) -> None:
    app = App()

    @app.projection("t", "b")
    def fold(_doc: object, event: Event) -> dict[str, int]:
        return {"n": event.offset}

    hw.append("t", {}, key="x")
    app.catch_up(hw)
    for write in (pipeline_binder.replace, pipeline_binder.put):
        with pytest.raises(Conflict, match="is filled by projection 'fold'"):
            write(hw, "b", PipelineBatch("p", "1"), documents(x=1))
    assert shown(hw) == {"x": 0}
    pipeline_binder.replace(hw, "c", PipelineBatch("p", "1"), documents(x=1))
    with pytest.raises(Conflict, match="is filled by pipeline 'p'"):
        pipeline_binder.check_free(hw, "c", "q")
    pipeline_binder.check_free(hw, "c", "p")
    pipeline_binder.check_free(hw, "new", "q")

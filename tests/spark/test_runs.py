"""What is kept of pipelines between runs, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater import App, Conflict, Corrupt, Invalid, Unavailable
from headwater.spark.pipelines import runs
from headwater.spark.pipelines.runs import Notebook, Status
from headwater.views.pipeline import Pipeline


def declared(**arguments: object) -> Pipeline:
    app = App()
    app.pipeline("t", **{"to": "parquet:out", "name": "p", **arguments})(lambda frame: frame)  # type: ignore[arg-type]
    return app.pipelines["p"]


def test_a_plan_is_found_again(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path / "pipelines", "a pipeline/of mine")
    plan = runs.new_plan(declared(), {"t": {0: 5, 1: 7}}, 12)
    with notebook.held():
        assert notebook.plan() is None
        notebook.keep(plan)
    assert Notebook(tmp_path / "pipelines", "a pipeline/of mine").plan() == plan
    assert runs.new_plan(declared()).run != plan.run


def test_one_process_runs_a_pipeline(tmp_path: Path) -> None:
    one, other = Notebook(tmp_path, "p"), Notebook(tmp_path, "p")
    assert not one.is_held()
    with one.held():
        assert other.is_held()
        with pytest.raises(Unavailable, match="'p' is already running in another process") as caught, other.held():
            pass
        assert caught.value.code == "pipeline_running"
    assert not other.is_held()


def test_who_was_killed_is_seen_to_be_interrupted(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path, "p")
    status = Status("p", "batch", ["t"], "parquet:out", state="running")
    with notebook.held():
        notebook.tell(status)
        assert [each.state for each in runs.statuses(tmp_path)] == ["running"]
    assert [each.state for each in runs.statuses(tmp_path)] == ["interrupted"]
    assert runs.statuses(tmp_path / "nothing") == []


def test_progress_is_written_about_once_a_second(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path, "p")
    status = Status("p", "stream", ["t"], "topic:u")
    with notebook.held():
        notebook.tell(status)
        for events in range(1, 100):
            status.events = events
            notebook.tell(status, now=False)
        assert runs.statuses(tmp_path)[0].events == 0
        notebook.tell(status)
        assert runs.statuses(tmp_path)[0].events == 99


def test_a_stream_that_says_otherwise_than_before_is_refused() -> None:
    plan = runs.new_plan(declared(mode="stream"))
    runs.check_same(plan, declared(mode="stream", every=5, options={"splitBytes": 1000}))
    with pytest.raises(Conflict, match="another schema, version") as caught:
        runs.check_same(plan, declared(mode="stream", schema="n int", version=2))
    assert caught.value.code == "pipeline_changed"
    assert "--fresh" in caught.value.hint


def test_a_plan_that_is_damaged_is_told(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path, "p")
    with notebook.held():
        (notebook.path / "plan.json").write_text("{")
        with pytest.raises(Corrupt, match=r"plan\.json cannot be read"):
            notebook.plan()


def test_what_a_crash_has_left_of_a_file_is_removed(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path, "p")
    notebook.path.mkdir()
    (notebook.path / "plan.json.0123abcd.tmp").touch()
    with notebook.held():
        assert [each.name for each in notebook.path.iterdir()] == ["lock"]


def test_checkpoints_of_earlier_runs_are_removed(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path, "p")
    one, other = runs.new_plan(declared()), runs.new_plan(declared())
    notebook.checkpoint(one).mkdir(parents=True)
    assert notebook.checkpoint(one).exists()
    assert not notebook.checkpoint(other).exists()
    assert not (tmp_path / "p" / f"checkpoint-{one.run}").exists()


def test_progress_is_kept_beside_a_directory_and_elsewhere_where_it_is_told(tmp_path: Path) -> None:
    assert runs.root_of(str(tmp_path), None) == tmp_path / "pipelines"
    assert runs.root_of("http://host:7450", tmp_path) == tmp_path
    with pytest.raises(Invalid, match="checkpoints need a directory of their own"):
        runs.root_of("s3://bucket/prefix", None)


def test_events_between_two_places_are_counted() -> None:
    assert runs.between({"a": {0: 3}}, {"a": {0: 5, 1: 4}, "b": {0: 1}}) == 2 + 4 + 1

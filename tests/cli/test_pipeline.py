"""`headwater pipeline`: what is told of pipelines. How they run is in tests/spark."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

import headwater
from headwater.spark.pipelines.runs import Notebook, Status
from tests.cli.conftest import Run

SHOP = """
    import headwater

    app = headwater.App()

    @app.pipeline("orders", to="parquet:out", schema="cents bigint")
    def revenue(orders):
        '''What was earned.

        By day.
        '''

    @app.pipeline("orders", "returns", to="topic:net", mode="stream", every=5)
    def net(orders, returns):
        pass
"""


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    file = tmp_path / "shop_of_pipelines.py"
    file.write_text(dedent(SHOP))
    return file


def tell(root: Path, status: Status, *, held: bool = False) -> None:
    notebook = Notebook(root, status.name)
    with notebook.held():
        notebook.tell(status)
        if held:
            assert notebook.is_held()


def fill(data: Path, count: int = 10) -> None:
    with headwater.open(data) as hw:
        for number in range(count):
            hw.append("orders", {"cents": number})


def test_pipelines_are_listed_without_spark(run: Run, shop_file: Path) -> None:
    told = run("pipeline", "list", shop_file).out
    assert "What was earned." in told
    assert "By day" not in told
    assert "orders, returns" in told
    revenue, net = run("pipeline", "list", shop_file, "--json").objects
    assert (revenue["name"], revenue["topics"], revenue["to"]) == ("revenue", ["orders"], "parquet:out")
    assert (net["mode"], net["schema"]) == ("stream", {})


def test_an_application_without_pipelines_lists_none(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "empty_of_pipelines.py"
    file.write_text("import headwater\napp = headwater.App()\n")
    assert run("pipeline", "list", file).out == ""  # a terminal is told how to declare one
    assert "no such file" in run("pipeline", "list", tmp_path / "nothing.py", code=1).err


def test_status_tells_how_far_each_is(run: Run, data: Path) -> None:
    fill(data)
    done = Status("revenue", "batch", ["orders"], "parquet:out", began="2026-03-01T12:00:00+00:00", ended="x")
    done.events, done.rows, done.rate, done.seconds, done.reached = 7, 3, 3.5, 2.0, {"orders": {0: 7}}
    tell(data / "pipelines", done)
    (told,) = run("pipeline", "status", data, "--json").objects
    assert (told["state"], told["lag"], told["events"], told["rows"], told["rate"]) == ("idle", 3, 7, 3, 3.5)
    line = run("pipeline", "status", data).lines[2]
    assert line.split()[:7] == ["revenue", "orders", "→", "parquet:out", "batch", "idle", "3"]


def test_what_failed_is_told_and_is_the_exit_code(run: Run, data: Path) -> None:
    fill(data)
    tell(data / "pipelines", Status("bad", "batch", ["orders"], "topic:x", state="failed", error="ValueError: no tea"))
    ran = run("pipeline", "status", data, code=1)
    assert "bad: ValueError: no tea" in ran.out


def test_what_was_killed_is_interrupted(run: Run, data: Path) -> None:
    fill(data)
    tell(data / "pipelines", Status("p", "stream", ["gone*", "orders"], "topic:x", state="running"), held=True)
    (told,) = run("pipeline", "status", data, "--json").objects
    assert (told["state"], told["lag"]) == ("interrupted", 10)


def test_nothing_has_run_yet(run: Run, data: Path) -> None:
    fill(data)
    assert run("pipeline", "status", data).out == ""  # a terminal is told how to run one


def test_status_is_found_where_checkpoints_are(run: Run, data: Path, tmp_path: Path) -> None:
    fill(data)
    tell(tmp_path / "state", Status("p", "stream", ["orders"], "topic:x", reached={"orders": {0: 10}}))
    (told,) = run("pipeline", "status", data, "--checkpoints", tmp_path / "state", "--json").objects
    assert (told["name"], told["lag"]) == ("p", 0)

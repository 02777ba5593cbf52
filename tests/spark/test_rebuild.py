"""Binders built anew on Spark are those of the live projection (docs/SPARK.md, "Projections")."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import headwater.spark
from headwater.cli.app import cli
from headwater.errors import Conflict, Corrupt, HeadwaterError, Unavailable, Unsupported
from headwater.event import Event
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.spark.folding import sharding
from headwater.store import Store
from headwater.views import rebuild as alone
from headwater.views.app import App
from headwater.views.document_fold import Halt
from headwater.views.files import Files
from tests.log.children import Child
from tests.spark.folded import everything
from tests.spark.test_folding import fill
from tests.views import seen
from tests.waiting import wait_for

SETTLE_S = 60.0
LIMITS = Limits(segment_bytes=50_000, blob_bytes_min=400)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few events are worth a task, too."""
    monkeypatch.setattr(sharding, "SHARD_EVENTS_MIN", 50)


def files_of(hw: Store) -> list[str]:
    return sorted(name for name in os.listdir(Files.of(hw).path) if not name.startswith("."))


def count(doc: Any, _event: Event) -> Any:
    return {"n": (doc or {"n": 0})["n"] + 1}


def counting(version: int = 1, **named: Any) -> App:
    app = App()
    app.projection("t", "b", name="p", version=version, **named)(count)
    return app


def test_a_rebuilt_binder_is_that_of_the_live_projection(spark: SparkSession, hw: Store) -> None:
    def fold(doc: Any, event: Event) -> Any:
        if event.type == "end":
            return None
        doc = doc or {"seen": []}
        doc["seen"].append([event.partition, event.offset])
        return doc

    app = App()
    app.binder("b").index("n")
    app.projection("t", "b", name="p")(fold)
    fill(hw, 1, 3)
    app.catch_up(hw, SETTLE_S)
    live, before = everything(hw, "b"), Files.of(hw).current("b")
    told: list[tuple[int, int]] = []
    folded = headwater.spark.rebuild(spark, hw, app, "b", progress=lambda done, of: told.append((done, of)))
    assert everything(hw, "b") == live
    assert Files.of(hw).current("b") != before
    assert folded == seen.row(hw, "b", "p").folded
    assert len(files_of(hw)) == 2  # nothing is left of the workers
    assert all(done <= of for done, of in told)
    assert told[-1] == (sum(seen.cursors(hw, "b", "p").values()),) * 2
    hw.append("t", {"number": 1}, key="a", type="put")
    app.catch_up(hw, SETTLE_S)  # it goes on where Spark ended
    assert seen.documents(hw, "b") == seen.plain(hw, "t", fold, lambda event: event.key and event.key.decode())


def test_several_projections_with_keys_of_their_own_fill_one_binder(spark: SparkSession, hw: Store) -> None:
    app = App()
    app.projection("t", "b", name="q", key="by", unordered=True, on_error="quarantine")(count)
    app.projection("t", "b", name="p", unordered=True, on_error="quarantine")(count)
    fill(hw, 2, 2)
    alone.rebuild(hw, app.of_binder("b"))
    one = everything(hw, "b")
    headwater.spark.rebuild(spark, hw, app, "b")
    assert everything(hw, "b") == one


def test_a_fold_of_many_documents_is_folded_in_order_here(spark: SparkSession, hw: Store) -> None:
    def spread(docs: Any, event: Event) -> None:
        assert event.key is not None
        for id in (event.key.decode(), "all"):
            docs[id] = count(docs.get(id), event)

    app = App()
    app.projection("t", "b", name="p", many=True)(spread)
    hw.append_many("t", [b""] * 100, keys=[str(number % 7) for number in range(100)])
    assert headwater.spark.rebuild(spark, hw, app, "b") == 100
    assert seen.data(hw, "b")["all"] == {"n": 100}


def test_a_fold_that_raises_leaves_everything_as_it_was_and_tells_the_event(spark: SparkSession, hw: Store) -> None:
    def fold(_doc: Any, event: Event) -> Any:
        return {"n": event.value["number"]}

    hw.append_many("t", [{"number": 1}] * 100, keys=[str(number % 7) for number in range(100)])
    hw.append("t", b"{ poison", key="2")
    hw.append_many("t", [{"number": 1}] * 100, keys=[str(number % 7) for number in range(100)])
    counting().catch_up(hw, SETTLE_S)
    before = everything(hw, "b"), files_of(hw)
    app = App()
    app.projection("t", "b", name="p")(fold)
    with pytest.raises(Halt) as halted:
        headwater.spark.rebuild(spark, hw, app, "b")
    assert halted.value.error.offset == 100
    assert "fold" in halted.value.error.trace
    assert (everything(hw, "b"), files_of(hw)) == before
    quarantining = App()
    quarantining.projection("t", "b", name="p", on_error="quarantine")(fold)
    assert headwater.spark.rebuild(spark, hw, quarantining, "b") == 200
    assert seen.quarantined(hw, "b") == [(0, 100)]


def test_a_damaged_log_is_told_as_what_it_is(spark: SparkSession, hw: Store) -> None:
    hw.append_many("t", [b"x" * 50] * 300, keys=[str(number % 7) for number in range(300)])
    hw.seal("t")
    (segment, *_) = sorted((hw.path / "topics" / "t" / "0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(2000)
        file.write(b"damage" * 10)
    with pytest.raises(Corrupt):
        headwater.spark.rebuild(spark, hw, counting(), "b")


def test_an_older_version_is_refused_and_so_is_a_bucket(spark: SparkSession, hw: Store) -> None:
    hw.append_many("t", [b""] * 10, keys=["a"] * 10)
    counting(2).catch_up(hw, SETTLE_S)
    with pytest.raises(Conflict) as refused:
        headwater.spark.rebuild(spark, hw, counting(1), "b")
    assert refused.value.code == "superseded"
    with headwater.open(f"objects://{hw.path}-bucket") as bucket, pytest.raises(Unsupported) as needs:
        headwater.spark.rebuild(spark, bucket, counting(1), "b")
    assert needs.value.code == "verb_unsupported"


def test_an_empty_topic_gives_an_empty_binder(spark: SparkSession, hw: Store) -> None:
    hw.create("t", partitions=3)
    assert headwater.spark.rebuild(spark, hw, counting(), "b") == 0
    assert (seen.documents(hw, "b"), seen.cursors(hw, "b", "p")) == ({}, {0: 0, 1: 0, 2: 0})


def test_a_directory_with_a_relative_path_is_found_by_workers_that_are_elsewhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_directory(Path("here")) as hw:
        hw.append_many("t", [b""] * 10, keys=["a"] * 10)
        assert headwater.spark.rebuild(spark, hw, counting(), "b") == 10
        assert seen.data(hw, "b") == {"a": {"n": 10}}


def test_one_hot_key_is_folded_whole(spark: SparkSession, hw: Store) -> None:
    hw.create("t", partitions=2)
    keys = ["hot"] * 20_000 + [str(number) for number in range(200)]
    hw.append_many("t", [b""] * len(keys), keys=keys)
    assert headwater.spark.rebuild(spark, hw, counting(), "b") == len(keys)
    assert (seen.data(hw, "b")["hot"], len(seen.data(hw, "b"))) == ({"n": 20_000}, 201)


def test_events_and_the_live_projection_go_on_meanwhile_and_readers_see_no_gap(spark: SparkSession, hw: Store) -> None:
    hw.create("t", partitions=2)
    keys = [str(number) for number in range(10)]
    hw.append_many("t", [b""] * 1000, keys=keys * 100)
    done = threading.Event()
    wrong: list[Any] = []

    def appending() -> None:
        while not done.wait(0.001):
            hw.append_many("t", [b""] * len(keys), keys=keys, durability="os")

    def reading() -> None:
        before: dict[str, int] = {}
        while not done.wait(0.001):
            now = {doc.id: doc.data["n"] for doc in hw.binder("b").find()}
            wrong.extend((id, n, now.get(id)) for id, n in before.items() if now.get(id, 0) < n)
            before = now

    with counting().running(hw) as runner:
        runner.settle(SETTLE_S)
        threads = [threading.Thread(target=appending), threading.Thread(target=reading)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                headwater.spark.rebuild(spark, hw, counting(), "b")
        finally:
            done.set()
            for thread in threads:
                thread.join()
        runner.settle(SETTLE_S)
    assert wrong == []
    ends = sum(each.end for each in hw.describe("t").partitions)
    assert ends > 1000
    assert seen.data(hw, "b") == {key: {"n": ends // 10} for key in keys}


def reading(path: Path, ended: Path) -> tuple[int, list[Any]]:
    """Read all documents until a file is there: how often, and where one had gone back."""
    reads, wrong = 0, []
    before: dict[str, int] = {}
    with open_directory(path) as hw:
        while not ended.exists():
            now = {doc.id: doc.data["n"] for doc in hw.binder("b").find()}
            wrong += [(id, n, now.get(id)) for id, n in before.items() if now.get(id, 0) < n]
            before, reads = now, reads + 1
    return reads, wrong


def test_processes_that_read_see_the_old_documents_or_the_new_ones(
    spark: SparkSession, hw: Store, tmp_path: Path
) -> None:
    hw.append_many("t", [b""] * 1000, keys=[str(number % 10) for number in range(1000)])
    counting().catch_up(hw, SETTLE_S)
    ended = tmp_path / "ended"
    children = [Child(lambda _: reading(hw.path, ended)) for _ in range(2)]
    for _ in range(2):
        headwater.spark.rebuild(spark, hw, counting(), "b")
    ended.touch()
    for child in children:
        reads, wrong = child.result()
        assert (reads > 0, wrong) == (True, [])


_KILLED = """
import sys, time
from pathlib import Path
import headwater, headwater.spark
path, begun = map(Path, sys.argv[1:])
app = headwater.App()

@app.projection("t", "b", name="p", version=2)
def fold(doc, event):
    begun.touch()
    until = time.monotonic() + 30
    while begun.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return {"n": 0}

spark = headwater.spark.session("local[1]", quick=True, memory="512m")
with headwater.open(path) as hw:
    headwater.spark.rebuild(spark, hw, app, "b")
"""


def test_a_driver_that_is_killed_in_the_midst_has_changed_nothing_and_the_next_begins_anew(
    spark: SparkSession, hw: Store, tmp_path: Path
) -> None:
    hw.append_many("t", [b""] * 1000, keys=[str(number % 10) for number in range(1000)])
    counting().catch_up(hw, SETTLE_S)
    before, begun = everything(hw, "b"), tmp_path / "begun"
    words = [sys.executable, "-c", _KILLED, str(hw.path), str(begun)]
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    driver = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        wait_for(lambda: begun.exists() or driver.poll() is not None, 200)
        assert driver.poll() is None
        assert len(files_of(hw)) > 3
        with pytest.raises(Unavailable) as locked:
            alone.rebuild(hw, counting(2).of_binder("b"), wait=False)
        assert locked.value.code == "locked"
    finally:
        driver.kill()
        driver.wait()
    assert everything(hw, "b") == before
    hw.append("t", b"", key="new")
    counting().catch_up(hw, SETTLE_S)  # the old one is still kept up to date
    assert headwater.spark.rebuild(spark, hw, counting(2), "b") == 1001
    begun.unlink(missing_ok=True)
    assert seen.row(hw, "b", "p").version == 2
    assert seen.data(hw, "b")["new"] == {"n": 1}
    wait_for(lambda: _swept(hw))


def _swept(hw: Store) -> bool:
    """Whether nothing is left of workers; those of a killed driver end a little later than it does."""
    Files.of(hw).tidy("b")
    return len(files_of(hw)) == 2


def command(*words: str) -> Any:
    return CliRunner().invoke(cli, list(words), prog_name="headwater")


def test_the_command_folds_an_application_of_a_file(spark: SparkSession, hw: Store) -> None:
    assert spark is not None
    hw.append_many("orders", [{"n": 2, "price": 3}] * 300, keys=[str(number % 7) for number in range(300)])
    words = ["views", "rebuild", str(hw.path), "baskets", "--app", "tests/cli/shop.py", "--on", "spark"]
    done = command(*words, "--json")
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.stdout)["events"] == 300
    assert hw.binder("baskets").info().indexes == ["total"]
    assert sum(doc["total"] for doc in seen.data(hw, "baskets").values()) == 1800
    assert command(*words).stdout.startswith("✓ rebuilt baskets from 300 events")
    hw.append("orders", b"poison", key="1", type="odd")
    failed = command(*words)
    assert failed.exit_code == 1
    assert "offset 300 of orders/0 (type 'odd'" in failed.stderr
    assert len(seen.data(hw, "baskets")) == 7


def test_a_fold_that_ends_its_process_and_one_that_cannot_be_sent_change_nothing(
    spark: SparkSession, hw: Store
) -> None:
    hw.append_many("t", [b""] * 100, keys=["a"] * 100)
    counting().catch_up(hw, SETTLE_S)
    before = everything(hw, "b"), files_of(hw)
    held = threading.Lock()

    def ends(_doc: Any, _event: Event) -> Any:
        os._exit(7)

    def holds(_doc: Any, _event: Event) -> Any:
        with held:
            return {}

    for fold, code in ((ends, "spark_failed"), (holds, "cannot_be_sent")):
        app = App()
        app.projection("t", "b", name="p")(fold)
        with pytest.raises(HeadwaterError) as refused:
            headwater.spark.rebuild(spark, hw, app, "b")
        assert refused.value.code == code
        assert len(str(refused.value)) < 500  # it is told in a line
        assert (everything(hw, "b"), files_of(hw)) == before


def test_a_task_whose_worker_dies_is_tried_again_and_counts_once(
    spark: SparkSession, hw: Store, tmp_path: Path
) -> None:
    died = tmp_path / "died"

    def fold(doc: Any, event: Event) -> Any:
        if event.offset == 80 and not died.exists():
            died.touch()
            os._exit(7)
        return count(doc, event)

    hw.append_many("t", [b""] * 100, keys=[str(number % 5) for number in range(100)])
    app = App()
    app.projection("t", "b", name="p")(fold)
    assert headwater.spark.rebuild(spark, hw, app, "b") == 100
    assert died.exists()
    assert seen.data(hw, "b") == {str(number): {"n": 20} for number in range(5)}
    assert seen.row(hw, "b", "p").folded == 100
    assert len(files_of(hw)) == 2

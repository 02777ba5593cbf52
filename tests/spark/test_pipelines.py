"""Pipelines on Spark: every kind of place, batch and stream, once whatever happens, and what is told of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headwater
from headwater import App, Conflict, HeadwaterError, Invalid, NotFound, Unavailable
from headwater.opening import open_directory
from headwater.spark.pipelines import frames, runs
from headwater.spark.pipelines import running as pipelines
from headwater.spark.pipelines.running import run
from headwater.spark.pipelines.runs import Status
from headwater.spark.session import open_place
from tests.server.process import served

FIELDS = "product string, cents bigint"
PRODUCTS = ("tea", "cup", "lamp")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with open_directory(tmp_path / "data") as hw:
        hw.create("orders", partitions=2)
    append(tmp_path / "data", 30)
    return tmp_path / "data"


def append(data: Path, count: int, topic: str = "orders") -> None:
    with open_directory(data) as hw:
        first = hw.describe(topic).events if topic in hw.topics() else 0
        for number in range(first, first + count):
            order = {"product": PRODUCTS[number % 3], "cents": number}
            hw.append(topic, order, type="sold", key=f"c-{number % 7}")


def sums(count: int) -> dict[str, int]:
    return {product: sum(range(at, count, 3)) for at, product in enumerate(PRODUCTS)}


def by_product(orders: DataFrame) -> DataFrame:
    return orders.groupBy("product").agg(f.sum("cents").alias("cents"))


def by_id(orders: DataFrame) -> DataFrame:
    return orders.groupBy(f.col("product").alias("_id")).agg(f.sum("cents").alias("cents"))


def same(orders: DataFrame) -> DataFrame:
    return orders.select("product", "cents")


def app_of(compute: Callable[..., Any], to: str, **arguments: Any) -> App:
    app = App()
    app.pipeline("orders", **{"to": to, "name": "p", "schema": FIELDS, **arguments})(compute)
    return app


def events_of(data: Path, topic: str) -> list[dict[str, Any]]:
    with open_directory(data) as hw:
        return [event.value for event in hw.read(topic)] if topic in hw.topics() else []


def documents_of(data: Path) -> dict[str, int]:
    with open_directory(data) as hw:
        return {document.id: document.data["cents"] for document in hw.binder("totals").find()}


def parquet_of(spark: SparkSession) -> dict[str, int]:
    return {row["product"]: row.cents for row in spark.read.parquet(str(Path("out").absolute())).collect()}


def status_of(data: Path) -> Status:
    (found,) = runs.statuses(data / "pipelines")
    with open_directory(data) as hw:
        found.lag = frames.lag(hw, found)
    return found


# Batch


@pytest.fixture(params=["s3", "server"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, users_file: Path) -> Iterator[str]:
    if request.param == "s3":
        yield request.getfixturevalue("s3_url")
        return
    with served(tmp_path / "served", "--auth", str(users_file)) as server:
        yield server.url


def test_a_bucket_and_a_server_are_read_and_written_as_well(
    spark: SparkSession, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_place(elsewhere, mode="create") as hw:
        hw.append_many("orders", [{"product": PRODUCTS[n % 3], "cents": n} for n in range(30)], keys=["k"] * 30)
    app = app_of(by_product, "parquet:out")
    app.pipeline("orders", to="topic:copy", name="copy", mode="stream", schema=FIELDS)(same)
    for _ in range(2):
        run(spark, elsewhere, app, checkpoints=tmp_path / "state")
    assert parquet_of(spark) == sums(30)
    with open_place(elsewhere) as hw:
        assert sorted(event.value["cents"] for event in hw.read("copy")) == list(range(30))
    with pytest.raises(Invalid, match="--checkpoints"):
        run(spark, elsewhere, app)


def test_a_batch_replaces_parquet_with_what_is_there_now(spark: SparkSession, data: Path) -> None:
    app = app_of(by_product, "parquet:out")
    (done,) = run(spark, data, app)
    assert parquet_of(spark) == sums(30)
    assert (done.state, done.events, done.rows) == ("idle", 30, 3)
    append(data, 6)
    assert status_of(data).lag == 6
    run(spark, data, app)
    assert parquet_of(spark) == sums(36)
    assert status_of(data).lag == 0
    assert {file.suffix for file in Path("out").iterdir()} == {".parquet"}


def test_a_batch_replaces_the_documents_of_a_binder(spark: SparkSession, data: Path) -> None:
    app = app_of(by_id, "binder:totals")
    app.binder("totals").index("cents")
    for count in (30, 36):
        run(spark, data, app)
        assert documents_of(data) == sums(count)
        append(data, 6)
    with open_directory(data) as hw:
        assert hw.binder("totals").info().indexes == ["cents"]


def test_documents_hold_what_columns_do(spark: SparkSession, data: Path) -> None:
    def every(orders: DataFrame) -> DataFrame:
        return orders.where("cents = 1").selectExpr(
            "offset + 5 as _id", "date'2026-03-01' as day", "timestamp'2026-03-01 12:00:00' as at", "true as yes",
            "array(1, 2) as list", "named_struct('a', 1.5D, 'b', 'x') as inner", "cast(null as string) as nothing",
        )  # fmt: skip

    run(spark, data, app_of(every, "binder:totals"))
    with open_directory(data) as hw:
        (document,) = hw.binder("totals").find()
    assert int(document.id) >= 5
    assert document.data.pop("at").isoformat() == "2026-03-01T12:00:00+00:00"
    expected = {"day": "2026-03-01", "yes": True, "list": [1, 2], "inner": {"a": 1.5, "b": "x"}, "nothing": None}
    assert document.data == expected


def test_a_batch_is_appended_to_a_topic_once_for_what_is_there(spark: SparkSession, data: Path) -> None:
    app = app_of(by_product, "topic:totals")
    run(spark, data, app)
    (again,) = run(spark, data, app)
    assert (again.batches, again.rows) == (0, 0)
    assert {each["product"]: each["cents"] for each in events_of(data, "totals")} == sums(30)
    assert len(events_of(data, "totals")) == 3
    append(data, 6)
    run(spark, data, app)
    assert len(events_of(data, "totals")) == 6
    run(spark, data, app, fresh=True)
    assert len(events_of(data, "totals")) == 9


def test_a_batch_that_was_killed_is_gone_on_with_over_the_same_events(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when everything is appended, and before that is noted."""
    app = app_of(by_product, "topic:totals")
    keep = runs.Notebook.keep

    def dying(self: runs.Notebook, plan: runs.RunPlan) -> None:
        if plan.done:
            raise KeyboardInterrupt
        keep(self, plan)

    monkeypatch.setattr(runs.Notebook, "keep", dying)
    with pytest.raises(KeyboardInterrupt):
        run(spark, data, app)
    assert status_of(data).state == "interrupted"
    monkeypatch.setattr(runs.Notebook, "keep", keep)
    append(data, 6)
    run(spark, data, app)
    assert {each["product"]: each["cents"] for each in events_of(data, "totals")} == sums(30)
    assert len(events_of(data, "totals")) == 3
    assert status_of(data).lag == 6


def test_topics_are_given_in_order_and_an_empty_one_is_an_empty_frame(spark: SparkSession, data: Path) -> None:
    with open_directory(data) as hw:
        hw.create("returns")
    app = App()

    @app.pipeline("orders", "returns", to="parquet:out", schema={"orders": FIELDS})
    def left(orders: DataFrame, returns: DataFrame) -> DataFrame:
        assert returns.columns[-2:] == ["data", "meta"]
        back = returns.select(f.col("key").alias("back"))
        return by_product(orders.join(back, orders.key == back.back, "left_anti"))

    (done,) = run(spark, data, app)
    assert parquet_of(spark) == sums(30)
    assert done.reached.keys() == {"orders", "returns"}


@pytest.mark.parametrize("to", ["parquet:out", "binder:totals", "topic:totals"])
@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_nothing_comes_of_nothing(spark: SparkSession, data: Path, to: str, mode: str) -> None:
    with open_directory(data) as hw:
        hw.create("empty")
    app = App()
    compute = by_id if to.startswith("binder") else same
    app.pipeline("empty", to=to, mode=mode, name="p", schema=FIELDS)(compute)  # type: ignore[arg-type]
    (done,) = run(spark, data, app)
    assert (done.state, done.events, done.rows) == ("idle", 0, 0)
    assert status_of(data).lag == 0


def test_parquet_is_partitioned_by_columns(spark: SparkSession, data: Path) -> None:
    run(spark, data, app_of(same, "parquet:out", partition_by="product"))
    assert sorted(each.name for each in Path("out").iterdir()) == [f"product={each}" for each in sorted(PRODUCTS)]
    with pytest.raises(Invalid, match="partition_by names 'day', but the columns are product, cents"):
        run(spark, data, app_of(same, "parquet:out", partition_by="day"))


# Streams


def test_a_stream_passes_each_event_once_to_every_kind_of_place(spark: SparkSession, data: Path) -> None:
    app = App()
    options = {"maxEventsPerTrigger": 20}
    app.pipeline("orders", to="topic:copy", mode="stream", name="topic", schema=FIELDS, options=options)(same)
    app.pipeline("orders", to="parquet:out", mode="stream", name="parquet", schema=FIELDS, options=options)(same)
    app.pipeline("orders", to="binder:totals", mode="stream", name="binder", schema=FIELDS, options=options)(by_id)
    for count, batches in ((30, 2), (36, 1)):
        for each in run(spark, data, app):
            assert (each.state, each.events) == ("idle", 30 if count == 30 else 6)
            assert each.batches == batches
            assert each.rows == (each.events if each.name != "binder" else 3 * batches)
            assert sum(each.reached["orders"].values()) == count
        assert sorted(each["cents"] for each in events_of(data, "copy")) == list(range(count))
        rows = spark.read.parquet(str(Path("out").absolute())).collect()
        assert sorted(row.cents for row in rows) == list(range(count))
        assert documents_of(data) == sums(count)
        append(data, 6)


def test_streams_follow_until_they_are_stopped(spark: SparkSession, data: Path) -> None:
    app = app_of(same, "topic:copy", mode="stream")
    app.pipeline("orders", to="parquet:out", name="q", schema=FIELDS)(by_product)  # which is run once, before
    stop = threading.Event()
    seen: list[int] = []

    def told(status: Status) -> None:
        if status.name == "p" and status.events >= 30 and not seen:
            seen.append(status.events)
            append(data, 6)
        if status.name == "p" and status.events >= 36:
            stop.set()

    done, batch = run(spark, data, app, follow=True, stop=stop, told=told)
    assert (done.state, done.events, done.rows) == ("idle", 36, 36)
    assert batch.events == 30
    assert sorted(each["cents"] for each in events_of(data, "copy")) == list(range(36))


def test_a_batch_of_a_stream_that_died_after_writing_is_written_once(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between what is written and Spark's note of it: Spark runs the batch again."""
    from headwater.spark.pipelines import targets

    app = App()
    app.pipeline("orders", to="parquet:out", mode="stream", name="parquet", schema=FIELDS)(same)
    app.pipeline("orders", to="binder:totals", mode="stream", name="binder", schema=FIELDS)(by_id)
    each_batch = targets._each_batch

    def dying(frame: Any, mode: Any, write: Callable[..., Any], put: Any) -> Any:
        def once(rows: Any, number: int) -> None:
            write(rows, number)
            raise RuntimeError("killed")

        return each_batch(frame, mode, once, put)

    monkeypatch.setattr(targets, "_each_batch", dying)
    for name in app.pipelines:
        with pytest.raises(Invalid, match=f"pipeline '{name}' failed: RuntimeError: killed"):
            run(spark, data, app, [name])
    monkeypatch.setattr(targets, "_each_batch", each_batch)
    run(spark, data, app)
    rows = spark.read.parquet(str(Path("out").absolute())).collect()
    assert sorted(row.cents for row in rows) == list(range(30))
    assert documents_of(data) == sums(30)
    append(data, 6)
    run(spark, data, app, ["binder"])
    assert documents_of(data) == sums(36)  # the sums go on, also of the batch that was done before


def test_a_stream_that_is_declared_otherwise_begins_anew_only_when_that_is_wanted(
    spark: SparkSession, data: Path
) -> None:
    run(spark, data, app_of(same, "parquet:out", mode="stream"))

    def doubled(orders: DataFrame) -> DataFrame:
        return orders.select("product", (f.col("cents") * 2).alias("cents"))

    changed = app_of(doubled, "parquet:out", mode="stream", version=2)
    with pytest.raises(Conflict, match="pipeline 'p' ran before with another version"):
        run(spark, data, changed)
    assert "another version" in (status_of(data).error or "")
    run(spark, data, changed, fresh=True)
    rows = spark.read.parquet(str(Path("out").absolute())).collect()
    assert sorted(row.cents for row in rows) == [2 * number for number in range(30)]


# What goes wrong


def failing_in_a_task(orders: DataFrame) -> DataFrame:
    # Of what has type hints, Spark wants to know more.
    return orders.select(f.udf(lambda cents: [].index(cents * 0), "bigint")("cents").alias("cents"))


def failing_on_the_driver(orders: DataFrame) -> DataFrame:  # noqa: ARG001
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("compute", "told"),
    [
        (failing_in_a_task, r"ValueError: 0 is not in list \(test_pipelines\.py, line \d+\)"),
        (failing_on_the_driver, r"KeyError: 'nothing' \(test_pipelines\.py, line \d+\)"),
        (lambda orders: orders.select("nothing"), r"with name `nothing` cannot be resolved"),
        (lambda orders: orders.collect(), "its function returned list, not a DataFrame"),
    ],
)
@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_a_pipeline_that_fails_says_which_and_why_in_one_line(
    spark: SparkSession, data: Path, compute: Callable[..., Any], told: str, mode: str
) -> None:
    if mode == "stream" and "returned list" in told:
        told = "Queries with streaming sources must be executed with writeStream"
    with pytest.raises(HeadwaterError, match=told) as caught:
        run(spark, data, app_of(compute, "parquet:out", mode=mode))
    assert caught.value.message.startswith("pipeline 'p'")
    assert "\n" not in str(caught.value)
    assert "java" not in str(caught.value)
    found = status_of(data)
    assert found.state == "failed"
    assert found.lag == 30
    assert not Path("out").exists()
    run(spark, data, app_of(same, "parquet:out", mode=mode))  # mended, it goes on
    assert status_of(data).state == "idle"
    assert status_of(data).error is None


def test_those_behind_one_that_fails_are_not_run(spark: SparkSession, data: Path) -> None:
    app = app_of(failing_on_the_driver, "parquet:out")
    app.pipeline("orders", to="parquet:other", name="q", schema=FIELDS)(same)
    with pytest.raises(Invalid):
        run(spark, data, app)
    assert not Path("other").exists()
    run(spark, data, app, ["q"])
    assert Path("other").exists()


def test_a_stream_that_fails_ends_those_beside_it_and_is_the_only_one_that_is_blamed(
    spark: SparkSession, data: Path
) -> None:
    app = App()
    app.pipeline("orders", to="parquet:out", mode="stream", name="sound", schema=FIELDS)(same)
    app.pipeline("orders", to="topic:bad", mode="stream", name="bad", schema=FIELDS)(failing_in_a_task)
    with pytest.raises(Invalid, match=r"^pipeline 'bad' failed: ValueError") as caught:
        run(spark, data, app, follow=True)
    assert caught.value.pipeline == "bad"
    found = {each.name: each for each in runs.statuses(data / "pipelines")}
    assert (found["sound"].state, found["sound"].error) == ("interrupted", None)
    assert found["bad"].state == "failed"


def test_a_stream_that_could_not_be_started_in_time_is_started_again(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Any] = []
    start = pipelines._PipelineRun._start

    class Late:
        isActive = False  # noqa: N815  # Spark's name

        def exception(self) -> str:
            return "Python worker failed to connect back."

    def late_at_first(self: Any, *arguments: Any) -> Any:
        starts.append(Late() if not starts else start(self, *arguments))
        return starts[-1]

    monkeypatch.setattr(pipelines._PipelineRun, "_start", late_at_first)
    (done,) = run(spark, data, app_of(same, "parquet:out", mode="stream"))
    assert (len(starts), done.rows) == (2, 30)


@pytest.mark.parametrize(
    ("compute", "told"),
    [
        (same, "documents need a column _id; the columns are product, cents"),
        (lambda orders: orders.select(f.col("product").alias("_id")), "two rows have the _id"),
        (lambda orders: orders.select(f.lit(None).alias("_id"), "cents"), "a row has no _id"),
        (lambda orders: orders.selectExpr("product as _id", "1.5 as price"), "'price' of type decimal"),
    ],
)
def test_what_is_no_document_leaves_the_binder_as_it_was(
    spark: SparkSession, data: Path, compute: Callable[..., Any], told: str
) -> None:
    run(spark, data, app_of(by_id, "binder:totals"))
    with pytest.raises(Invalid, match=told):
        run(spark, data, app_of(compute, "binder:totals"))
    assert documents_of(data) == sums(30)


def test_what_cannot_be_run_is_told_before_anything_is(spark: SparkSession, data: Path) -> None:
    with pytest.raises(NotFound, match="has no pipelines"):
        run(spark, data, App())
    with pytest.raises(NotFound, match="has no pipeline 'q'") as caught:
        run(spark, data, app_of(same, "parquet:out"), ["q"])
    assert caught.value.hint == "it has p"
    missing = App()
    missing.pipeline("nothing", to="parquet:out", name="p")(same)
    with pytest.raises(NotFound, match="pipeline 'p': "):
        run(spark, data, missing)
    with pytest.raises(Invalid, match="checkpoints need a directory of their own"):
        run(spark, "http://127.0.0.1:1", app_of(same, "parquet:out"))
    Path("home").mkdir()
    Path("home/thesis.txt").touch()
    with pytest.raises(Conflict, match=r"holds thesis.txt, which is not Parquet"):
        run(spark, data, app_of(same, "parquet:home"))
    with (
        runs.Notebook(data / "pipelines", "p").held(),
        pytest.raises(Unavailable, match="is already running in another process"),
    ):
        run(spark, data, app_of(same, "parquet:out"))


def test_what_is_stopped_leaves_what_was_there(spark: SparkSession, data: Path) -> None:
    app = app_of(by_product, "parquet:out")
    run(spark, data, app)
    stop = threading.Event()
    append(data, 6)

    def slow(orders: DataFrame) -> DataFrame:
        stop.set()
        return orders.select("product", f.udf(lambda _: time.sleep(30), "bigint")("cents").alias("cents"))

    (done,) = run(spark, data, app_of(slow, "parquet:out"), stop=stop)
    assert done.state == "interrupted"
    assert parquet_of(spark) == sums(30)
    assert status_of(data).lag == 6


def test_pipelines_are_no_topics_and_no_damage(spark: SparkSession, data: Path) -> None:
    run(spark, data, app_of(same, "topic:copy", mode="stream"))
    with headwater.open(data) as hw:
        assert hw.topics() == ["copy", "orders"]
        assert hw.check().findings == []

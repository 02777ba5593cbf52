"""Filters that the log takes over: the same rows as Spark would leave, and fewer batches to read for them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)
from pyspark.sql.types import StructType

import headwater
from headwater.format import events
from headwater.limits import Limits
from headwater.log import reading
from headwater.spark.reading import planning, scan
from headwater.spark.reading.filters import Filters
from headwater.spark.reading.options import SourceOptions, parse
from headwater.spark.reading.planning import FilterBounds

SCHEMA = (
    StructType()
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("time", "timestamp")
    .add("type", "string")
    .add("key", "binary")
    .add("data", "binary")
)
COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: lambda value, start: value.startswith(start),
    StringContains: lambda value, part: part in value,
}
TYPES = ["placed", "paid", "", "a|b", "new\nline"]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics in sealed batches of which each has a type and keys of its own; some events have no key."""
    path = tmp_path_factory.mktemp("filters") / "data"
    with headwater.open(path, limits=Limits(pack_events=20)) as hw:
        hw.create("orders", partitions=2)
        hw.create("other")
        for number in range(10):
            keys = [f"{number}" if i % 5 else None for i in range(20)]
            for topic in ("orders", "other"):
                hw.append_many(topic, [b"1"] * 20, keys=keys, types=TYPES[number // 2], partition=0)
            hw.append("orders", b"1", partition=1, type="alone")
        for topic in ("orders", "other"):
            hw.seal(topic)
    return path


def options(data: Path, **more: str) -> SourceOptions:
    return parse({"path": str(data), "topic": "orders,other", **more})


def rows(data: Path, filters: Filters, read: SourceOptions) -> list[dict[str, Any]]:
    """What would go to Spark."""
    with headwater.open(data) as hw:
        pieces = planning.plan(hw, read, filters.narrowing)
        found = [events.table(each, SCHEMA.fieldNames()) for each in scan.pieces(hw, pieces, filters.wanted)]
    return pa.concat_tables(found).to_pylist() if found else []


def holds(given: Filter, row: dict[str, Any]) -> bool:
    """What Spark would say of a row; null is no."""
    if isinstance(given, Not):
        inner = row[given.child.attribute[0]]  # type: ignore[attr-defined]  # all of ours have one
        return inner is not None and not holds(given.child, row)
    column: str = given.attribute[0]  # type: ignore[attr-defined]
    value = row[column]
    if isinstance(given, (IsNull, IsNotNull)):
        return (value is None) == isinstance(given, IsNull)
    wanted = given.value  # type: ignore[attr-defined]
    if isinstance(given, EqualNullSafe) and wanted is None:
        return value is None
    if value is None or wanted is None:
        return False
    return value in wanted if isinstance(given, In) else COMPARED[type(given)](value, wanted)


def compared(column: str, values: st.SearchStrategy[Any], *kinds: type[Any]) -> st.SearchStrategy[Filter]:
    return st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), values)


def any_filter(times: Sequence[datetime]) -> st.SearchStrategy[Filter]:
    order = EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
    near = st.builds(
        lambda time, by: time + timedelta(microseconds=by), st.sampled_from([*times]), st.integers(-1, 1)
    ) | st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    keys = st.sampled_from([b"1", b"7", b"", b"none"])
    return st.one_of(
        compared("offset", st.integers(-3, 210) | st.sampled_from([2**63 - 1, -(2**63)]), *order),
        compared("offset", st.lists(st.integers(-3, 210), min_size=1, max_size=3), In),
        compared("time", near, *order),
        compared("partition", st.integers(-1, 3), *order),
        compared("topic", st.sampled_from(["orders", "other", "none"]), EqualTo, EqualNullSafe, StringStartsWith),
        compared("type", st.sampled_from(TYPES), EqualTo, EqualNullSafe, GreaterThan, StringStartsWith, StringContains),
        compared("type", st.lists(st.sampled_from(TYPES), min_size=1), In),
        compared("key", keys, EqualTo, EqualNullSafe, LessThan),
        compared("key", st.none(), EqualTo, EqualNullSafe),
        compared("key", st.lists(keys | st.none(), min_size=1, max_size=3), In),
        st.builds(lambda column: IsNotNull((column,)), st.sampled_from(SCHEMA.fieldNames())),
        st.builds(lambda column: IsNull((column,)), st.sampled_from(SCHEMA.fieldNames())),
        compared("key", keys, EqualTo).map(Not),
        compared("type", st.sampled_from(TYPES), EqualTo).map(Not),
    )


@pytest.fixture(scope="module")
def everything(data: Path) -> list[dict[str, Any]]:
    return rows(data, Filters(SCHEMA, scan.EVERYTHING), options(data))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.data())
def test_what_is_taken_over_leaves_the_rows_that_spark_would(
    data: Path, everything: list[dict[str, Any]], drawn: st.DataObject
) -> None:
    times = [row["time"] for row in everything[:: len(everything) // 7]]
    filters = drawn.draw(st.lists(any_filter(times), min_size=1, max_size=4))
    more = drawn.draw(st.sampled_from([{}, {"type": "p.*"}, {"key": "7"}]))
    read = options(data, **more)
    taking = Filters(SCHEMA, read.wanted)
    left = taking.take(filters)
    assert all(any(each is one for one in filters) for each in left)  # Spark knows them by their identity
    plain = rows(data, Filters(SCHEMA, read.wanted), read)
    expected = [row for row in plain if all(holds(each, row) for each in filters)]
    assert [row for row in rows(data, taking, read) if all(holds(each, row) for each in left)] == expected


@pytest.mark.parametrize(
    "filters",
    [
        [LessThanOrEqual(("offset",), 25)],
        [LessThan(("offset",), 25), GreaterThan(("offset",), 20)],
        [GreaterThanOrEqual(("offset",), 195)],
        [LessThan(("offset",), -3)],
        [In(("offset",), (25, 65))],
        [StringStartsWith(("type",), "new")],
        [StringStartsWith(("type",), "")],
        [In(("type",), ("a|b", "paid")), StringContains(("type",), "|")],
        [EqualTo(("key",), None)],
        [EqualNullSafe(("key",), None)],
        [EqualTo(("key",), b"1"), EqualTo(("key",), b"7")],
        [In(("key",), (b"1", None))],
        [IsNotNull(("key",))],
    ],
    ids=str,
)
def test_bounds_and_nulls_are_those_of_spark(
    data: Path, everything: list[dict[str, Any]], filters: list[Filter]
) -> None:
    taking = Filters(SCHEMA, scan.EVERYTHING)
    left = taking.take(filters)
    found = [row for row in rows(data, taking, options(data)) if all(holds(each, row) for each in left)]
    assert found == [row for row in everything if all(holds(each, row) for each in filters)]


@pytest.mark.parametrize("kind", [EqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual])
def test_a_time_is_all_ticks_of_its_microsecond(data: Path, everything: list[dict[str, Any]], kind: Any) -> None:
    for row in (everything[0], everything[85], everything[-1]):
        given = kind(("time",), row["time"])
        taking = Filters(SCHEMA, scan.EVERYTHING)
        assert taking.take([given]) == []
        assert rows(data, taking, options(data)) == [each for each in everything if holds(given, each)]


@pytest.mark.parametrize(
    "taken",
    [
        EqualTo(("offset",), 5),
        In(("offset",), (5,)),
        LessThan(("time",), NOON),
        EqualTo(("time",), NOON),
        In(("topic",), ("orders",)),
        EqualTo(("partition",), 1),
        In(("type",), ("placed", "paid")),
        StringStartsWith(("type",), "pa"),
        EqualNullSafe(("key",), b"7"),
        IsNotNull(("time",)),
    ],
    ids=str,
)
def test_what_the_log_can_do_is_not_left_to_spark(taken: Filter) -> None:
    assert Filters(SCHEMA, scan.EVERYTHING).take([taken]) == []


def test_a_key_that_is_equal_to_something_is_not_null() -> None:
    both = [IsNotNull(("key",)), EqualTo(("key",), b"7")]
    assert Filters(SCHEMA, scan.EVERYTHING).take(both) == []
    assert Filters(SCHEMA, scan.EVERYTHING).take(both[:1]) == both[:1]


def test_columns_that_are_declared_otherwise_and_fields_are_left_to_spark() -> None:
    schema = StructType().add("offset", "integer").add("key", "string").add("time", "string").add("n", "integer")
    schema.add("type", StructType().add("offset", "integer"))
    filters = [
        EqualTo(("offset",), 5),
        EqualTo(("key",), "7"),
        LessThan(("time",), "2025"),
        EqualTo(("n",), 1),
        EqualTo(("type", "offset"), 1),
        IsNotNull(("n",)),
    ]
    assert Filters(schema, scan.EVERYTHING).take(filters) == filters


def test_too_many_types_for_a_pattern_are_left_to_spark() -> None:
    filters = [In(("type",), tuple(f"type-{number}" for number in range(1000)))]
    assert Filters(SCHEMA, scan.EVERYTHING).take(filters) == filters


# That batches are skipped


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([GreaterThanOrEqual(("offset",), 180), EqualTo(("partition",), 0)], 1),
        ([EqualTo(("partition",), 1)], 1),
        ([In(("offset",), (25, 65)), EqualTo(("partition",), 0)], 3),
        ([EqualTo(("type",), "paid")], 2),
        ([StringStartsWith(("type",), "pl")], 2),
        ([EqualTo(("key",), b"7")], 1),
    ],
    ids=str,
)
def test_batches_that_cannot_hold_what_is_wanted_are_not_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, filters: list[Filter], most: int
) -> None:
    found: list[int] = []
    pick = reading.pick

    def noted(log: Any, batch: Any, *rest: Any) -> Any:
        found.append(batch.base_offset)
        return pick(log, batch, *rest)

    monkeypatch.setattr(reading, "pick", noted)
    read = options(data, topic="orders")
    rows(data, Filters(SCHEMA, read.wanted), read)
    assert len(found) == 11
    found.clear()
    taking = Filters(SCHEMA, read.wanted)
    taking.take(filters)
    assert rows(data, taking, read)
    assert len(found) <= most


def test_times_narrow_to_offsets(data: Path) -> None:
    with headwater.open(data) as hw:
        (event,) = hw.read("orders", partition=0, start=80, end=81)
        read = options(data, topic="orders")
        pieces = planning.plan(hw, read, FilterBounds(times=(event.time, None), partitions=frozenset((0,))))
        assert [(piece.split.start, piece.split.end) for piece in pieces] == [(80, 200)]
        pieces = planning.plan(hw, read, FilterBounds(times=(None, event.time), partitions=frozenset((0,))))
        assert [(piece.split.start, piece.split.end) for piece in pieces] == [(0, 80)]


# On Spark


def load(spark: SparkSession, data: Path) -> DataFrame:
    return spark.read.format("headwater").option("topic", "orders").load(str(data))


def plan_of(frame: DataFrame) -> str:
    text: str = frame._jdf.queryExecution().executedPlan().toString()  # nothing else tells
    return text


def test_spark_leaves_filters_to_the_log(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data).where("type = 'paid' and offset >= 45 and key = X'33'")
    assert " Filter " not in plan_of(frame)
    assert {row.offset for row in frame.collect()} == {offset for offset in range(60, 80) if offset % 5}
    mixed = load(spark, data).where("offset >= 45 and length(key) = 1 and (type = 'paid' or offset = 199)")
    assert mixed.count() == len([offset for offset in range(45, 80) if offset % 5]) + 1


def test_times_of_a_session_in_another_zone_are_the_same_instants(spark: SparkSession, data: Path) -> None:
    with headwater.open(data) as hw:
        (event,) = hw.read("orders", partition=0, start=80, end=81)
    tokyo = (event.time + timedelta(hours=9)).replace(tzinfo=None).isoformat(" ")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = load(spark, data).where(f"partition = 0 and time >= timestamp '{tokyo}'")
        assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(80, 200))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_with_the_setting_off_spark_filters_by_itself(spark: SparkSession, data: Path) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = load(spark, data).where("partition = 0 and offset >= 190")
        assert " Filter " in plan_of(frame)
        assert frame.count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

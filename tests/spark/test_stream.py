"""A topic is a stream: what each trigger takes, what is kept over a restart, and what is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import headwater
from headwater.directory.local_log import LocalLog
from headwater.errors import HeadwaterError, Invalid, Unavailable
from headwater.format import events
from headwater.spark.reading import planning, positions, scan, stream
from headwater.spark.reading.options import STREAM, parse
from headwater.spark.reading.positions import Positions, TopicProgress
from headwater.spark.reading.scan import ReadTask
from headwater.spark.reading.stream import StreamReader
from headwater.store import Store
from tests.server.people import add
from tests.server.process import served
from tests.waiting import wait_for

OFFSET = StructType([StructField("offset", LongType())])
SCHEMA = "topic string, partition int, offset bigint"
ALL = ReadAllAvailable()
SOME = ReadMaxRows(1)  # how many is in the options


# Without Spark: what it is told, and what it then has read


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a new one."""
    monkeypatch.setattr(stream, "LOOK_S", 0.0)
    monkeypatch.setattr(stream, "BUCKET_LOOK_S", 0.0)


def reader(path: Path | str, **options: str) -> StreamReader:
    return StreamReader(parse({"path": str(path), "topic": "orders", **options}, STREAM), OFFSET)


def ends(told: dict[str, Any]) -> dict[str, list[int]]:
    return {topic: each["end"] for topic, each in told.items()}


def read_between(found: StreamReader, before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """The ranges that tasks read."""
    split = [
        piece.split for part in found.partitions(before, after) if isinstance(part, ReadTask) for piece in part.pieces
    ]
    return [(each.topic, each.partition, each.start, each.end) for each in split]


def test_a_position_is_always_the_same_text(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        for topic in ("b", "a", "c"):
            hw.append(topic, b"1")
    first, again = reader(tmp_path, topic="b,c,a"), reader(tmp_path, topic="*")
    start = first.initialOffset()
    assert list(start) == ["a", "b", "c"]
    assert json.dumps(start) == json.dumps(first.initialOffset()) == json.dumps(again.initialOffset())
    end = first.latestOffset(start, ALL)
    back = json.loads(json.dumps(end, sort_keys=True))
    assert json.dumps(end) == json.dumps(again.latestOffset(back, ALL))
    shuffled = positions.understood(dict(reversed(end.items())))
    assert json.dumps(positions.told(shuffled)) == json.dumps(end)
    first.stop()
    again.stop()


def test_the_first_position_stays_though_more_comes(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", b"1")
        found = reader(tmp_path, start="latest")
        start = found.initialOffset()
        hw.append("orders", b"2")
        assert found.initialOffset() == start
        assert ends(start) == {"orders": [1]}
        assert ends(found.latestOffset(start, ALL)) == {"orders": [2]}
        found.stop()


def test_start_by_offset_and_time(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", partitions=2)
        refs = [hw.append("orders", b"1", partition=number % 2) for number in range(10)]
    assert ends(reader(tmp_path, start='{"1": 3}').initialOffset()) == {"orders": [0, 3]}
    assert ends(reader(tmp_path, start=refs[4].time.isoformat()).initialOffset()) == {"orders": [2, 2]}
    later = datetime.now(UTC) + timedelta(days=1)
    assert ends(reader(tmp_path, start=later.isoformat()).initialOffset()) == {"orders": [5, 5]}
    with pytest.raises(HeadwaterError, match="a single offset"):
        reader(tmp_path, start="3").initialOffset()
    with pytest.raises(HeadwaterError, match="'nowhere'"):
        reader(tmp_path, topic="nowhere").initialOffset()


def test_only_what_is_durable_is_named(tmp_path: Path) -> None:
    with headwater.open(tmp_path, durability="os") as hw:
        hw.append("orders", b"1")
        assert hw.describe("orders").partitions[0].durable == 0
        found = reader(tmp_path)
        end = found.latestOffset(found.initialOffset(), ALL)
        assert ends(end)["orders"] == [hw.describe("orders").partitions[0].durable] == [1]
        found.stop()


def test_whoever_may_only_read_sees_what_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headwater.open(tmp_path, durability="os") as hw:
        hw.append("orders", b"1", durability="fsync")
        hw.append("orders", b"2")
        found = reader(tmp_path)

        def refused(*_: object) -> None:
            raise Unavailable("it can only be read", code="read_only")

        monkeypatch.setattr(LocalLog, "sync", refused)
        assert ends(found.latestOffset(found.initialOffset(), ALL)) == {"orders": [1]}
        found.stop()


def test_a_server_is_asked_to_sync_by_those_who_may_append(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    tokens = {scope: add(users, scope, f"{scope}:*", token=True) for scope in ("read", "read,append")}
    with (
        served(tmp_path / "data", "--auth", str(users)) as server,
        headwater.open(server.url, token=tokens["read,append"]) as hw,
        headwater.open(server.url, token=tokens["read"]) as reader,
    ):
        hw.append("orders", b"1")
        hw.append("orders", b"2", durability="os")
        assert planning.look(reader, "orders").partitions[0].durable == 1
        assert planning.look(hw, "orders").partitions[0].durable == 2


@pytest.mark.parametrize("place", ["objects", "s3"])
def test_a_bucket_is_a_stream_as_well(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("s3_url") if place == "s3" else f"objects://{tmp_path / 'objects'}"
    with headwater.open(url) as hw:
        hw.append_many("orders", [b"1"] * 5)
        found = reader(url, maxEventsPerTrigger="3")
        at, offsets = found.initialOffset(), []
        while (after := found.latestOffset(at, SOME)) != at:
            parts = found.partitions(at, after)
            offsets.append([row for part in parts for each in found.read(part) for row in each["offset"].to_pylist()])
            at = after
        assert offsets == [[0, 1, 2], [3, 4]]
        found.stop()


def test_events_are_admitted_in_proportion(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", partitions=2)
        hw.append_many("orders", [b"1"] * 90, partition=0)
        hw.append_many("orders", [b"1"] * 30, partition=1)
    found = reader(tmp_path, maxEventsPerTrigger="40")
    assert found.getDefaultReadLimit() == ReadMaxRows(40)
    at, steps = found.initialOffset(), []
    while (after := found.latestOffset(at, SOME)) != at:
        steps.append(read_between(found, at, after))
        at = after
    assert steps == [
        [("orders", 0, 0, 30), ("orders", 1, 0, 10)],
        [("orders", 0, 30, 60), ("orders", 1, 10, 20)],
        [("orders", 0, 60, 90), ("orders", 1, 20, 30)],
    ]
    assert ends(found.latestOffset(found.initialOffset(), ALL)) == {"orders": [90, 30]}  # as Trigger.Once asks
    found.stop()


def test_bytes_are_admitted_batch_by_batch(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", partitions=2)
        for number in range(60):
            hw.append("orders", bytes(10_000), partition=number % 3 // 2)
    found = reader(tmp_path, maxBytesPerTrigger="100000")
    at, taken = found.initialOffset(), []
    while (after := found.latestOffset(at, SOME)) != at:
        taken.append(sum(end - start for _, _, start, end in read_between(found, at, after)))
        at = after
    assert ends(at) == {"orders": [40, 20]}
    assert max(taken) <= 10
    assert len(taken) <= 9
    tiny = reader(tmp_path, maxBytesPerTrigger="10", maxEventsPerTrigger="5")
    start = tiny.initialOffset()
    assert read_between(tiny, start, tiny.latestOffset(start, SOME)) == [("orders", 0, 0, 1)]  # it always goes on
    for each in (found, tiny):
        each.stop()


@given(st.lists(st.integers(0, 10**15), max_size=20), st.integers(1, 10**15))
def test_shares_add_up_and_none_is_more_than_there_is(waiting: list[int], most: int) -> None:
    before = {"a": TopicProgress("u", [], [5] * len(waiting))}
    after: Positions = {"a": TopicProgress("u", [], [5 + each for each in waiting])}
    found = positions.within_events(before, after, most)["a"].end
    assert all(5 <= end <= 5 + each for end, each in zip(found, waiting, strict=True))
    assert sum(found) - 5 * len(found) == min(most, sum(waiting))


def test_what_is_between_two_positions_never_changes(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append_many("orders", [b"1"] * 10)
        found = reader(tmp_path)
        start = found.initialOffset()
        end = found.latestOffset(start, ALL)
        hw.append_many("orders", [b"2"] * 10)
        assert read_between(found, start, end) == [("orders", 0, 0, 10)]
        assert read_between(reader(tmp_path), start, end) == [("orders", 0, 0, 10)]
        assert read_between(found, end, end) == []
        found.stop()


def test_a_new_topic_of_a_pattern_comes_in_whole(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("shop.a", b"1")
        found = reader(tmp_path, topic="shop.*", start="latest")
        start = found.initialOffset()
        hw.append("shop.b", b"1")
        hw.append("other", b"1")
        end = found.latestOffset(start, ALL)
        assert read_between(found, start, end) == [("shop.b", 0, 0, 1)]
        hw.append("shop.b", b"2")
        assert read_between(found, end, found.latestOffset(end, ALL)) == [("shop.b", 0, 1, 2)]
        found.stop()


def noting(name: str, verb: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noted(*arguments: Any, **named: Any) -> Any:
        asked.append(name)
        return verb(*arguments, **named)

    return noted


def test_a_trigger_asks_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to a server or a bucket takes time: one look at each topic, and one at its splits."""
    asked: list[str] = []
    for name in ("describe", "splits", "topics", "sync", "close"):
        monkeypatch.setattr(Store, name, noting(name, getattr(Store, name), asked))
    with headwater.open(tmp_path) as hw:
        hw.append("orders", b"1")
        found = reader(tmp_path)
        found.prepareForTriggerAvailableNow()
        start = found.initialOffset()
        end = found.latestOffset(start, ALL)
        assert found.partitions(start, end)
        assert found.partitions(end, found.latestOffset(end, ALL)) == []
        assert asked == ["describe", "splits"]
        found.stop()


def test_available_now_ends_where_the_log_did(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", b"1")
        found = reader(tmp_path, topic="*")
        found.prepareForTriggerAvailableNow()
        hw.append("orders", b"2")
        hw.append("more", b"2")
        end = found.latestOffset(found.initialOffset(), ALL)
        assert ends(end) == {"orders": [1]}
        assert found.latestOffset(end, ALL) == end == found.reportLatestOffset()
        found.stop()


def test_retention_that_passes_the_stream_is_an_error_unless_losses_are_allowed(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", segment_bytes=4096)
        found, careless = reader(tmp_path), reader(tmp_path, failOnDataLoss="false")
        start = found.initialOffset()
        for _ in range(10):
            hw.append("orders", bytes(3000))
        hw.retain("orders", retention_segments=2)
        end = found.latestOffset(start, ALL)
        oldest = hw.describe("orders").partitions[0].start
        with pytest.raises(HeadwaterError, match=f"offset 0 is gone; the oldest is {oldest}") as error:
            found.partitions(start, end)
        assert "failOnDataLoss" in error.value.hint
        assert read_between(careless, start, end)[0] == ("orders", 0, oldest, end["orders"]["end"][0])
        for each in (found, careless):
            each.stop()


def test_retention_while_a_task_waits(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", segment_bytes=4096)
        for _ in range(10):
            hw.append("orders", bytes(3000))
        found = reader(tmp_path)
        start = found.initialOffset()
        (part,) = found.partitions(start, found.latestOffset(start, ALL))
        found.stop()
        hw.retain("orders", retention_segments=2)
        with pytest.raises(HeadwaterError, match="is gone"):
            list(found.read(part))
        rows = [
            row for batch in reader(tmp_path, failOnDataLoss="false").read(part) for row in batch["offset"].to_pylist()
        ]
        assert rows == [event.offset for event in hw.read("orders")]


def test_a_topic_that_was_made_again_is_an_error(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append_many("orders", [b"1"] * 3)
        found = reader(tmp_path, failOnDataLoss="false")
        start = found.initialOffset()
        end = found.latestOffset(start, ALL)
        (part,) = found.partitions(start, end)
        hw.delete("orders")
        for count in (1, 2):  # fewer events than before, and as many
            hw.append_many("orders", [b"2"] * count)
            for late in (lambda: found.latestOffset(end, ALL), lambda: list(found.read(part))):
                with pytest.raises(HeadwaterError, match="deleted and recreated"):
                    late()
        found.stop()


def test_a_task_notices_an_empty_topic_of_the_same_name(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", b"1")
        found = reader(tmp_path)
        start = found.initialOffset()
        end = found.latestOffset(start, ALL)
        (part,) = found.partitions(start, end)
        hw.delete("orders")
        hw.create("orders")
        for late in (lambda: list(found.read(part)), lambda: found.partitions(start, end)):
            with pytest.raises(HeadwaterError, match="deleted and recreated"):
                late()
        found.stop()


def test_a_topic_that_is_gone_is_an_error_unless_losses_are_allowed(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", b"1")
        found, careless = reader(tmp_path), reader(tmp_path, failOnDataLoss="false")
        start = careless.initialOffset()
        assert found.initialOffset() == start
        end = found.latestOffset(start, ALL)
        hw.delete("orders")
        with pytest.raises(HeadwaterError, match="was deleted while"):
            found.latestOffset(end, ALL)
        assert careless.latestOffset(end, ALL) == end
        assert careless.partitions(start, end) == []
        for each in (found, careless):
            each.stop()


def test_a_log_that_is_older_than_the_position_is_an_error(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.append("orders", b"1")
    found = reader(tmp_path)
    start = found.initialOffset()
    end = found.latestOffset(start, ALL)
    end["orders"]["end"] = [7]
    with pytest.raises(HeadwaterError, match="ends before offset 7"):
        found.partitions(start, end)
    found.stop()


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(Invalid, match="does not belong to a stream of topics"):
        positions.understood({"orders": 5})


def test_pieces_of_several_topics_keep_apart(tmp_path: Path) -> None:
    """They are gathered into one batch, and each event still has its own topic and id."""
    with headwater.open(tmp_path) as hw:
        for topic in ("a", "b"):
            hw.append(topic, b"1")
        found = [
            scan.PlannedSplit(split, scan.nodes(hw.describe(topic).uuid, 1)[0])
            for topic in "ab"
            for split in hw.splits(topic)
        ]
        (gathered,) = scan.pieces(hw, found)
        table = events.table(gathered, ["topic", "id"])
        assert table.to_pylist() == [
            {"topic": topic, "id": str(event.id)} for topic in "ab" for event in hw.read(topic)
        ]


# On Spark


def start(
    spark: SparkSession, path: str, take: Callable[[DataFrame, int], None], checkpoint: Path, **options: str
) -> Any:
    frame = spark.readStream.format("headwater").schema(SCHEMA).options(**{"topic": "orders", **options}).load(path)
    return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))


class Taken:
    """What each trigger brought."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[Any, ...]]] = []

    def __call__(self, frame: DataFrame, _number: int) -> None:
        self.batches.append(sorted(tuple(row) for row in frame.collect()))

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for batch in self.batches for row in batch)


def test_a_stream_goes_on_from_its_checkpoint_with_nothing_lost_or_twice(spark: SparkSession, tmp_path: Path) -> None:
    data, taken = tmp_path / "data", Taken()
    with headwater.open(data) as hw:
        hw.create("orders", partitions=2)
        hw.append_many("orders", [b"1"] * 50, keys=[str(i) for i in range(50)])
        for more in range(3):
            query = start(spark, str(data), taken, tmp_path / "checkpoint", maxEventsPerTrigger="30")
            query.trigger(availableNow=True).start().awaitTermination()
            hw.append_many("orders", [b"2"] * 10, keys=[str(i) for i in range(10)])
            if more == 0:
                assert [len(batch) for batch in taken.batches] == [30, 20]
        events = [("orders", event.partition, event.offset) for event in hw.read("orders")]
    assert len(events) == 80
    assert taken.rows == sorted(event for event in events)[:0] + [
        row for row in sorted(events) if row in set(taken.rows)
    ]
    assert len(taken.rows) == len(set(taken.rows)) == 70


def test_a_batch_that_failed_is_read_again_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    data, taken = tmp_path / "data", Taken()
    with headwater.open(data) as hw:
        hw.append_many("orders", [b"1"] * 5)

        def fail(frame: DataFrame, number: int) -> None:
            taken(frame, number)
            hw.append_many("orders", [b"late"] * 5)
            raise RuntimeError("as a crash does it")

        with pytest.raises(StreamingQueryException, match="as a crash does it"):
            start(spark, str(data), fail, tmp_path / "c").trigger(availableNow=True).start().awaitTermination()
        start(spark, str(data), taken, tmp_path / "c").trigger(availableNow=True).start().awaitTermination()
    assert [len(batch) for batch in taken.batches] == [5, 5, 5]
    assert taken.batches[0] == taken.batches[1]


def test_a_stream_that_runs_sees_what_comes_and_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    data, taken = tmp_path / "data", Taken()
    with headwater.open(data) as hw:
        hw.append("shop.a", b"before")
        query = start(spark, str(data), taken, tmp_path / "c", topic="shop.*", start="latest").start()
        try:
            wait_for(lambda: query.recentProgress)
            hw.append("shop.a", b"1")
            hw.append("shop.b", b"1")
            wait_for(lambda: len(taken.rows) == 2)
        finally:
            query.stop()
    assert taken.rows == [("shop.a", 0, 1), ("shop.b", 0, 0)]


def test_a_server_is_a_stream_as_well(spark: SparkSession, tmp_path: Path, users_file: Path) -> None:
    taken = Taken()
    with headwater.open(tmp_path / "data") as hw:
        hw.append_many("orders", [b"1"] * 5)
    with served(tmp_path / "data", "--auth", str(users_file)) as server:
        query = start(spark, server.url, taken, tmp_path / "c", maxEventsPerTrigger="3")
        query.trigger(availableNow=True).start().awaitTermination()
    assert [len(batch) for batch in taken.batches] == [3, 2]

"""What every log does, whatever it is kept in: one suite that all implementations pass.

Subclass `LogConformance` and give it a fixture `place`, a `Place` that opens one empty log again and again. The tests
know the verbs alone, not where the bytes are.
"""

from __future__ import annotations

import io
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

import bson
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import Closed, HeadwaterError, Invalid, NotFound, TooLarge
from headwater.event import Event, Ref, Refs
from headwater.format.events import EventBatch
from headwater.info import Split, TopicInfo
from headwater.limits import DATA_BYTES_CEILING, DEFAULTS, PARTITIONS_MAX, TYPE_BYTES_MAX, Limits
from headwater.protocols import Follow
from tests import strategies
from tests.strategies import Row

TINY_SEGMENT = 4096  # the smallest segment that a topic may ask for
# Every kind of log runs the same methods, and every example uses a topic of its own.
_suppressed = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
many_examples = settings(max_examples=60, suppress_health_check=_suppressed)
some_examples = settings(max_examples=25, suppress_health_check=_suppressed)


class Log(Protocol):
    """The verbs."""

    def create(self, topic: str, **settings: Any) -> bool: ...
    def delete(self, topic: str) -> None: ...
    def topics(self) -> list[str]: ...
    def describe(self, topic: str) -> TopicInfo: ...
    def append(self, topic: str, data: Any, **options: Any) -> Ref: ...
    def append_many(self, topic: str, data: Any, **options: Any) -> Refs: ...
    def append_arrow(self, topic: str, table: Any, **options: Any) -> Refs: ...
    def read(self, topic: str, **options: Any) -> Iterator[Event]: ...
    def read_batches(self, topic: str, **options: Any) -> Iterator[EventBatch]: ...
    def read_arrow(self, topic: str, **options: Any) -> pa.Table: ...
    def follow(self, topic: str, **options: Any) -> Follow: ...
    def splits(self, topic: str, **options: Any) -> list[Split]: ...
    def version(self, topic: str, key: bytes | str, **options: Any) -> int | None: ...
    def close(self) -> None: ...


class Place(Protocol):
    """One log, somewhere."""

    def open(self, *, durability: Any = "fsync", limits: Limits = DEFAULTS) -> Log:
        """Open it; it was made by the first call. Whoever made the fixture closes it."""

    def settle(self, log: Log, topic: str) -> None:
        """Have done what the implementation does in its own time to what was appended: packing, indexing."""


names = (f"topic-{number}" for number in itertools.count())


def plain(event: Event) -> tuple[Any, ...]:
    """Everything about an event, comparable."""
    data = b"".join(event.chunks())
    return (
        event.topic,
        event.partition,
        event.offset,
        event.time,
        event.id,
        event.type,
        event.key,
        data,
        event.content,
        event.meta,
    )


def append_rows(log: Log, topic: str, rows: Sequence[Row]) -> Refs:
    return log.append_many(
        topic,
        [row.data for row in rows],
        types=[row.type for row in rows],
        keys=[row.key for row in rows],
        metas=[row.meta for row in rows],
    )


def datas(events: Iterator[Event]) -> list[bytes | None]:
    return [event.data for event in events]


def datas_of(events: Sequence[Event]) -> list[bytes]:
    return [event.data or b"" for event in events]


class LogConformance:
    @pytest.fixture
    def log(self, place: Place) -> Log:
        return place.open()

    @pytest.fixture(params=["fresh", "settled", "half settled"])
    def filled_log(self, request: pytest.FixtureRequest, place: Place, log: Log) -> tuple[Log, list[Event]]:
        """A topic "filled" of several segments, and what a full read of it gives."""
        log.create("filled", segment_bytes=TINY_SEGMENT)
        for number in range(60):
            if number % 3:
                log.append("filled", b"%d " % number * 60, type=f"t{number % 4}", key=b"k%d" % (number % 5))
            else:
                append_rows(log, "filled", [Row(b"%d-%d" % (number, i), f"t{i}", None) for i in range(1 + number % 7)])
            if request.param == "half settled" and number == 30:
                place.settle(log, "filled")
        if request.param == "settled":
            place.settle(log, "filled")
        events = list(log.read("filled"))
        assert [event.offset for event in events] == list(range(len(events)))
        assert len(events) == log.describe("filled").events > 100
        return log, events

    # Appending

    def test_offsets_begin_at_0_and_have_no_gaps(self, log: Log) -> None:
        refs = [log.append("t", b"a"), *log.append_many("t", [b"b", b"c"]), log.append("t", b"d")]
        refs += log.append_arrow("t", pa.table({"data": [b"e", b"f"]}))
        assert [ref.offset for ref in refs] == list(range(6))
        assert datas(log.read("t")) == [b"a", b"b", b"c", b"d", b"e", b"f"]

    def test_all_fields_come_back(self, log: Log) -> None:
        before = datetime.now(UTC)
        ref = log.append("t", b"data", type="placed", key=b"key", meta={"a": "b", "ä": "\n"})
        after = datetime.now(UTC)
        (event,) = log.read("t")
        assert (event.topic, event.partition, event.offset) == ("t", 0, 0)
        assert (event.type, event.key, event.data, event.content) == ("placed", b"key", b"data", "bytes")
        assert event.meta == {"a": "b", "ä": "\n"}
        assert before - timedelta(milliseconds=1) <= event.time <= after
        assert (event.id.version, event.size, event.value) == (6, 4, b"data")
        assert (ref.topic, ref.partition, ref.offset, ref.time, ref.id) == (
            event.topic,
            event.partition,
            event.offset,
            event.time,
            event.id,
        )

    def test_absent_fields_come_back_as_such(self, log: Log) -> None:
        log.append("t", b"")
        (event,) = log.read("t")
        assert (event.type, event.key, event.data, event.meta, event.size) == ("", None, b"", {}, 0)
        assert list(event.chunks()) == []

    def test_an_empty_key_is_not_a_missing_one(self, log: Log) -> None:
        log.append_many("t", [b"a", b"b", b"c"], keys=[None, b"", "é"])
        assert [event.key for event in log.read("t")] == [None, b"", "é".encode()]
        assert datas(log.read("t", key=b"")) == [b"b"]

    @many_examples
    @given(rows=strategies.row_lists)
    def test_many_events_come_back(self, log: Log, rows: list[Row]) -> None:
        topic = next(names)
        refs = append_rows(log, topic, rows)
        events = list(log.read(topic))
        assert [(event.data, event.type, event.key, event.meta or None) for event in events] == [
            (row.data, row.type, row.key, row.meta) for row in rows
        ]
        assert [(ref.offset, ref.id, ref.time) for ref in refs] == [(e.offset, e.id, e.time) for e in events]

    @some_examples
    @given(rows=strategies.row_lists)
    def test_single_appends_give_the_same_as_one_of_many(self, place: Place, log: Log, rows: list[Row]) -> None:
        one, many = next(names), next(names)
        for row in rows:
            log.append(one, row.data, type=row.type, key=row.key, meta=row.meta, durability="os")
        append_rows(log, many, rows)
        place.settle(log, one)
        for mine, its in zip(log.read(one), log.read(many), strict=True):
            assert (mine.offset, mine.data, mine.type, mine.key, mine.meta) == (
                its.offset,
                its.data,
                its.type,
                its.key,
                its.meta,
            )

    def test_times_and_ids_grow_strictly(self, filled_log: tuple[Log, list[Event]]) -> None:
        _, events = filled_log
        assert all(a.ticks < b.ticks and a.id < b.id for a, b in itertools.pairwise(events))

    def test_nothing_appended_gives_no_references(self, log: Log) -> None:
        assert list(log.append_many("t", [])) == []
        assert list(log.append_arrow("t", pa.table({"data": pa.array([], pa.binary())}))) == []
        assert list(log.read("t")) == []

    def test_references_are_a_sequence(self, log: Log) -> None:
        log.append("t", b"before")
        refs = log.append_many("t", [b"a", b"b", b"c"])
        assert len(refs) == 3
        assert [ref.offset for ref in refs] == [1, 2, 3]
        assert (refs[0].offset, refs[-1].offset) == (1, 3)
        assert [ref.offset for ref in refs[1:]] == [2, 3]
        assert [ref.offset for ref in reversed(refs)] == [3, 2, 1]
        assert refs[1] in refs
        assert refs.index(refs[2]) == 2
        for outside in (3, -4):
            with pytest.raises(IndexError):
                refs[outside]

    @pytest.mark.parametrize("default", ["fsync", "os"])
    def test_references_name_the_durability(self, place: Place, default: str) -> None:
        log = place.open(durability=default)
        assert log.append("t", b"").durability == default
        assert log.append("t", b"", durability="os").durability == "os"
        assert log.append("t", b"", durability="fsync").durability == "fsync"
        assert log.append_many("t", [b""], durability="os")[0].durability == "os"
        assert log.append_arrow("t", pa.table({"data": [b""]}), durability="fsync")[0].durability == "fsync"
        assert len(list(log.read("t"))) == 5

    # Content

    def test_text_comes_back(self, log: Log) -> None:
        log.append("t", "größer 🎉")
        (event,) = log.read("t")
        assert (event.content, event.data, event.value) == ("text", "größer 🎉".encode(), "größer 🎉")

    @pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True], "ä": {}}, [], {}, [{"x": "y"}], {"n": 2**63}])
    def test_json_comes_back(self, log: Log, value: Any) -> None:
        log.append("t", value)
        (event,) = log.read("t")
        assert (event.content, event.value) == ("json", value)
        assert msgspec.json.decode(event.data or b"") == value

    def test_bson_comes_back(self, log: Log) -> None:
        log.append("t", bson.encode({"a": 1, "when": datetime(2024, 1, 1)}), content="bson")  # noqa: DTZ001  (as in BSON)
        (event,) = log.read("t")
        assert (event.content, event.value) == ("bson", {"a": 1, "when": datetime(2024, 1, 1)})  # noqa: DTZ001

    def test_bytes_of_any_kind_come_back(self, log: Log) -> None:
        log.append("t", bytearray(b"a"))
        log.append("t", memoryview(b"xbx")[1:2])
        log.append("t", b'{"a":1}', content="json")
        log.append("t", b"text", content="text")
        events = list(log.read("t"))
        assert [(event.content, event.value) for event in events] == [
            ("bytes", b"a"),
            ("bytes", b"b"),
            ("json", {"a": 1}),
            ("text", "text"),
        ]

    def test_neighbours_of_several_contents_stay_what_they_are(self, place: Place, log: Log) -> None:
        given = [b"bytes", "text", {"json": 1}, b"more", b"bytes", ["json"], "text"]
        for data in given:
            log.append("t", data)
        log.append_many("t", ["a", "b"])
        log.append_many("t", [{"a": 1}, [2]])
        for _ in range(2):
            assert [event.value for event in log.read("t")] == [*given, "a", "b", {"a": 1}, [2]]
            place.settle(log, "t")

    # Huge events

    @pytest.mark.parametrize("kind", ["bytes", "text", "file", "generator"])
    def test_a_huge_event_comes_back(self, place: Place, log: Log, kind: str) -> None:
        data = b"0123456789abcdef" * 200_000  # 3.2 MB
        given: Any = {
            "bytes": data,
            "text": data.decode(),
            "file": io.BytesIO(data),
            "generator": (data[at : at + 77_777] for at in range(0, len(data), 77_777)),
        }[kind]
        log.append("t", b"before")
        ref = log.append("t", given, type="huge", key=b"k", meta={"a": "b"})
        log.append("t", b"behind")
        for _ in range(2):
            assert datas(log.read("t", type="")) == [b"before", b"behind"]
            (event,) = log.read("t", start=1, end=2)
            assert (event.type, event.key, event.meta, event.id) == ("huge", b"k", {"a": "b"}, ref.id)
            assert (event.size, event.data) == (len(data), data)
            assert event.value == (data.decode() if kind == "text" else data)
            chunks = list(event.chunks())
            assert b"".join(chunks) == data
            assert max(map(len, chunks)) <= len(data)
            file = io.BytesIO()
            assert event.save(file) == len(data)
            assert file.getvalue() == data
            place.settle(log, "t")

    def test_an_event_above_the_limit_for_memory_is_streamed(self, place: Place) -> None:
        log = place.open(limits=Limits(blob_bytes_in_memory=1_500_000))
        data = bytes(range(256)) * 8_000  # 2 MB
        log.append("t", data)
        (event,) = log.read("t")
        assert (event.data, event.size) == (None, len(data))
        assert max(map(len, event.chunks())) <= 1024 * 1024
        assert b"".join(event.chunks()) == event.value == data

    def test_arrow_gives_null_and_the_size_of_a_huge_event(self, log: Log) -> None:
        log.append("t", b"small")
        log.append("t", b"x" * 2_000_000)
        table = log.read_arrow("t", columns=["data", "data_bytes"])
        assert table.to_pydict() == {"data": [b"small", None], "data_bytes": [5, 2_000_000]}

    @pytest.mark.parametrize("data", [b"", b"short"])
    def test_a_short_stream_comes_back(self, log: Log, data: bytes) -> None:
        log.append("t", iter([data]))
        log.append("t", io.BytesIO(data))
        assert [(event.value, event.size) for event in log.read("t")] == [(data, len(data))] * 2

    def test_a_stream_that_fails_appends_nothing(self, log: Log) -> None:
        def broken() -> Iterator[bytes]:
            yield b"x" * 2_000_000
            raise RuntimeError("broken")

        log.append("t", b"before")
        with pytest.raises(RuntimeError, match="broken"):
            log.append("t", broken())
        with pytest.raises(Invalid, match="binary"):
            log.append("t", io.StringIO("text"))
        assert log.append("t", b"behind").offset == 1
        assert datas(log.read("t")) == [b"before", b"behind"]

    # Limits

    @pytest.mark.parametrize(
        ("limit", "maximum", "append"),
        [
            ("key_bytes_max", 10, lambda log: log.append("t", b"", key=b"k" * 11)),
            ("key_bytes_max", 10, lambda log: log.append_many("t", [b"", b""], keys=[None, b"k" * 11])),
            ("key_bytes_max", 10, lambda log: log.append_many("t", [b"", b""], keys=[b"", "k" * 11])),
            ("key_bytes_max", 10, lambda log: log.append_arrow("t", pa.table({"data": [b""], "key": [b"k" * 11]}))),
            ("meta_bytes_max", 20, lambda log: log.append("t", b"", meta={"a": "x" * 20})),
            ("meta_bytes_max", 20, lambda log: log.append_many("t", [b""], metas=[{"a": "x" * 20}])),
            ("type_bytes_max", TYPE_BYTES_MAX, lambda log: log.append("t", b"", type="é" * 128)),
            ("type_bytes_max", TYPE_BYTES_MAX, lambda log: log.append_many("t", [b""], types="é" * 128)),
            ("type_bytes_max", TYPE_BYTES_MAX, lambda log: log.append_many("t", [b"", b""], types=["a", "é" * 128])),
            (
                "type_bytes_max",
                TYPE_BYTES_MAX,
                lambda log: log.append_arrow("t", pa.table({"data": [b""], "type": ["é" * 128]})),
            ),
            ("data_bytes_max", 100, lambda log: log.append("t", b"x" * 101)),
            ("data_bytes_max", 100, lambda log: log.append("t", "x" * 101)),
            ("data_bytes_max", 100, lambda log: log.append("t", iter([b"x" * 60, b"x" * 60]))),
            ("data_bytes_max", 100, lambda log: log.append("t", io.BytesIO(b"x" * 101))),
            ("data_bytes_max", 100, lambda log: log.append_many("t", [b"x", b"x" * 101])),
            ("data_bytes_max", 100, lambda log: log.append_arrow("t", pa.table({"data": [b"x" * 101]}))),
            ("batch_events_max", 50, lambda log: log.append_many("t", [b""] * 51)),
            ("batch_bytes_max", 1000, lambda log: log.append_many("t", [b"x" * 100] * 11)),
            ("topic_name_bytes_max", 30, lambda log: log.append("é" * 16, b"")),
            ("topic_name_bytes_max", 30, lambda log: log.create("é" * 16)),
            ("data_bytes_ceiling", DATA_BYTES_CEILING, lambda log: log.create("new", data_bytes_max=2**32)),
        ],
    )
    def test_what_is_above_a_limit_is_refused_and_changes_nothing(
        self, place: Place, limit: str, maximum: int, append: Callable[[Log], object]
    ) -> None:
        limits = Limits(
            key_bytes_max=10,
            meta_bytes_max=20,
            data_bytes_max=100,
            batch_events_max=50,
            batch_bytes_max=1000,
            topic_name_bytes_max=30,
        )
        log = place.open(limits=limits)
        log.append("t", b"x" * 100, key=b"k" * 10, meta={"a": "x" * 10}, type="é" * 127)
        with pytest.raises(TooLarge) as caught:
            append(log)
        assert (caught.value.limit, caught.value.maximum, caught.value.code) == (limit, maximum, "too_large")
        assert str(maximum) in str(caught.value)
        assert log.append("t", b"next").offset == 1
        assert log.topics() == ["t"]

    def test_a_topic_may_allow_more_or_less_data(self, place: Place) -> None:
        log = place.open(limits=Limits(data_bytes_max=100))
        log.create("more", data_bytes_max=200)
        log.create("less", data_bytes_max=50)
        assert log.append("more", b"x" * 200).offset == 0
        assert log.append_many("more", [b"x" * 200])[0].offset == 1
        for topic, size in (("more", 201), ("less", 51)):
            for append, data in ((log.append, b"x" * size), (log.append_many, [b"x" * size])):
                with pytest.raises(TooLarge) as caught:
                    append(topic, data)
                assert caught.value.maximum == size - 1

    @pytest.mark.parametrize(
        "append",
        [
            lambda log: log.append("t", 5),
            lambda log: log.append("t", None),
            lambda log: log.append("t", {"a": 1}, content="text"),
            lambda log: log.append("t", b"", content="xml"),
            lambda log: log.append_many("t", [b""], content="xml"),
            lambda log: log.append("t", {"a": object()}),
            lambda log: log.append("t", "\ud800"),
            lambda log: log.append("t", b"", type="\ud800"),
            lambda log: log.append("t", b"", key="\ud800"),
            lambda log: log.append("t", b"", meta={"a": 1}),
            lambda log: log.append("t", b"", meta={"a": {"b": "c"}}),
            lambda log: log.append("t", b"", durability="maybe"),
            lambda log: log.append_many("t", [b"", "text"]),
            lambda log: log.append_many("t", [b"", 5]),
            lambda log: log.append_many("t", [b"", b""], types=["a"]),
            lambda log: log.append_many("t", [b"", b""], keys=[b"a", b"b", b"c"]),
            lambda log: log.append_many("t", [b"", b""], metas=[]),
            lambda log: log.append("", b""),
            lambda log: log.create("new", partitions=0),
            lambda log: log.create("new", partitions=PARTITIONS_MAX + 1),
            lambda log: log.create("new", segment_bytes=5),
            lambda log: log.create("new", segment_bytes=-5),
            lambda log: log.create("new", segment_age_ms=-5),
            lambda log: log.create("new", data_bytes_max=-5),
            lambda log: log.create("new", compression="lz4"),
            lambda log: log.append_arrow("t", pa.table({"key": [b""]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b""], "colour": [b""]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b"", None]})),
            lambda log: log.append_arrow("t", pa.table({"data": [1, 2]})),
            lambda log: log.append_arrow("t", pa.table({"data": [{"a": 1}]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b""], "key": [5]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b""], "type": [5]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b""], "type": [b"\xff"]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b""], "meta": [b"junk"]})),
            lambda log: log.append_arrow("t", pa.table({"data": [b""], "meta": [b'{"a": 1}']})),
        ],
    )
    def test_what_makes_no_sense_is_invalid_and_changes_nothing(
        self, log: Log, append: Callable[[Log], object]
    ) -> None:
        log.append("t", b"before")
        with pytest.raises(Invalid):
            append(log)
        assert log.append("t", b"behind").offset == 1
        assert log.topics() == ["t"]

    # Reading ranges

    def test_any_range_is_what_a_slice_of_all_is(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        expected = list(map(plain, events))

        @settings(max_examples=60)
        @given(st.data())
        def check(data: st.DataObject) -> None:
            lo, hi = (data.draw(st.integers(0, len(events) + 2)) for _ in range(2))
            ways: dict[str, Callable[[int], Any]] = {"offset": lambda at: at}
            if max(lo, hi) < len(events):
                ways |= {"time": lambda at: events[at].time, "id": lambda at: events[at].id}
            start, end = (
                ways[data.draw(st.sampled_from(sorted(ways)))](lo),
                ways[data.draw(st.sampled_from(sorted(ways)))](hi),
            )
            reverse = data.draw(st.booleans())
            # Times are cut to microseconds, so that events of one microsecond share one.
            first = (
                next(i for i, e in enumerate(events) if e.time == events[lo].time)
                if isinstance(start, datetime)
                else lo
            )
            last = (
                next(i for i, e in enumerate(events) if e.time == events[hi].time) if isinstance(end, datetime) else hi
            )
            wanted = expected[first:last]
            found = list(map(plain, log.read("filled", start=start, end=end, reverse=reverse)))
            assert found == (wanted[::-1] if reverse else wanted)

        check()

    def test_the_ends_have_names(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        assert len(list(log.read("filled", start="earliest", end="latest"))) == len(events)
        assert list(log.read("filled", start="latest")) == []
        assert list(log.read("filled", end="earliest")) == []
        assert [event.offset for event in log.read("filled", start=len(events) - 2)] == [
            len(events) - 2,
            len(events) - 1,
        ]
        assert next(log.read("filled", reverse=True)).offset == len(events) - 1
        long_ago, far_off = datetime(1990, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
        assert len(list(log.read("filled", start=long_ago, end=far_off))) == len(events)
        assert list(log.read("filled", start=far_off)) == []
        assert list(log.read("filled", end=long_ago)) == []

    def test_each_event_is_found_by_its_id(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        for event in events:
            assert next(log.read("filled", start=event.id)).offset == event.offset

    def test_a_read_ends_where_the_log_ended_when_it_was_called(self, log: Log) -> None:
        log.append("t", b"a")
        events = log.read("t")
        log.append("t", b"b")
        assert datas(events) == [b"a"]

    def test_everything_is_there_after_reopening(self, place: Place, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        log.close()
        again = place.open()
        assert list(map(plain, again.read("filled"))) == list(map(plain, events))
        assert again.append("filled", b"next").offset == len(events)
        assert list(again.read("filled"))[-1].ticks > events[-1].ticks

    def test_a_second_open_log_sees_what_the_first_appends(self, place: Place, log: Log) -> None:
        other = place.open()
        for number in range(20):
            (log if number % 2 else other).append("t", b"%d" % number)
            for each in (log, other):
                assert datas(each.read("t")) == [b"%d" % i for i in range(number + 1)]

    # Filters

    @many_examples
    @given(data=st.data())
    def test_filters_give_what_filtering_a_full_read_gives(self, place: Place, log: Log, data: st.DataObject) -> None:
        topic = next(names)
        for _ in range(data.draw(st.integers(1, 3))):
            append_rows(log, topic, data.draw(strategies.few_row_lists))
            if data.draw(st.booleans()):
                place.settle(log, topic)
        events = list(log.read(topic))
        pattern = data.draw(
            st.sampled_from([None, "", "placed", "p.*", "placed|paid", ".*", "größer", "PAID", "(?i)PAID"])
        )
        key = data.draw(strategies.few_keys)
        start = data.draw(st.integers(0, len(events)))
        wanted = [
            event
            for event in events[start:]
            if (pattern is None or re.fullmatch(pattern, event.type)) and (key is None or event.key == key)
        ]
        assert list(log.read(topic, start=start, type=pattern, key=key)) == wanted
        assert list(log.read(topic, start=start, type=pattern, key=key, reverse=True)) == wanted[::-1]
        batches = log.read_batches(topic, start=start, type=pattern, key=key)
        assert [event for batch in batches for event in batch.events()] == wanted
        table = log.read_arrow(topic, start=start, type=pattern, key=key)
        assert table["offset"].to_pylist() == [event.offset for event in wanted]
        assert table["data"].to_pylist() == [event.data for event in wanted]
        found = list(log.follow(topic, start=start, type=pattern, key=key, timeout=0))
        assert found == wanted

    @pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "x" * 2000])
    def test_a_pattern_that_is_not_one_is_invalid(self, log: Log, pattern: str) -> None:
        log.append("t", b"")
        with pytest.raises(Invalid) as caught:
            log.read("t", type=pattern)
        assert caught.value.code == "bad_pattern"

    # Batches and Arrow

    def test_batches_hold_the_same_events(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        batches = list(log.read_batches("filled", start=3, end=len(events) - 3))
        assert [event for batch in batches for event in batch.events()] == events[3:-3]
        assert sum(map(len, batches)) == len(events) - 6
        for batch in batches:
            assert batch.partition == 0
            assert batch.offsets().tolist() == [event.offset for event in batch.events()]
            assert batch.ticks().tolist() == [event.ticks for event in batch.events()]
        backwards = log.read_batches("filled", start=3, end=len(events) - 3, reverse=True)
        assert [event for batch in backwards for event in batch.reversed()] == events[3:-3][::-1]

    def test_arrow_holds_the_same_events(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        columns = [
            "topic",
            "partition",
            "offset",
            "time",
            "id",
            "type",
            "key",
            "data",
            "content",
            "meta",
            "ticks",
            "data_bytes",
        ]
        table = log.read_arrow("filled", start=3, columns=columns)
        table.validate(full=True)
        assert table.column_names == columns
        for row, event in zip(table.to_pylist(), events[3:], strict=True):
            assert row == {
                "topic": event.topic,
                "partition": event.partition,
                "offset": event.offset,
                "time": event.time,
                "id": str(event.id),
                "type": event.type,
                "key": event.key,
                "data": event.data,
                "content": event.content,
                "meta": event.raw_meta,
                "ticks": event.ticks,
                "data_bytes": event.size,
            }

    def test_arrow_of_nothing_has_the_columns(self, log: Log) -> None:
        log.create("t")
        table = log.read_arrow("t", columns=["offset", "data", "type"])
        assert (table.num_rows, table.column_names) == (0, ["offset", "data", "type"])
        with pytest.raises(Invalid, match="colour"):
            log.read_arrow("t", columns=["colour"])

    @pytest.mark.parametrize(
        ("array", "content"),
        [
            (pa.array([b"a", b"\xff\xfe", b""]), "bytes"),
            (pa.array([b"a", b"\xff\xfe", b""], pa.large_binary()), "bytes"),
            (pa.array([b"ab", b"\xff\xfe", b"cd"], pa.binary(2)), "bytes"),
            (pa.array([b"a", b"\xff\xfe", b"a"]).dictionary_encode(), "bytes"),
            (pa.array(["a", "é", ""]), "text"),
            (pa.array(["a", "é", ""], pa.large_string()), "text"),
            (pa.array(["a", "é", "a"]).dictionary_encode(), "text"),
            (pa.array([b"skipped", b"a", b"\xff", b"c", b"skipped"])[1:4], "bytes"),
            (pa.array(["skipped", "a", "é", "c", "skipped"], pa.large_string())[1:4], "text"),
            (pa.chunked_array([[b"a"], [], [b"b", b"c"]], pa.binary()), "bytes"),
            (pa.array([b"a", b"\xff\xfe", b"long enough to be kept apart"], pa.binary_view()), "bytes"),
            (pa.array(["a", "é", "long enough to be kept apart"], pa.string_view()), "text"),
        ],
        ids=lambda value: str(value.type) if isinstance(value, pa.Array | pa.ChunkedArray) else value,
    )
    def test_arrow_data_of_any_kind_comes_back(self, log: Log, array: Any, content: str) -> None:
        refs = log.append_arrow("t", pa.table({"data": array}))
        expected = [value.encode() if isinstance(value, str) else value for value in array.to_pylist()]
        assert [(event.data, event.content) for event in log.read("t")] == [(value, content) for value in expected]
        assert [ref.offset for ref in refs] == [0, 1, 2]
        assert log.read_arrow("t")["data"].to_pylist() == expected

    @pytest.mark.parametrize("lo", [0, 1, 8, 9])
    def test_arrow_with_all_columns_comes_back(self, log: Log, lo: int) -> None:
        count = 40
        table = pa.table(
            {
                "data": pa.array([b"%d" % i for i in range(count)]),
                "key": pa.array([None if i % 3 else f"k{i}" for i in range(count)], pa.large_string()),
                "type": pa.array([None if i % 5 == 0 else f"t{i % 2}" for i in range(count)]).dictionary_encode(),
                "meta": pa.array([b'{"a":"%d"}' % i if i % 4 == 0 else None for i in range(count)]),
            }
        ).slice(lo, 25)
        log.append_arrow("t", table)
        log.append_arrow("t", table.to_batches()[0])
        for first in (0, 25):
            for i, event in enumerate(log.read("t", start=first, end=first + 25), lo):
                assert event.data == b"%d" % i
                assert event.key == (None if i % 3 else b"k%d" % i)
                assert event.type == ("" if i % 5 == 0 else f"t{i % 2}")
                assert event.meta == ({"a": str(i)} if i % 4 == 0 else {})

    def test_arrow_columns_that_are_all_null_are_absent(self, log: Log) -> None:
        nulls = pa.nulls(2, pa.binary())
        log.append_arrow("t", pa.table({"data": [b"a", b"b"], "key": nulls, "meta": nulls, "type": pa.nulls(2)}))
        assert [(event.key, event.type, event.meta) for event in log.read("t")] == [(None, "", {})] * 2

    def test_arrow_that_was_read_can_be_appended(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, events = filled_log
        log.append_arrow("copy", log.read_arrow("filled", columns=["data", "key", "type", "meta"]))
        for mine, its in zip(log.read("copy"), events, strict=True):
            assert (mine.data, mine.key, mine.type, mine.meta) == (its.data, its.key, its.type, its.meta)

    def test_a_large_arrow_table_is_split(self, place: Place) -> None:
        log = place.open(limits=Limits(pack_events=1000), durability="os")
        log.append_arrow("t", pa.table({"data": [b"%d" % i for i in range(3500)]}))
        assert [len(batch) for batch in log.read_batches("t")] == [1000, 1000, 1000, 500]
        assert datas(log.read("t")) == [b"%d" % i for i in range(3500)]

    # Partitions

    @pytest.mark.parametrize("split_bytes", [1, 1000, 3000, 1 << 30])
    def test_splits_cover_a_topic_once_and_are_cut_between_batches(
        self, filled_log: tuple[Log, list[Event]], split_bytes: int
    ) -> None:
        log, expected = filled_log
        ends = {batch.end_offset for batch in log.read_batches("filled")}
        whole = log.splits("filled", split_bytes=split_bytes)
        assert [split.start for split in whole] == [0, *(split.end for split in whole[:-1])]
        assert {split.end for split in whole} <= ends
        assert whole[-1].end == len(expected)
        assert (len(whole) == 1) == (split_bytes == 1 << 30)
        largest = max(batch.size for batch in log.read_batches("filled"))
        assert all(split.bytes <= split_bytes * 1.25 + 2 * largest + TINY_SEGMENT for split in whole)
        total = sum(split.bytes for split in whole)
        assert (
            sum(len(each) for each in datas_of(expected))
            < total
            < 10 * TINY_SEGMENT + sum(batch.size for batch in log.read_batches("filled"))
        )

    def test_splits_begin_and_end_where_they_are_told(self, filled_log: tuple[Log, list[Event]]) -> None:
        log, expected = filled_log
        lo, hi = 7, len(expected) - 5
        for start, end in [(lo, hi), (expected[lo].time, hi), (expected[lo].id, hi), ([lo], [hi])]:
            found = log.splits("filled", start=start, end=end, split_bytes=500)
            assert (found[0].start, found[-1].end) == (lo, hi)
            assert [split.start for split in found[1:]] == [split.end for split in found[:-1]]
        assert log.splits("filled", start="latest") == []
        assert log.splits("filled", start=hi, end=lo) == []
        assert log.splits("filled", start=hi, end=10**9)[-1].end == len(expected)
        with pytest.raises(Invalid):
            log.splits("filled", split_bytes=0)
        with pytest.raises(NotFound):
            log.splits("nothing")

    def test_splits_are_of_each_partition_up_to_what_is_durable(self, place: Place, log: Log) -> None:
        log.create("parts", partitions=3)
        assert log.splits("parts") == []
        log.append_many("parts", [b"a", b"b"], partition=0)
        log.append_many("parts", [b"c"], partition=2)
        found = [(each.topic, each.partition, each.start, each.end) for each in log.splits("parts")]
        assert found == [("parts", 0, 0, 2), ("parts", 2, 0, 1)]
        assert [each.partition for each in log.splits("parts", start=[1, 0, 1])] == [0]
        assert [each.partition for each in log.splits("parts", partition=2, start=0)] == [2]
        with pytest.raises(Invalid):
            log.splits("parts", start=1)
        unsynced = place.open(durability="os")
        unsynced.append("parts", b"d", partition=2)
        durable = log.describe("parts").partitions[2].durable
        assert [each.end for each in log.splits("parts", partition=2)] == [durable]

    def test_events_of_one_key_go_to_one_partition(self, log: Log) -> None:
        log.create("t", partitions=4)
        keys = [b"key-%d" % (i % 20) for i in range(100)]
        one_by_one = {key: {log.append("t", b"", key=key, durability="os").partition for _ in range(3)} for key in keys}
        together = {
            key: {ref.partition} for key, ref in zip(keys, log.append_many("t", [b""] * 100, keys=keys), strict=True)
        }
        assert one_by_one == together
        log.append_arrow("t", pa.table({"data": [b"arrow"] * 100, "key": keys}))
        for event in log.read("t"):
            assert {event.partition} == together[event.key or b""]
        assert len(set.union(*together.values())) == 4

    def test_without_keys_calls_go_round_robin(self, log: Log) -> None:
        log.create("t", partitions=3)
        partitions = [log.append("t", b"").partition for _ in range(6)]
        assert sorted(partitions) == [0, 0, 1, 1, 2, 2]
        assert partitions[:3] == partitions[3:]
        calls = [{ref.partition for ref in log.append_many("t", [b""] * 5)} for _ in range(3)]
        assert sorted(map(len, calls)) == [1, 1, 1]
        assert set.union(*calls) == {0, 1, 2}
        mixed = [log.append_many("t", [b""] * 9, keys=[b"key", *[None] * 8]) for _ in range(3)]
        assert [len({ref.partition for ref in refs[1:]}) for refs in mixed] == [1, 1, 1]
        assert {ref.partition for refs in mixed for ref in refs[1:]} == {0, 1, 2}
        assert len({refs[0].partition for refs in mixed}) == 1

    @some_examples
    @given(rows=strategies.few_row_lists)
    def test_references_over_partitions_are_in_the_order_of_the_call(self, log: Log, rows: list[Row]) -> None:
        topic = next(names)
        log.create(topic, partitions=3)
        refs = append_rows(log, topic, rows)
        assert len(refs) == len(rows)
        for ref, row in zip(refs, rows, strict=True):
            (event,) = log.read(topic, partition=ref.partition, start=ref.offset, end=ref.offset + 1)
            assert (event.data, event.type, event.key, event.id) == (row.data, row.type, row.key, ref.id)
        for partition in range(3):
            assert [event.offset for event in log.read(topic, partition=partition)] == list(
                range(sum(ref.partition == partition for ref in refs))
            )

    def test_all_partitions_are_read_in_the_order_of_time(self, log: Log) -> None:
        log.create("t", partitions=3)
        for number in range(30):
            log.append("t", b"%d" % number, key=b"key-%d" % (number % 7))
        events = list(log.read("t"))
        assert {event.partition for event in events} == {0, 1, 2}
        assert [event.ticks for event in events] == sorted(event.ticks for event in events)
        assert [event.data for event in events] == [b"%d" % i for i in range(30)]
        assert list(log.read("t", reverse=True)) == events[::-1]
        assert list(log.read("t", start=events[10].time)) == [e for e in events if e.time >= events[10].time]
        assert sorted(map(str, log.read_arrow("t")["data"].to_pylist())) == sorted(str(event.data) for event in events)

    def test_a_partition_can_be_named(self, log: Log) -> None:
        log.create("t", partitions=3)
        assert log.append("t", b"a", key=b"whatever", partition=2).partition == 2
        assert log.append_many("t", [b"b", b"c"], keys=[b"1", b"2"], partition=2)[1].partition == 2
        log.append_arrow("t", pa.table({"data": [b"d"], "key": [b"1"]}), partition=2)
        assert datas(log.read("t", partition=2)) == [b"a", b"b", b"c", b"d"]
        assert datas(log.read("t", partition=1)) == []
        assert datas(log.follow("t", partition=2, start=1, timeout=0)) == [b"b", b"c", b"d"]

    @pytest.mark.parametrize("partition", [3, -1])
    def test_a_partition_that_is_not_there_is_not_found(self, log: Log, partition: int) -> None:
        log.create("t", partitions=3)
        calls: list[Callable[[], object]] = [
            lambda: log.append("t", b"", partition=partition),
            lambda: log.append_many("t", [b""], partition=partition),
            lambda: log.read("t", partition=partition),
            lambda: log.follow("t", partition=partition),
        ]
        for call in calls:
            with pytest.raises(NotFound) as caught:
                call()
            assert caught.value.code == "partition_not_found"

    def test_an_offset_needs_a_partition_where_there_are_several(self, log: Log) -> None:
        log.create("t", partitions=2)
        with pytest.raises(Invalid, match="partition") as caught:
            log.read("t", start=0)
        assert caught.value.code == "partition_needed"

    # Topics

    def test_a_topic_is_made_once(self, log: Log) -> None:
        assert log.create("t", partitions=2)
        assert not log.create("t", partitions=2)
        with pytest.raises(Invalid, match="2 partitions") as caught:
            log.create("t", partitions=3)
        assert (caught.value.code, caught.value.partitions) == ("partitions_differ", 2)

    @pytest.mark.parametrize("name", ["a/b", "..", ".", "é", "\0", "CON", "x" * 1000, " ", "a%2Fb"])
    def test_a_topic_may_have_any_name(self, place: Place, log: Log, name: str) -> None:
        log.append(name, b"data")
        log.append("other", b"")
        assert log.topics() == sorted([name, "other"])
        assert [event.topic for event in place.open().read(name)] == [name]

    def test_reading_makes_no_topic(self, log: Log) -> None:
        calls: list[Callable[[], object]] = [
            lambda: log.read("missing"),
            lambda: log.read_batches("missing"),
            lambda: log.read_arrow("missing"),
            lambda: log.follow("missing"),
            lambda: log.describe("missing"),
            lambda: log.delete("missing"),
        ]
        for call in calls:
            with pytest.raises(NotFound) as caught:
                call()
            assert (caught.value.code, caught.value.topic) == ("topic_not_found", "missing")
        assert log.topics() == []

    def test_a_topic_is_described(self, place: Place, log: Log) -> None:
        log.create("t", partitions=2, segment_bytes=TINY_SEGMENT)
        log.append_many("t", [b"a", b"b"], partition=1)
        told = log.describe("t")
        assert (told.name, told.events, len(told.partitions)) == ("t", 2, 2)
        assert [(each.partition, each.start, each.end, each.durable, each.state) for each in told.partitions] == [
            (0, 0, 0, 0, "open"),
            (1, 0, 2, 2, "open"),
        ]
        assert told.settings == {"segment_bytes": TINY_SEGMENT}
        assert told.uuid == place.open().describe("t").uuid
        (last,) = log.read("t", partition=1, start=1)
        assert told.partitions[1].last_time == last.time.isoformat()

    def test_a_deleted_topic_is_gone_and_starts_afresh(self, log: Log) -> None:
        old = log.append("t", b"old")
        uuid = log.describe("t").uuid
        log.delete("t")
        assert log.topics() == []
        for call in (log.read, log.describe, log.follow, log.delete):
            with pytest.raises(NotFound):
                call("t")
        new = log.append("t", b"new")
        assert new.offset == 0
        assert log.describe("t").uuid != uuid
        assert datas(log.read("t")) == [b"new"]
        with pytest.raises(NotFound) as caught:
            log.read("t", start=old.id)
        assert caught.value.code == "id_not_found"

    def test_what_another_deleted_and_made_again_is_noticed(self, place: Place, log: Log) -> None:
        """By whoever read before, appended before, or did neither."""
        others = [place.open() for _ in range(3)]
        log.append("t", b"old")
        list(others[0].read("t"))
        others[1].append("t", b"old")
        log.delete("t")
        for other in others:
            with pytest.raises(NotFound):
                other.read("t")
        log.create("t")
        for number, other in enumerate(others):
            assert len(list(other.read("t"))) == number
            assert other.append("t", b"new").offset == number
            assert other.describe("t").events == number + 1
            assert len(list(other.follow("t", start=0, timeout=0))) == number + 1

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_every_append_goes_to_the_topic_that_was_made_again(self, place: Place, log: Log, partitions: int) -> None:
        keys = [b"%d" % i for i in range(9)]
        appends: list[Callable[[Log], object]] = [
            lambda other: other.append("t", b"", key=b"k"),
            lambda other: other.append("t", iter([b"x"]), key=b"k"),
            lambda other: other.append("t", b"x" * 1_100_000, key=b"k"),
            lambda other: other.append("t", iter([b"x" * 1_100_000]), key=b"k"),
            lambda other: other.append_many("t", [b"", b""], keys=[b"a", b"b"]),
            lambda other: other.append_many("t", [b"", b""]),
            lambda other: other.append_arrow("t", pa.table({"data": [b"", b""], "key": [b"a", b"b"]})),
        ]
        before: list[Callable[[Log], object]] = [
            lambda other: other.append_many("t", [b""] * 9, keys=keys),
            lambda other: list(other.read("t")),
            lambda other: other.describe("t"),
        ]
        for append, use in itertools.product(appends, before):
            log.create("t", partitions=partitions)
            log.append_many("t", [b"old"] * 9, keys=keys)
            other = place.open(durability="os")
            use(other)
            log.delete("t")
            log.create("t", partitions=partitions)
            log.append_many("t", [b"new"] * 9, keys=keys)
            append(other)
            assert 10 <= log.describe("t").events <= 11
            other.close()
            log.delete("t")

    # Following

    def test_a_follower_gets_what_is_there_and_what_comes(self, log: Log) -> None:
        log.append_many("t", [b"a", b"b"])
        with log.follow("t", start="earliest") as follower:
            assert [next(follower).data for _ in range(2)] == [b"a", b"b"]
            for number in range(5):
                log.append("t", b"%d" % number)
                assert next(follower).data == b"%d" % number
        assert list(follower) == []

    def test_a_follower_begins_at_the_end_unless_told(self, log: Log) -> None:
        ref = log.append("t", b"a")
        latest, by_id, by_time = log.follow("t"), log.follow("t", start=ref.id), log.follow("t", start=ref.time)
        ahead = log.follow("t", start=2)
        log.append("t", b"b")
        log.append("t", b"c")
        assert next(latest).data == b"b"
        assert next(by_id).data == next(by_time).data == b"a"
        assert next(ahead).data == b"c"

    def test_a_follower_ends_after_its_timeout(self, log: Log) -> None:
        log.append("t", b"a")
        assert datas(log.follow("t", start=0, timeout=0)) == [b"a"]
        assert datas(log.follow("t", start=0, timeout=0.05)) == [b"a"]
        assert list(log.follow("t", timeout=0.05, type="never")) == []

    def test_a_follower_wakes_up_for_another_that_appends(self, place: Place, log: Log) -> None:
        log.create("t", partitions=2)
        follower = log.follow("t")
        found: list[bytes | None] = []
        thread = threading.Thread(target=lambda: found.extend(next(follower).data for _ in range(3)))
        thread.start()
        other = place.open()
        for number in range(3):
            other.append("t", b"%d" % number)
        thread.join()
        assert sorted(each or b"" for each in found) == [b"0", b"1", b"2"]

    def test_a_follower_passes_over_what_it_does_not_want(self, place: Place, log: Log) -> None:
        follower = log.follow("t", type="b", key=b"k") if log.create("t") else None
        assert follower is not None
        for number in range(30):
            log.append("t", b"%d" % number, type="ab"[number % 2], key=b"k" if number % 3 else None)
            if number % 10 == 0:
                place.settle(log, "t")
        assert [next(follower).data for _ in range(5)] == [b"1", b"5", b"7", b"11", b"13"]

    def test_a_follower_in_the_middle_passes_over_settling(self, place: Place, log: Log) -> None:
        log.create("t", segment_bytes=TINY_SEGMENT)
        log.append_many("t", [b"%d" % i for i in range(10)])
        follower = log.follow("t", start=0)
        reader = log.read("t")
        assert [next(follower).data for _ in range(5)] == datas(itertools.islice(reader, 5))
        place.settle(log, "t")
        for number in range(10, 20):
            log.append("t", b"%d" % number)
        assert [next(follower).data for _ in range(15)] == [b"%d" % i for i in range(5, 20)]
        assert datas(reader) == [b"%d" % i for i in range(5, 10)]

    def test_a_follower_can_be_stopped_from_another_thread(self, log: Log) -> None:
        log.create("t")
        follower = log.follow("t")
        ended = threading.Event()

        def follow() -> None:
            assert list(follower) == []
            ended.set()

        thread = threading.Thread(target=follow)
        thread.start()
        follower.stop()
        assert ended.wait(10)
        thread.join()

    def test_a_follower_of_a_deleted_topic_is_told(self, place: Place, log: Log) -> None:
        log.append("t", b"a")
        follower = log.follow("t", start=0)
        assert next(follower).data == b"a"
        other = place.open()
        other.delete("t")
        with pytest.raises(NotFound):
            next(follower)
        other.append("t", b"a")
        other.append("t", b"b")
        with pytest.raises(NotFound):
            next(follower)

    # Places and closing

    @pytest.mark.parametrize("place_in_log", [-1, True, 1.5, "begin", None])
    def test_a_place_that_is_none_is_invalid(self, log: Log, place_in_log: Any) -> None:
        log.append("t", b"")
        for call in (log.read, log.read_batches, log.read_arrow, log.follow):
            with pytest.raises(Invalid):
                call("t", start=place_in_log)

    def test_the_id_of_another_topic_is_not_found(self, log: Log) -> None:
        log.append("t", b"")
        ref = log.append("other", b"")
        for call in (log.read, log.read_batches, log.read_arrow, log.follow):
            with pytest.raises(NotFound):
                call("t", start=ref.id)
            with pytest.raises(Invalid):
                call("t", start=uuid4())

    def test_a_naive_time_is_invalid(self, log: Log) -> None:
        log.append("t", b"")
        with pytest.raises(Invalid, match="time zone"):
            log.read("t", start=datetime(2024, 1, 1))  # noqa: DTZ001  (the point of the test)

    def test_a_closed_log_says_so(self, log: Log) -> None:
        log.append("t", b"")
        log.close()
        log.close()
        calls: list[Callable[[], object]] = [
            lambda: log.append("t", b""),
            lambda: log.append_many("t", [b""]),
            lambda: log.append_arrow("t", pa.table({"data": [b""]})),
            lambda: log.read("t"),
            lambda: log.follow("t"),
            lambda: log.create("t"),
            log.topics,
            lambda: log.describe("t"),
            lambda: log.delete("t"),
        ]
        for call in calls:
            with pytest.raises(Closed):
                call()

    def test_closing_ends_followers(self, log: Log) -> None:
        log.create("t")
        follower = log.follow("t")
        ended = threading.Event()
        failures: list[HeadwaterError] = []

        def follow() -> None:
            try:
                assert list(follower) == []
            except HeadwaterError as error:
                failures.append(error)
            ended.set()

        thread = threading.Thread(target=follow)
        thread.start()
        log.close()
        assert ended.wait(10)
        thread.join()
        assert failures == []

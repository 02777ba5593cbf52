"""Options of reads and streams: what they mean, and what is said of those that mean nothing. No Spark is needed."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headwater.errors import Invalid, Unsupported
from headwater.spark.reading.options import READ, STREAM, SourceOptions, parse
from headwater.spark.session import open_place
from headwater.spark.writing import sink

GIVEN = {"path": "data", "topic": "orders"}


def parsed(known: tuple[str, ...] = READ, **more: str) -> SourceOptions:
    return parse(GIVEN | more, known)


def test_what_is_not_said_is_everything() -> None:
    read = parsed()
    assert read.address == os.path.abspath("data")
    assert read.topics == ("orders",)
    assert (read.start, read.end) == ("earliest", "latest")
    assert read.fail_on_data_loss
    assert pickle.loads(pickle.dumps(read)) == read


def test_addresses_other_than_paths_stay_as_they_are() -> None:
    assert parsed(path="s3://bucket/a").address == "s3://bucket/a"


@pytest.mark.parametrize("streaming", [False, True])
def test_an_address_of_the_protocol_over_tcp_names_that_of_http(streaming: bool) -> None:
    address = "headwater://127.0.0.1:7451"
    rows = StructType([StructField("data", StringType())])
    with pytest.raises(Unsupported) as reading:
        open_place(parsed(path=address).address)
    with pytest.raises(Unsupported) as writing:
        sink.settings(GIVEN | {"path": address}, rows, overwrite=False, streaming=streaming)
    for failed in (reading.value, writing.value):
        assert (failed.code, failed.hint) == ("tcp_address", "open it as http://host:7450")


def test_names_do_not_distinguish_cases() -> None:
    read = parsed(STREAM, SPLITBYTES="10", FailOnDataLoss="False", maxeventspertrigger="5", MAXBYTESPERTRIGGER="6")
    assert (read.split_bytes, read.fail_on_data_loss, read.events_max, read.bytes_max) == (10, False, 5, 6)


@pytest.mark.parametrize(
    ("text", "there", "chosen"),
    [
        ("a,b", [], ["a", "b"]),
        (" b , a, b", [], ["a", "b"]),
        ("a*", ["a", "ab", "ba", "a.dead"], ["a", "a.dead", "ab"]),
        ("a?c,z", ["abc", "ac", "abbc"], ["abc", "z"]),
        ("[a]*", ["[a]x", "a"], ["[a]x"]),
        ("*", [], []),
    ],
)
def test_topics_are_names_and_patterns(text: str, there: list[str], chosen: list[str]) -> None:
    assert parsed(topic=text).chosen(there) == chosen


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        (" Latest ", "latest"),
        ("17", 17),
        ('{"0": 17, "1": 4}', {"orders": {0: 17, 1: 4}}),
        ('{"orders": {"0": 17}}', {"orders": {0: 17}}),
        ("{}", {"orders": {}}),
        ("2025-03-01", datetime(2025, 3, 1, tzinfo=UTC)),
        ("2025-03-01T12:00", datetime(2025, 3, 1, 12, tzinfo=UTC)),  # without a zone it is UTC, on every machine
        ("2025-03-01T12:00:00Z", datetime(2025, 3, 1, 12, tzinfo=UTC)),
        ("2025-03-01T12:00+09:00", datetime(2025, 3, 1, 12, tzinfo=timezone(timedelta(hours=9)))),
    ],
)
def test_places(text: str, place: object) -> None:
    assert parsed(start=text, end=text).start == place
    assert parsed(start=text, end=text).end == place


def test_offsets_of_several_topics_name_them() -> None:
    assert parsed(topic="a,b*", start='{"a": {"0": 1}, "bc": {"0": 2}}').start == {"a": {0: 1}, "bc": {0: 2}}


def test_filters_are_as_in_read() -> None:
    wanted = parsed(type="placed|paid", key="c-1", match='{"cents": {"$gt": 5}}').wanted
    assert (wanted.type, wanted.key, wanted.match) == ("placed|paid", b"c-1", {"cents": {"$gt": 5}})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topics": "a"}, "unknown option 'topics' — did you mean topic?"),
        ({"maxEventsPerTriger": "5"}, "known options:"),  # it is for streams
        ({"colour": "red"}, "known options: path, topic"),
        ({"topic": ""}, "no topic is given"),
        ({"topic": "a,,b"}, "empty name"),
        ({"path": " "}, "no log is given"),
        ({"start": "yesterday"}, "not a position — use earliest"),
        ({"start": "-1"}, "not a position"),
        ({"start": "٣"}, "not a position"),  # a digit, but not one of ours
        ({"start": str(2**63)}, "not a position"),
        ({"start": '{"0": -1}'}, "does not name offsets"),
        ({"start": '{"x": 1}'}, "does not name offsets"),
        ({"start": '{"0": "1"}'}, "not valid JSON"),
        ({"start": '{"0": 1'}, "not valid JSON"),
        ({"start": '{"0": 1, "orders": {"0": 1}}'}, "mixes offsets with and without topics"),
        ({"start": '{"other": {"0": 1}}'}, "'other', which is not read"),
        ({"topic": "a,b", "end": '{"0": 1}'}, "several topics may be read"),
        ({"topic": "a*", "end": '{"0": 1}'}, "several topics may be read"),
        ({"type": "("}, "not valid"),
        ({"match": "[]"}, "not valid JSON"),
        ({"match": '{"a": {"$no": 1}}'}, "no"),
        ({"splitBytes": "0"}, "splitBytes '0' is not a number above 0"),
        ({"splitBytes": "64m"}, "not a number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"mode": "dropmalformed"}, "permissive or failfast"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(GIVEN | options)
    assert told in str(error.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(Invalid, match="unknown option 'end'"):
        parsed(STREAM, end="latest")

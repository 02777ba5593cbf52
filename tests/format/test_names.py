"""Ids, times, partitions and directory names: computed, never stored, and the same in every language."""

from __future__ import annotations

import hashlib
import os
import string
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import Invalid
from headwater.event import UNIX_EPOCH_TICKS, id_of, id_text, ticks_and_node, ticks_of, time_of
from headwater.format import arrow, names
from headwater.format.column import Column
from tests import strategies

# The table of docs/FORMAT.md: key, partition of 4, partition of 7.
PARTITIONS = [(b"", 0, 0), (b"a", 3, 5), (b"o-17", 2, 3), (b"123456789", 3, 6)]


# Ids and times


@given(strategies.ticks, strategies.nodes)
def test_an_id_gives_back_its_ticks_and_node(ticks: int, node: int) -> None:
    id = id_of(ticks, node)
    assert (id.version, id.variant) == (6, "specified in RFC 4122")
    assert ticks_and_node(id) == (ticks, node)
    assert id_text(ticks, node) == str(id)


@given(st.lists(strategies.ticks), strategies.nodes)
def test_many_ids_at_once_are_those_made_one_by_one(ticks: list[int], node: int) -> None:
    found = arrow.ids(np.array(ticks, np.int64), node)
    assert found.to_pylist() == [id_text(each, node) for each in ticks]


def test_an_id_is_the_uuid_of_rfc_9562() -> None:
    # The example of RFC 9562, appendix A.5: 2022-02-22 14:22:22 -05:00.
    ticks, node = 0x1EC9414C232AB00, 0x33C89F6BDECED846 & ((1 << 62) - 1)
    assert str(id_of(ticks, node)) == "1ec9414c-232a-6b00-b3c8-9f6bdeced846"
    assert time_of(ticks) == datetime(2022, 2, 22, 14, 22, 22, tzinfo=timezone(timedelta(hours=-5)))


@given(st.lists(strategies.ticks, min_size=2, unique=True), strategies.nodes)
def test_ids_sort_as_offsets_do(ticks: list[int], node: int) -> None:
    ids = [id_of(tick, node) for tick in sorted(ticks)]
    assert sorted(ids) == ids
    assert sorted(map(str, ids)) == list(map(str, ids))
    assert sorted(id.bytes for id in ids) == [id.bytes for id in ids]


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_survives_as_ticks(time: datetime) -> None:
    assert time_of(ticks_of(time)) == time


@given(st.integers(UNIX_EPOCH_TICKS, 2**60 - 1))
def test_ticks_become_the_microsecond_they_are_in(ticks: int) -> None:
    assert 0 <= ticks - ticks_of(time_of(ticks)) < 10


def test_the_unix_epoch_is_where_the_format_says() -> None:
    assert ticks_of(datetime(1970, 1, 1, tzinfo=UTC)) == 122192928000000000
    assert ticks_of(datetime(1582, 10, 15, tzinfo=UTC)) == 0


def test_times_in_other_zones_are_the_same_instant() -> None:
    there = datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert ticks_of(there) == ticks_of(datetime(2024, 5, 1, 12, tzinfo=UTC))


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(Invalid, match="time zone"):
        ticks_of(datetime(2024, 5, 1, 12))  # noqa: DTZ001  (the point of the test)


@pytest.mark.parametrize("id", [uuid4(), UUID(int=0), UUID(int=6 << 76)])
def test_the_id_of_something_else_is_refused(id: UUID) -> None:
    with pytest.raises(Invalid, match="not an event's id"):
        ticks_and_node(id)


# Partitions and logs


@pytest.mark.parametrize(("key", "of_4", "of_7"), PARTITIONS)
def test_a_key_has_the_partition_of_the_format(key: bytes, of_4: int, of_7: int) -> None:
    assert names.partition_of(key, 4) == of_4
    assert names.partition_of(key, 7) == of_7


@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(1, 4096))
def test_many_keys_have_the_partitions_that_each_has_alone(keys: list[bytes], partitions: int) -> None:
    found = names.partitions_of_column(Column.of(keys), partitions).tolist()
    assert found == [names.partition_of(key, partitions) for key in keys]
    assert all(0 <= partition < partitions for partition in found)


def test_keys_spread_evenly() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[names.partition_of(b"user-%d" % number, 8)] += 1
    assert min(counts) > 800


def test_the_uuid_and_node_of_a_log_are_as_the_format_says() -> None:
    topic = UUID("6e8bc430-9c3a-41d9-9669-0800200c9a66")
    expected = hashlib.sha256(topic.bytes + b"\x05\0\0\0").digest()[:16]
    assert names.log_uuid(topic, 5) == expected
    assert names.node_of(expected) == int.from_bytes(expected[:8], "big") % 2**62


# Names of files


@pytest.mark.parametrize(
    ("topic", "directory"),
    [
        ("orders", "orders"),
        ("a.b-c_D9", "a.b-c_D9"),
        (".", "%2E"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("a/b", "a%2Fb"),
        ("%2E", "%252E"),
        ("é", "%C3%A9"),
        ("\0", "%00"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 160 + "%-" + hashlib.sha256(b"x" * 201).hexdigest()[:32]),
    ],
)
def test_a_topic_has_the_directory_of_the_format(topic: str, directory: str) -> None:
    assert names.directory_of(topic) == directory


SAFE = set(string.ascii_letters + string.digits + "_-.%")


@given(strategies.topic_names)
def test_any_name_gives_a_safe_directory(topic: str) -> None:
    directory = names.directory_of(topic)
    assert 0 < len(directory.encode()) <= 255
    assert set(directory) <= SAFE
    assert not directory.startswith(".")


@given(st.lists(strategies.topic_names, min_size=2, max_size=20, unique=True))
def test_different_names_give_different_directories(topics: list[str]) -> None:
    assert len({names.directory_of(topic) for topic in topics}) == len(topics)


@given(st.text("x/é.%-", min_size=195, max_size=260), st.text("x/é.%-", min_size=195, max_size=260))
def test_long_names_that_begin_alike_give_different_directories(one: str, other: str) -> None:
    assert (names.directory_of("x" * 160 + one) == names.directory_of("x" * 160 + other)) == (one == other)


@settings(max_examples=30)
@given(strategies.topic_names)
def test_the_file_system_takes_the_name(topic: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(Path(directory) / names.directory_of(topic))
        assert os.listdir(directory) == [names.directory_of(topic)]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(Invalid, match="surrogate"):
        names.directory_of("\ud800")


@given(st.integers(0, 2**63 - 1))
def test_a_file_name_gives_back_its_offset(offset: int) -> None:
    file = names.file_of(offset, "log")
    assert names.offset_of(file, "log") == offset
    assert names.offset_of(file, "index") is None
    assert names.offset_of(file + ".1a2b3c4d.tmp", "log") is None


@pytest.mark.parametrize("file", ["tail", "lock", "1.log", "0" * 20, "x" * 20 + ".log", "\u0660" * 20 + ".log"])
def test_other_files_are_no_segments(file: str) -> None:
    assert names.offset_of(file, "log") is None

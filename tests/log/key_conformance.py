"""What every log does that has an index of keys: a directory, and a server of one. A bucket has none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Invalid, NotFound
from tests import strategies
from tests.log.conformance import Log, LogConformance, Place, append_rows, names, some_examples


class KeyConformance(LogConformance):
    @some_examples
    @given(data=st.data())
    def test_a_key_has_its_history_and_its_version(self, place: Place, log: Log, data: st.DataObject) -> None:
        topic = next(names)
        for _ in range(data.draw(st.integers(1, 4))):
            append_rows(log, topic, data.draw(strategies.few_row_lists))
            if data.draw(st.booleans()):
                place.settle(log, topic)
        events = list(log.read(topic))
        for each in (log, place.open()):
            for key in (b"", b"a", b"b", b"o-17", b"nobody's"):
                mine = [event for event in events if event.key == key]
                assert list(each.read(topic, key=key)) == mine
                assert list(each.read(topic, key=key, reverse=True)) == mine[::-1]
                assert each.version(topic, key) == (mine[-1].offset if mine else None)

    def test_a_version_grows_with_each_event_of_the_key(self, place: Place, log: Log) -> None:
        log.create("t")
        other = place.open()
        assert log.version("t", b"a") is None
        for number in range(9):
            key = b"ab"[number % 2 : number % 2 + 1]
            log.append("t", b"", key=key)
            log.append("t", b"without a key")
            if number % 3 == 2:
                place.settle(log, "t")
            assert log.version("t", key) == other.version("t", key.decode()) == 2 * number
        assert log.version("t", b"") is None
        none: Any = None
        with pytest.raises(Invalid, match="without a key"):
            log.version("t", none)

    def test_a_version_is_that_of_the_key_s_partition(self, log: Log) -> None:
        log.create("t", partitions=4)
        keys = [b"key %d" % (number % 20) for number in range(60)]
        refs = log.append_many("t", [b"x"] * 60, keys=keys)
        for number in range(40, 60):
            assert log.version("t", keys[number]) == refs[number].offset
            assert log.version("t", keys[number], partition=refs[number].partition) == refs[number].offset
            assert log.version("t", keys[number], partition=(refs[number].partition + 1) % 4) is None
        elsewhere = log.append("t", b"", key=b"key 0", partition=3)
        assert log.version("t", b"key 0", partition=3) == elsewhere.offset
        with pytest.raises(NotFound) as caught:
            log.version("t", b"key 0", partition=4)
        assert caught.value.code == "partition_not_found"

    def test_the_version_of_a_key_in_a_missing_topic_is_not_found(self, log: Log) -> None:
        with pytest.raises(NotFound):
            log.version("t", b"a")
        assert log.topics() == []

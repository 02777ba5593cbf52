"""The text of a position, wherever it is written."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import position
from headwater.errors import Invalid
from headwater.position import Positions

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ID = "1f1e1461-3b1b-6353-9839-430a8db5c5b0"

offsets = st.integers(0, 2**63 - 1)
times = st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-7, minutes=-30))))
positions = offsets | times | st.uuids() | st.sampled_from(["earliest", "latest"])


@given(positions | st.lists(offsets, min_size=2, max_size=9))
def test_what_is_printed_is_read_back(at: Positions) -> None:
    assert position.parse_several(position.format(at), most=9) == at


@given(st.text(max_size=50))
def test_any_text_is_a_position_or_invalid(text: str) -> None:
    for parse in (position.parse, position.parse_time, position.parse_id, lambda text: position.parse_several(text, 3)):
        try:
            parse(text)
        except Invalid as error:
            assert error.code == "bad_position"  # noqa: PT017  # most texts are none
            assert error.hint  # noqa: PT017


def test_a_position_is_an_offset_a_time_an_id_or_an_end() -> None:
    assert position.parse("earliest") == "earliest"
    assert position.parse(" Latest ") == "latest"
    assert position.parse("17") == position.parse(17) == 17
    assert position.parse(ID) == UUID(ID)
    assert position.parse("2025-03-01T12:00:00Z") == NOW


def test_a_duration_is_subtracted_from_now_where_there_is_one() -> None:
    assert position.parse("-1h", now=NOW) == NOW - timedelta(hours=1)
    with pytest.raises(Invalid):
        position.parse("-1h")


def test_a_time_without_a_zone_is_in_the_zone_that_is_given_or_refused() -> None:
    assert position.parse("2025-03-01", zone="local") == datetime(2025, 3, 1).astimezone()
    assert position.parse("2025-03-01", zone=UTC) == datetime(2025, 3, 1, tzinfo=UTC)
    for parse in (position.parse, position.parse_time):
        with pytest.raises(Invalid, match="no time zone"):
            parse("2025-03-01T12:00")


def test_a_time_may_be_milliseconds_where_only_a_time_can_be() -> None:
    assert position.parse_time("1740830400000") == NOW
    assert position.parse_time("-1000") == datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("text", ["-5", "yesterday", "", "-1y", "-999999999w", "1f1e1461", str(2**63), "٣", "1,2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a position"):
        position.parse(text, now=NOW)


def test_so_many_offsets_and_no_more() -> None:
    assert position.parse_several("4,0,17", most=3) == [4, 0, 17]
    for text in ("4,0,17,1", "4,", "4,x", "4,-1"):
        with pytest.raises(Invalid, match="not a list of offsets"):
            position.parse_several(text, most=3)


@pytest.mark.parametrize("at", [None, True, 1.5, {}])
def test_a_value_of_another_type_is_refused(at: object) -> None:
    with pytest.raises(Invalid, match="is not a position"):
        position.format(at)  # type: ignore[arg-type]


def test_durations_have_a_unit() -> None:
    assert position.parse_duration("500ms") == timedelta(milliseconds=500)
    assert position.parse_duration("1.5h") == timedelta(minutes=90)
    for text in ("7", "d", "1y", "-1h", "9" * 40 + "w"):
        with pytest.raises(ValueError, match=text):
            position.parse_duration(text)

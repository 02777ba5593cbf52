from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from headwater.cli.arguments import parse_duration, parse_place, parse_size

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("10MB", 10_000_000), ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("1.5KiB", 1536)],
)
def test_sizes_are_decimal_or_binary(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "64M", "-1", "1e3", "64 apples"])
def test_other_sizes_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write 64MiB"):
        parse_size(text)


def test_durations_have_a_unit() -> None:
    assert parse_duration("500ms") == timedelta(milliseconds=500)
    assert parse_duration("1.5h") == timedelta(minutes=90)
    for text in ("7", "d", "1y", "-1h", "9" * 40 + "w"):
        with pytest.raises(ValueError, match=text):
            parse_duration(text)


def test_a_place_is_an_offset_a_time_an_id_or_an_end() -> None:
    id = "1f1e1461-3b1b-6353-9839-430a8db5c5b0"
    assert parse_place("earliest", NOW) == "earliest"
    assert parse_place("17", NOW) == 17
    assert parse_place(id, NOW) == UUID(id)
    assert parse_place("2025-03-01T12:00:00Z", NOW) == NOW
    assert parse_place("-1h", NOW) == NOW - timedelta(hours=1)


def test_a_time_without_a_zone_is_local() -> None:
    assert parse_place("2025-03-01", NOW) == datetime(2025, 3, 1).astimezone()


@pytest.mark.parametrize("text", ["-5", "yesterday", "", "-1y", "-999999999w", "1f1e1461"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a place"):
        parse_place(text, NOW)

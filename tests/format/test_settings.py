"""The settings files: what is written is read again, however it was said."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.format import settings
from headwater.format.settings import TopicRecord, TopicSettings

numbers = st.integers(0, (1 << 63) - 1)


def said(text: str) -> str:
    """The text as an object of its own, as one that came from outside is."""
    return bytes(text, "ascii").decode()


chosen = st.fixed_dictionaries(
    {},
    optional={
        "segment_bytes": numbers,
        "segment_age_ms": numbers,
        "data_bytes_max": numbers,
        "compression": st.sampled_from(["none", "zstd"]).map(said),
        "retention_bytes": numbers,
        "retention_segments": numbers,
        "retention_age_ms": numbers,
        "retention_consumers": st.booleans(),
        "retention_bytes_hard": numbers,
        "overflow": st.sampled_from(["delete", "refuse"]).map(said),
    },
)


@given(st.text(min_size=1), chosen)
def test_settings_are_read_as_they_were_written(name: str, chosen: dict[str, Any]) -> None:
    topic = TopicRecord(name=name, uuid="u", partitions=1, settings=TopicSettings(**chosen))
    assert settings.decode(settings.encode(topic), TopicRecord) == topic


def test_a_default_that_was_said_is_not_written() -> None:
    plain = TopicRecord(name="orders", uuid="u", partitions=1)
    for same in (TopicSettings(overflow=said("delete")), TopicSettings(compression=said("none"))):  # type: ignore[arg-type]
        assert settings.encode(TopicRecord(name="orders", uuid="u", partitions=1, settings=same)) == settings.encode(
            plain
        )

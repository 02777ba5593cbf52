"""Errors that every log raises, wherever it is kept."""

from __future__ import annotations

from typing import Protocol

from headwater.errors import NotFound, TooLarge


class NamedLog(Protocol):
    """Which log it is; `str()` tells it to people."""

    @property
    def topic(self) -> str: ...


def deleted(place: NamedLog) -> NotFound:
    """The topic is gone."""
    return NotFound(f"topic {place.topic!r} was deleted", code="topic_deleted", topic=place.topic)


def offset_gone(place: NamedLog, offset: int, oldest: int) -> NotFound:
    """Retention has deleted the event."""
    return NotFound(
        f"{place}: offset {offset} is gone; the oldest is {oldest}",
        hint="read from start='earliest'",
        code="offset_gone",
        oldest=oldest,
    )


def too_large(bytes_max: int) -> TooLarge:
    """That an event is above the limit of its topic."""
    return TooLarge(
        f"the data exceeds the topic's limit of {bytes_max} bytes",
        hint="create the topic with a larger data_bytes_max",
        limit="data_bytes_max",
        maximum=bytes_max,
    )

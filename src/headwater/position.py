"""Positions: where a read begins or ends. The only parser and the only printer of them.

A position is an offset, a time, the id of an event, `earliest` or `latest`. As text, it is the same everywhere: on the
command line, in an HTTP parameter, in an option of Spark. Immutable values, no I/O; the clock is passed in.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal
from uuid import UUID

from headwater.errors import Invalid
from headwater.event import ticks_of

Position = int | datetime | UUID | Literal["earliest", "latest"]
"""An offset, a time with a zone, the id of an event, or one of the two ends of a log."""

Positions = Position | Sequence[int]
"""A position in every partition of a topic, or one offset for each of them."""

OFFSET_MAX = 2**63
HINT = "give an offset, a time such as 2025-03-01T12:00Z, an event's id, 'earliest' or 'latest'"

_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse(text: str | int, *, zone: tzinfo | Literal["local"] | None = None, now: datetime | None = None) -> Position:
    """Return the position that a text names; raises Invalid with the code `bad_position`.

    A time without a zone is refused, unless `zone` says which one it is in. With `now`, `-15m` is 15 minutes before it.
    """
    if isinstance(text, int):
        text = str(text)
    stripped = text.strip()
    if (end := stripped.lower()) in ("earliest", "latest"):
        return "earliest" if end == "earliest" else "latest"
    if is_offset(stripped):
        return int(stripped)
    if _ID.fullmatch(stripped):
        return UUID(stripped)
    with contextlib.suppress(ValueError, OverflowError):
        if stripped.startswith("-") and now is not None:
            return now - parse_duration(stripped[1:])
        time = datetime.fromisoformat(stripped)
        if time.tzinfo is None and zone is not None:
            return time.astimezone() if zone == "local" else time.replace(tzinfo=zone)
        return with_zone(time)
    raise not_a_position(text)


def parse_several(text: str, most: int) -> Position | list[int]:
    """Return a position, or the comma-separated offsets of at most so many partitions; raises Invalid."""
    offsets = text.split(",")
    if len(offsets) == 1:
        return parse(text)
    if len(offsets) > most or not all(map(is_offset, offsets)):
        raise Invalid(f"{text[:40]!r} is not a list of offsets", hint="write 17,4,0", code="bad_position")
    return [int(each) for each in offsets]


def parse_time(text: str) -> datetime:
    """Return a time: ISO 8601 with its zone, or milliseconds since 1970; raises Invalid."""
    with contextlib.suppress(ValueError, OverflowError):
        if text.lstrip("-").isdecimal():
            return _UNIX_EPOCH + timedelta(milliseconds=int(text))
        return with_zone(datetime.fromisoformat(text))
    hint = "write 2026-01-31T12:00:00Z, or milliseconds since 1970"
    raise Invalid(f"{text[:40]!r} is not a time", hint=hint, code="bad_position")


def parse_id(text: str) -> UUID:
    """Return the id of an event; raises Invalid."""
    if not _ID.fullmatch(text):
        raise Invalid(f"{text[:40]!r} is not an event's id", hint="ids are UUIDs of version 6", code="bad_position")
    return UUID(text)


def parse_duration(text: str) -> timedelta:
    """Return a duration: `500ms`, `90s`, `15m`, `2h`, `7d` or `1w`; raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 500ms, 90s, 15m, 2h, 7d or 1w")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    except OverflowError:
        raise ValueError(f"{text!r} is too long a duration") from None


def is_offset(text: str) -> bool:
    """Tell whether a text is an offset: a decimal number below 2**63."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < OFFSET_MAX


def with_zone(time: datetime) -> datetime:
    """Return a time that has a zone; raises Invalid for one that has none: it means another time elsewhere."""
    if time.tzinfo is None:
        text = time.isoformat()
        hint = f"write {text}Z for UTC; in Python use datetime.now(UTC) or .astimezone()"
        raise Invalid(f"time {text} has no time zone", hint=hint, code="bad_position")
    return time


def format(at: Positions) -> str:
    """Return the text of a position, which `parse_several` reads back; raises Invalid for what is none."""
    if isinstance(at, datetime):
        ticks_of(at)
        return at.isoformat()
    if isinstance(at, str | int | UUID) and not isinstance(at, bool):
        return str(at)
    if isinstance(at, Sequence):
        return ",".join(map(str, at))
    raise not_a_position(at)


def not_a_position(at: object) -> Invalid:
    """Return the error for a value that is not a position."""
    return Invalid(f"{str(at)[:40]!r} is not a position", hint=HINT, code="bad_position")

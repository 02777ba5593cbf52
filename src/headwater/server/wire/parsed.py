"""The parsed body of a request: events as columns, ready to append.

Parsed(content, columns, count, partition=None)
too_many(count, limits), too_long(size, limits)    the errors of a body that holds too much
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.errors import TooLarge
from headwater.event import Content
from headwater.format.batch import KEY
from headwater.format.column import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.limits import Limits


@dataclass(frozen=True, slots=True)
class ParsedEvents:
    """Events of one content, their columns by kind as `Rows.many` takes them, checked against the limits.

    `partition` is the one that the body names, if it does. With a count of 0 there is nothing to append.
    """

    content: Content
    columns: dict[int, Column | None]
    count: int
    partition: int | None = None

    def keys(self) -> Sequence[bytes | None] | None:
        """Return the key of each event; None if no event has one."""
        column = self.columns.get(KEY)
        return None if column is None else column.values(0, self.count)


def too_many(count: int, limits: Limits) -> TooLarge:
    """There are more events than one request may append."""
    return TooLarge(
        f"the body has at least {count} events; the limit is {limits.batch_events_max}",
        hint="send them in several requests, or as Arrow, which the server splits",
        limit="batch_events_max",
        maximum=limits.batch_events_max,
        size=count,
    )


def too_long(size: int, limits: Limits) -> TooLarge:
    """Return the error for events with more bytes than one request may append."""
    return TooLarge(
        f"the events have {size} bytes; the limit of a request is {limits.batch_bytes_max}",
        hint="send them in several requests",
        limit="batch_bytes_max",
        maximum=limits.batch_bytes_max,
        size=size,
    )

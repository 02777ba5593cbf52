"""Decodes bodies from clients: every error is raised as the client's mistake. Safe from any thread.

`ParsedEvents` is a body with several events as columns, ready to append; `more_than` bounds an array before it is
decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from headwater.errors import Invalid, TooLarge
from headwater.event import Content
from headwater.format.batch import KEY
from headwater.format.column import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.limits import Limits


T = TypeVar("T")
# Errors that decoders raise for invalid input: not JSON or not of the type, not UTF-8, a number of too many digits,
# nested too deep, or more than there is memory for.
WRONG = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)


def decoded(decode: Callable[[bytes], T], said: bytes, what: str = "invalid JSON", code: str = "bad_body") -> T:
    """Return what JSON says; raises Invalid for what it may not say."""
    try:
        return decode(said)
    except WRONG as error:
        raise Invalid(f"{what}: {str(error) or type(error).__name__}", code=code) from error


BLOCK_BYTES = 1024 * 1024
COMMAS_MAX = 1_000_000  # with no more, it may be taken apart whatever they are for


def more_than(array: bytes, most: int) -> bool:
    """Return whether a JSON array has more elements. For invalid JSON the result is arbitrary: decoding it fails."""
    if array.count(b",") <= COMMAS_MAX:
        return False
    letters = np.frombuffer(array, np.uint8)
    depth = elements = 0
    quoted, slashes = False, 0  # whether the last letter was in a string, and the backslashes that it ended with
    for at in range(0, len(letters), BLOCK_BYTES):
        block = letters[at : at + BLOCK_BYTES]
        quotes, slashes = _quotes(block, slashes)
        outside = (np.cumsum(quotes, dtype=np.int32) + quoted) & 1 == 0
        opening = outside & ((block == 91) | (block == 123))
        closing = outside & ((block == 93) | (block == 125))
        depths = depth + np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
        elements += int(np.count_nonzero(outside & (block == 44) & (depths == 1)))
        if elements >= most:
            return True
        depth, quoted = int(depths[-1]), not outside[-1]
    return False


def _quotes(block: Any, slashes: int) -> tuple[Any, int]:
    """Return which letters begin or end a string, after so many backslashes; and with how many the block ends."""
    quotes = block == 34
    others = np.flatnonzero(block != 92)  # a quote is escaped by an odd number of backslashes before it
    last = len(block) - 1 - int(others[-1]) if len(others) else slashes + len(block)
    if len(others) < len(block) or slashes:
        before = np.diff(others, prepend=-1 - slashes) - 1
        quotes[others[before % 2 == 1]] = False
    return quotes, last


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

"""Whether data is what its content says, for BSON: checked where events come in, and where stored ones go out.

What is stored may be older than the check, so readers do not rely on it. Bytes only; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwater.errors import Invalid, Unsupported
from headwater.format import protocol
from headwater.format.codec import codec
from headwater.format.column import Column

EVENT_DEPTH = 3  # the level of an event over TCP: it is in a frame, which is in a document
FEW = 16  # values below which arrays cost more than they save
TOGETHER_BYTES_MAX = 1024 * 1024  # of values that are decoded in one call: nobody else has the interpreter meanwhile
_length = protocol.LENGTH.unpack_from


def check_bson(values: Sequence[bytes]) -> None:
    """Raise Invalid, `bad_bson` or `too_deep`, if one of these is not one document of BSON all the way down.

    Without the codec of BSON, only their lengths and depths are looked at.
    """
    if not are_whole(values):
        raise _bad("its length is not the one that it begins with, or it has no end")
    try:
        for value in values:
            protocol.check_depth(value, EVENT_DEPTH)
        _decode(values)
    except Invalid as error:
        raise error if error.code == "too_deep" else _bad(error.message.partition(": ")[2]) from error


def check_column(column: Column | None) -> None:
    """Check the values of a column of data, as `check_bson` does."""
    if column is not None:
        check_bson([value or b"" for value in column.values(0, column.count)])


def is_bson(values: Sequence[bytes]) -> bool:
    """Whether all of these are documents of BSON that fit into a frame."""
    try:
        check_bson(values)
    except Invalid:
        return False
    return True


def are_whole(values: Sequence[bytes]) -> bool:
    """Whether each begins with its length and ends with a zero, as a document does: else it would break its frame."""
    if len(values) < FEW:
        return all(len(each) >= 5 and _length(each)[0] == len(each) and not each[-1] for each in values)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    if int(lengths.min()) < 5:
        return False
    joined = np.frombuffer(b"".join(values), np.uint8)
    ends = np.cumsum(lengths)
    said = joined[(ends - lengths)[:, np.newaxis] + np.arange(4)].view("<i4")[:, 0]
    return bool((said == lengths).all() and not joined[ends - 1].any())


def _decode(values: Sequence[bytes]) -> None:
    """Have the codec look at all of it; raises Invalid."""
    try:
        found = codec()
    except Unsupported:
        return
    if any(len(value) > TOGETHER_BYTES_MAX for value in values):
        for value in values:
            protocol.check(value)
        return
    try:
        if len(values) == 1:
            found.decode(values[0], found.options)
        else:
            found.decode_all(b"".join(values), found.options)
    except (found.damage, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _bad(str(error)) from error


def _bad(why: str) -> Invalid:
    return Invalid(f"the data is not BSON: {why}", hint="send other bytes with the content 'bytes'", code="bad_bson")

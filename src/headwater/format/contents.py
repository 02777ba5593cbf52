"""Checks that data is what its content says: JSON, UTF-8 or BSON. `requests` makes them where events come in.

Bytes and text that are a JSON object or array are JSON to every reader of fields; `may_be_json` finds the candidates.

What is stored may be older than the checks, so readers do not rely on them, and events that are copied as they are
stored (dead letters, replicas, imports of what was exported) are not checked again. Bytes only; safe from any thread.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from headwater.errors import Invalid, Unsupported
from headwater.event import Content
from headwater.format import protocol
from headwater.format.codec import codec
from headwater.format.column import Bools, Column
from headwater.format.jsonl import check_json

EVENT_DEPTH = 3  # the level of an event over TCP: it is in a frame, which is in a document
FEW = 16  # values below which arrays cost more than they save
TOGETHER_BYTES_MAX = 1024 * 1024  # of values decoded in one call, which holds the interpreter
CODES = frozenset(("bad_json", "not_utf8", "bad_bson", "too_deep"))  # of the errors that these checks raise
HINT = 'correct it, or store it as it is with content="bytes"'
_length = protocol.LENGTH.unpack_from
_look_at = msgspec.json.Decoder(msgspec.Raw).decode  # a third of what it costs to build the values
_BEGINS, _BEGINS_OBJECT = (np.isin(np.arange(256), list(signs)) for signs in (b"{[ \t\r\n", b"{ \t\r\n"))
_NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


def check_data(data: bytes, content: Content, index: int | None = None) -> None:
    """Raise Invalid, with one of CODES, if the data of an event is not what its content says.

    `index` is the event's among those that were given together; it is in the message, and the fact `index`.
    """
    try:
        if content == "json":
            check_json(data)
        elif content == "text":
            if not data.isascii():
                data.decode()
        elif content == "bson":
            check_bson((data,))
    except _NOT_JSON as error:
        wrong = _not_text(error) if content == "text" else _not_json(error)
        raise wrong if index is None else numbered(wrong, index) from error
    except Invalid as error:
        raise error if index is None else numbered(error, index) from error


def check_column(
    column: Column | None, content: Content, *, first: int = 0, values: Sequence[bytes] | None = None
) -> None:
    """Check the data of many events as `check_data` does. `first` is the index of the first in what was given.

    `values` are those of the column, where they are at hand.
    """
    if column is None or content == "bytes" or (content == "text" and _is_utf8(column)):
        return
    if values is None:
        values = [value or b"" for value in column.values(0, column.count)]
    try:
        if content == "bson":
            check_bson(values)
            return
        if content == "json":
            deque(map(_look_at, values), 0)
            if _is_utf8(column):
                return
    except (*_NOT_JSON, Invalid):
        pass  # one of them is at fault: tell which
    for number, value in enumerate(values, first):
        check_data(value, content, number)


class StreamedText:
    """Text that comes in pieces, checked as `check_data` does without holding it."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")().decode

    def take(self, piece: bytes, *, final: bool = False) -> None:
        """Check one more piece; raises Invalid if it is not text."""
        try:
            self._decode(piece, final)
        except UnicodeDecodeError as error:
            raise _not_text(error) from error

    def end(self) -> None:
        """Raise Invalid if the text ends within a character."""
        self.take(b"", final=True)


def may_be_json(column: Column, *, objects_only: bool = False) -> Bools:
    """Return for each value of a column whether it may be a JSON object or array, by its first byte alone.

    One that begins with white space may be: only a parser tells.
    """
    begins = _BEGINS_OBJECT if objects_only else _BEGINS
    if column.offsets is None:
        return np.full(column.count, bool(len(column.data)) and bool(begins[column.data[0]]))
    starts, ends = column.offsets[:-1], column.offsets[1:]
    found = ends > starts
    found[found] = begins[np.frombuffer(column.data, np.uint8)[starts[found]]]
    return found if column.codes is None else found[column.codes]


def numbered(error: Invalid, index: int) -> Invalid:
    """Return an error of these checks that names the event by its index."""
    message = f"event {index}: {error.message}"
    return Invalid(message, hint=error.hint, code=error.code, **{**error.facts, "index": index})


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


def is_bson(values: Sequence[bytes]) -> bool:
    """Return whether all of these are documents of BSON that fit into a frame."""
    try:
        check_bson(values)
    except Invalid:
        return False
    return True


def are_whole(values: Sequence[bytes]) -> bool:
    """Return whether each begins with its length and ends with a zero, as a document does: else its frame breaks."""
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
    return Invalid(f"the data is not BSON: {why}", hint=HINT, code="bad_bson")


def _not_json(error: Exception) -> Invalid:
    return Invalid(f"the data is not JSON: {str(error) or type(error).__name__}", hint=HINT, code="bad_json")


def _not_text(error: Exception) -> Invalid:
    return Invalid(f"the data is not text: {error}", hint=HINT, code="not_utf8")


def _is_utf8(column: Column) -> bool:
    """Tell whether each value of a column is UTF-8, by one look at all of its bytes."""
    raw = np.frombuffer(column.data, np.uint8)
    if column.offsets is not None:
        raw = raw[int(column.offsets[0]) : int(column.offsets[-1])]
    if not len(raw) or int(raw.max()) < 0x80:
        return True
    try:
        str(raw.data, "utf-8")
    except UnicodeDecodeError:
        return False
    if column.offsets is None:
        return True
    starts = column.offsets[:-1][np.diff(column.offsets) > 0] - column.offsets[0]
    return not bool(((raw[starts] & 0xC0) == 0x80).any())  # a character that began in the event before

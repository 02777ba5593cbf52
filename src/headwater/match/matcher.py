"""A compiled match, run over one document or over the data of a whole batch, and the selection of a reader.

JSON is decoded into a record that has only the names which the match looks at; the codec skips all others without
making objects of them. A `Selection` joins a match with a pattern over the type (RE2) and a key. Immutable once made:
safe from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from headwater import match as matching
from headwater.errors import Unsupported
from headwater.event import Content
from headwater.format.batch import BLOB, DATA, KEY, TYPE, Batch
from headwater.format.column import I64, Column
from headwater.format.contents import may_be_json
from headwater.match.language import All, Node, Not, Some, Term, parse, read
from headwater.match.pattern import compile_pattern
from headwater.match.values import MISSING, Each, Test

DECODERS_MAX = 128  # sets of names whose decoders are kept; making one takes some 100 µs

_building = threading.Lock()  # the codec crashes when two threads are the first to use a type at the same time


def compile(match: Mapping[str, Any] | str) -> Matcher:
    """Return a match, or its text in JSON, ready to run; raises Invalid with the code `bad_match` or `bad_pattern`."""
    return Matcher(read(parse(match) if isinstance(match, str) else match))


class Matcher:
    """Call it with a document; ask for `hits` in the data of many events. `{}` matches every document.

    `node` is what it was compiled from.
    """

    __slots__ = ("_decode", "_each", "_test", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        names = tuple(sorted(set(_names(node))))
        self._test: Test = _bind(node, _from_dict)
        try:
            with _building:
                self._decode: Callable[[Any], Any] = _record_decoder(names)
            self._each = _each(node, {name: attrgetter(f"f{i}") for i, name in enumerate(names)}.__getitem__)
        except ValueError:
            # Names with quotes or control characters cannot be names of a record: all of the document is decoded.
            self._decode = _decode_object
            self._each = _each(node, _from_dict)

    def __call__(self, document: Mapping[str, Any]) -> bool:
        """Return whether a document matches; False for what is not an object."""
        return isinstance(document, dict) and self._test(document)

    def hits(self, content: Content, data: Sequence[bytes]) -> list[int]:
        """Which of the data match: their places, in order. What is neither JSON nor BSON, or not well formed, does not.

        Bytes and text match if they are a JSON object. Raises Unsupported for BSON without its codec; nothing else,
        whatever the data.
        """
        return self._bson_hits(data) if content == "bson" else self._json_hits(data)

    def _json_hits(self, data: Sequence[bytes]) -> list[int]:
        places: Iterable[int] = range(len(data))
        try:
            found = self._each(map(self._decode, data))
        except (ValueError, RecursionError):
            records = [(place, record) for place, record in enumerate(map(self._attempt, data)) if record is not None]
            places = [place for place, _ in records]
            found = self._each([record for _, record in records])
        # The codec does not look at the encoding of what it skips, so that of the few hits is verified here.
        return [place for place in compress(places, found) if data[place].isascii() or _is_utf8(data[place])]

    def _attempt(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except (ValueError, RecursionError):
            return None

    def _bson_hits(self, data: Sequence[bytes]) -> list[int]:
        decode = _bson_decoder()
        return [
            place for place, document in enumerate(map(decode, data)) if document is not None and self._test(document)
        ]


Getter = Callable[[Any], Any]


def _bind(node: Node, getter: Callable[[str], Getter]) -> Test:
    """Return one function of all terms over documents, of which `getter` knows to get what stands under a name."""
    if isinstance(node, Term):
        test, get = node.test, getter(node.name)
        return lambda document: test(get(document))
    if isinstance(node, Not):
        wrong = _bind(node.node, getter)
        return lambda document: not wrong(document)
    tests = [_bind(part, getter) for part in node.nodes]
    if isinstance(node, Some):
        return lambda document: any(test(document) for test in tests)
    if len(tests) == 2:
        first, second = tests
        return lambda document: first(document) and second(document)
    return lambda document: all(test(document) for test in tests)


def _each(node: Node, getter: Callable[[str], Getter]) -> Each:
    """Return which of many documents match; a match of one term goes over their values without a call for each."""
    if isinstance(node, Term):
        each, get = node.each, getter(node.name)
        return lambda documents: each(map(get, documents))
    if isinstance(node, Not):
        wrong = _each(node.node, getter)
        return lambda documents: [not found for found in wrong(documents)]
    test = _bind(node, getter)
    return lambda documents: list(map(test, documents))


def _names(node: Node) -> Iterable[str]:
    if isinstance(node, Term):
        return (node.name,)
    if isinstance(node, Not):
        return _names(node.node)
    assert isinstance(node, All | Some)
    return (name for part in node.nodes for name in _names(part))


def _from_dict(name: str) -> Getter:
    return lambda document: document.get(name, MISSING)


@lru_cache(DECODERS_MAX)
def _record_decoder(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return what decodes a JSON object into a record with these names alone.

    ValueError if they cannot be names of one.
    """
    fields = [(f"f{i}", Any, msgspec.field(default=MISSING, name=name)) for i, name in enumerate(names)]
    decode = msgspec.json.Decoder(msgspec.defstruct("Record", fields, gc=False)).decode
    decode(b"{}")
    return decode


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bson_decoder() -> Callable[[bytes], Any]:
    """Return what decodes a BSON document, and gives None for what is none."""
    try:
        import bson
    except ImportError as error:
        raise Unsupported("matching BSON needs pymongo", hint="pip install 'headwater[bson]'") from error
    # Dates beyond the years of Python stay numbers, so that one of them does not hide a document.
    options: Any = bson.CodecOptions(datetime_conversion=bson.DatetimeConversion.DATETIME_AUTO)

    def decode(data: bytes) -> Any:
        try:
            return bson.decode(data, options)
        except (bson.errors.BSONError, ValueError, TypeError, RecursionError):
            return None

    return decode


LoadBlob = Callable[[Batch], bytes | None]
"""Gives the data of a huge event, or None if it is above the limit for memory."""


class Selection:
    """A compiled filter; wants everything when all three are None. Safe from any thread.

    Raises Invalid for a bad pattern or match.
    """

    def __init__(
        self, type: str | None = None, key: bytes | None = None, match: Mapping[str, Any] | None = None
    ) -> None:
        self.key = key
        self.matcher = matching.compile(match) if match is not None else None
        self._pattern = compile_pattern(type) if type is not None else None
        self._known: dict[bytes, bool] = {}
        self.types = self._wants_type if self._pattern is not None else None
        self.everything = type is None and key is None and match is None

    def rows(self, batch: Batch, lo: int, hi: int, load_blob: LoadBlob) -> I64 | None:
        """Return which of the events `lo` to `hi` of a batch are wanted; None if all of them are."""
        if self.everything:
            return None
        rows = self._by_type_and_key(batch, lo, hi)
        if self.matcher is not None and len(rows):  # last, because it is by far the most work
            rows = self._matching(self.matcher, batch, rows, load_blob)
        return None if len(rows) == hi - lo else rows

    def _by_type_and_key(self, batch: Batch, lo: int, hi: int) -> I64:
        if self._pattern is None and self.key is None:
            return np.arange(lo, hi)
        mask = np.zeros(batch.count, np.bool_)
        mask[lo:hi] = True
        if self._pattern is not None:
            column = batch.column(TYPE)
            if column is None or column.offsets is None:
                if not self._wants_type(b"" if column is None else bytes(column.data)):
                    return np.zeros(0, np.int64)
            else:
                size = len(column.offsets) - 1
                distinct = Column(size, column.data, column.offsets).values(0, size)
                wanted = np.fromiter((self._wants_type(value or b"") for value in distinct), np.bool_, size)
                mask &= wanted if column.codes is None else wanted[column.codes]
        if self.key is not None:
            column = batch.column(KEY)
            if column is None:
                return np.zeros(0, np.int64)
            mask &= column.equals(self.key)
        return np.flatnonzero(mask)

    def _matching(self, matcher: matching.Matcher, batch: Batch, rows: I64, load_blob: LoadBlob) -> I64:
        column = batch.column(DATA)
        if column is None:
            return rows[:0]
        if batch.content in ("bytes", "text") and not batch.flags & BLOB:
            rows = rows[may_be_json(column, objects_only=True)[rows]]
            if not len(rows):
                return rows
        if column.offsets is None:  # one value for all
            data = load_blob(batch) if batch.flags & BLOB else bytes(column.data)
            return rows if data is not None and matcher.hits(batch.content, [data]) else rows[:0]
        lo, hi = int(rows[0]), int(rows[-1]) + 1
        found: Any = column.values(lo, hi) if hi - lo == len(rows) else column.take(rows)  # data is never null
        return rows[matcher.hits(batch.content, found)]

    def _wants_type(self, type: bytes) -> bool:
        wanted = self._known.get(type)
        if wanted is None:
            assert self._pattern is not None
            wanted = self._known[type] = self._pattern.fullmatch(type.decode()) is not None
        return wanted

"""A compiled match, run over one document or over the data of a whole batch.

JSON is decoded into a record that has only the names which the match looks at; the codec skips all others without
making objects of them. Immutable once made: safe from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec

from headwater.errors import Unsupported
from headwater.event import Content
from headwater.match.language import All, Node, Not, Some, Term, parse, read
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

        Raises Unsupported for BSON without its codec; nothing else, whatever the data.
        """
        if content == "json":
            return self._json_hits(data)
        return self._bson_hits(data) if content == "bson" else []

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

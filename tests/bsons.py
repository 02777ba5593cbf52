"""What hypothesis draws from where BSON comes from outside: documents of all types, as bytes, and broken ones.

They are built by hand, because no library writes all of them, and none writes wrong ones.
"""

from __future__ import annotations

import struct

from hypothesis import strategies as st

names = st.sampled_from([b"", b"a", b"b", b"n", b"$ref", b"$id", b"0", b"1", "ü".encode(), b"a.b"]) | st.binary(
    max_size=3
).map(lambda name: name.replace(b"\0", b""))
texts = st.sampled_from([b"", b"a", b"a\0b", "größer".encode(), b"\xff\xfe", b"\xed\xa0\x80"]) | st.binary(max_size=8)
patterns = st.sampled_from([b"", b"a+", b"[", b"\xff"])
subtypes = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x80, 0xFF])


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def document(fields: list[tuple[int, bytes, bytes]]) -> bytes:
    inner = b"".join(bytes((kind,)) + name + b"\0" + value for kind, name, value in fields)
    return struct.pack("<i", len(inner) + 5) + inner + b"\0"


def array(values: list[tuple[int, bytes]]) -> bytes:
    return document([(kind, b"%d" % number, value) for number, (kind, value) in enumerate(values)])


def code_with_scope(code: bytes, scope: bytes) -> bytes:
    inner = text(code) + scope
    return struct.pack("<i", len(inner) + 4) + inner


def _binary(subtype: int, value: bytes) -> bytes:
    return struct.pack("<iB", len(value), subtype) + value


def _of(kind: int, value: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[int, bytes]]:
    return st.tuples(st.just(kind), value)


_leaves = st.one_of(
    _of(0x01, st.floats().map(lambda number: struct.pack("<d", number))),
    _of(0x02, texts.map(text)),
    _of(0x05, st.builds(_binary, subtypes, st.binary(max_size=4) | st.binary(min_size=16, max_size=16))),
    _of(0x06, st.just(b"")),  # undefined
    _of(0x07, st.binary(min_size=12, max_size=12)),  # ObjectId
    _of(0x08, st.sampled_from([b"\0", b"\1", b"\2", b"\xff"])),
    _of(0x09, st.integers(-(2**63), 2**63 - 1).map(lambda number: struct.pack("<q", number))),  # a time, or beyond
    _of(0x0A, st.just(b"")),
    _of(0x0B, st.builds(lambda one, two: one + b"\0" + two + b"\0", patterns, st.sampled_from([b"", b"i", b"imsux!"]))),
    _of(0x0C, st.builds(lambda name, rest: text(name) + rest, texts, st.binary(min_size=12, max_size=12))),  # pointer
    _of(0x0D, texts.map(text)),  # code
    _of(0x0E, texts.map(text)),  # symbol
    _of(0x10, st.integers(-(2**31), 2**31 - 1).map(lambda number: struct.pack("<i", number))),
    _of(0x11, st.binary(min_size=8, max_size=8)),  # timestamp
    _of(0x12, st.integers(-(2**63), 2**63 - 1).map(lambda number: struct.pack("<q", number))),
    _of(0x13, st.binary(min_size=16, max_size=16)),  # decimal
    _of(0x7F, st.just(b"")),
    _of(0xFF, st.just(b"")),
)


def _more(values: st.SearchStrategy[tuple[int, bytes]]) -> st.SearchStrategy[tuple[int, bytes]]:
    fields = st.lists(st.builds(lambda name, value: (value[0], name, value[1]), names, values), max_size=4)
    inner = fields.map(document)
    return (
        _of(0x03, inner)
        | _of(0x04, st.lists(values, max_size=4).map(array))
        | _of(0x04, inner)  # an array whose names are no numbers
        | _of(0x0F, st.builds(code_with_scope, texts, inner))
    )


values = st.recursive(_leaves, _more, max_leaves=8)
documents = st.lists(st.builds(lambda name, value: (value[0], name, value[1]), names, values), max_size=6).map(document)


@st.composite
def mutations(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were right, with a few changes."""
    raw = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        how = draw(st.sampled_from(("set", "add", "cut", "length")))
        if how == "set" and raw:
            raw[at] = draw(st.sampled_from((0, 1, 2, 3, 4, 5, 0x0F, 0x10, 0x7F, 0x80, 0xFF)))
        elif how == "add":
            raw[at:at] = draw(st.binary(min_size=1, max_size=5))
        elif how == "cut":
            del raw[at : at + draw(st.integers(1, 4))]
        else:
            raw[at : at + 4] = struct.pack("<i", draw(st.integers(-20, 60)))
    return bytes(raw)

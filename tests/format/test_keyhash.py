"""The hash of a key: as the page says, and the same for one key as for a column of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.format.column import Column
from headwater.format.hashes import key_hash, key_hashes
from tests.format import independent_reader

PAGE = Path(__file__).parents[2] / "docs/FORMAT.md"
lengths = st.sampled_from([0, 1, 3, 7, 8, 9, 15, 16, 17, 1023, 1024, 1025, 1032, 3000])
keys = st.binary(max_size=20) | lengths.flatmap(lambda size: st.binary(min_size=size, max_size=size))
even_keys = lengths.flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=9))


def table() -> dict[bytes, int]:
    """The keys and hashes of the page."""
    section = PAGE.read_text(encoding="utf-8").partition("**Key hash**")[2].partition("\n## ")[0]
    found = {}
    for said, hash in re.findall(r"^\| (.+) \| `([0-9a-f]{8})` \|$", section, re.MULTILINE):
        zeros = re.match(r"([0-9,]+) zero bytes", said)
        key = bytes(int(zeros[1].replace(",", ""))) if zeros else said.partition(" ")[0].strip("`").encode()
        found[key] = int(hash, 16)
    return found


def test_keys_have_the_hashes_of_the_page() -> None:
    said = table()
    assert len(said) == 7
    assert {key: key_hash(key) for key in said} == said
    assert {key: independent_reader.key_hash(key) for key in said} == said
    assert key_hashes(Column.of(list(said))).tolist() == list(said.values())
    assert [key_hashes(Column.of([key, key])).tolist() for key in said] == [[hash] * 2 for hash in said.values()]


@given(st.lists(st.none() | keys, min_size=1, max_size=30) | even_keys)
def test_a_column_has_the_hashes_of_its_keys(values: list[bytes | None]) -> None:
    column = Column.of_optional(values)
    present = [key_hash(value) for value in values if value is not None]
    assert (key_hashes(column).tolist() if column is not None else []) == present
    assert [independent_reader.key_hash(value) for value in values if value is not None] == present


@given(keys)
def test_a_constant_column_has_one_hash(key: bytes) -> None:
    assert key_hashes(Column(5, key)).tolist() == [key_hash(key)]


@given(keys)
def test_a_column_in_a_larger_buffer_has_the_same_hashes(key: bytes) -> None:
    """What lies behind the last key, of which a whole word is read, does not matter."""
    column = Column.of([b"first", key])
    stored = memoryview(b"".join((bytes(column.data), b"behind it")))[: len(column.data)]
    assert key_hashes(Column(2, stored, column.offsets)).tolist() == [key_hash(b"first"), key_hash(key)]


def test_usual_keys_rarely_collide() -> None:
    for pattern in (b"%d", b"user-%08d", b"o-%d", b"%016x"):
        hashes = key_hashes(Column.of([pattern % number for number in range(100_000)]))
        assert len(np.unique(hashes)) > 99_980, pattern

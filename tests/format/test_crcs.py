"""Checksums of many strings at once are those of one after the other."""

from __future__ import annotations

import numpy as np
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headwater.format.column import Column
from headwater.format.hashes import LENGTH_MAX, crc32c_of_each
from headwater.format.names import partition_of, partitions_of_column

values = st.lists(st.one_of(st.none(), st.binary(max_size=12), st.binary(max_size=LENGTH_MAX + 3)), min_size=1)


@given(values)
def test_each_has_its_own(keys: list[bytes | None]) -> None:
    column = Column.of_optional(keys)
    if column is None:
        return
    assert crc32c_of_each(column).tolist() == [crc32c(key or b"") for key in keys]
    assert partitions_of_column(column, 7).tolist() == [partition_of(key or b"", 7) for key in keys]


@given(st.integers(0, LENGTH_MAX + 1), st.integers(1, 20), st.randoms(use_true_random=False))
def test_strings_of_one_length(length: int, count: int, random: np.random.Generator) -> None:
    keys = [bytes(random.getrandbits(8) for _ in range(length)) for _ in range(count)]  # type: ignore[attr-defined]
    assert crc32c_of_each(Column.of(keys)).tolist() == [crc32c(key) for key in keys]


def test_constants_and_dictionaries() -> None:
    assert crc32c_of_each(Column(5, b"one")).tolist() == [crc32c(b"one")]
    column = Column.of_repeated([b"a", b"bb", b"a"])
    assert column is not None
    assert crc32c_of_each(column).tolist() == [crc32c(b"a"), crc32c(b"bb"), crc32c(b"a")]


def test_a_column_that_is_a_slice() -> None:
    keys = [b"one", b"three", b"", b"seventeen"]
    assert crc32c_of_each(Column.of(keys).slice(1, 4)).tolist() == [crc32c(key) for key in keys[1:]]

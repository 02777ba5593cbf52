"""How many elements an array has, whatever they are, and however it is cut into blocks."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Invalid, TooLarge
from headwater.limits import DEFAULTS
from headwater.server.wire import cloudevents, decoding, lines

JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('a",[]{}\\ü\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a",[]{}\\', max_size=4), inner, max_size=3),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=12), st.integers(1, 14), st.integers(1, 7))
def test_elements_are_counted_wherever_a_block_ends(values: list[object], most: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decoding, "COMMAS_MAX", 0)
        patched.setattr(decoding, "BLOCK_BYTES", block)
        array = msgspec.json.encode(values)
        assert decoding.more_than(array, most) == (len(values) > most and b"," in array)


@pytest.mark.parametrize(
    "body",
    [
        b"[[" + b"1," * 30_000_000 + b"1]]",
        b"[[" + b'"",' * 20_000_000 + b'""]]',
        b"[" + b"{}," * 20_000_000 + b"{}]",
    ],
    ids=["numbers", "strings", "objects"],
)
def test_an_array_of_tiny_things_costs_no_more_than_its_bytes(body: bytes) -> None:
    for parse in (lines.parse_array, cloudevents.batch):
        begun = time.process_time()
        with pytest.raises((TooLarge, Invalid)):
            parse(body, DEFAULTS)
        assert time.process_time() - begun < 10  # some times what it takes

"""Objects of a bucket as bytes: what was put is read back, and whatever is damaged is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Corrupt, Unsupported
from headwater.format import batch, object
from headwater.format.object import ObjectHead
from headwater.format.producers import ProducerAnswer, ProducerState
from tests.vectors import make

numbers = st.integers(0, 2**62)
nonces = st.binary(min_size=16, max_size=16).map(bytes.hex)
answers = st.lists(st.builds(ProducerAnswer, numbers, numbers, numbers, numbers), min_size=1, max_size=3)
known = st.dictionaries(st.text(max_size=5), st.builds(ProducerState, st.integers(0, 2**31), answers), max_size=3)
heads = st.builds(
    ObjectHead,
    log=nonces,
    base=numbers,
    end=numbers,
    nonce=nonces,
    previous=st.one_of(st.just(""), nonces),
    writer=st.text(max_size=20),
    previous_ticks=numbers,
    ticks=numbers,
    closed=st.booleans(),
    blobs=st.dictionaries(numbers.map(str), nonces, max_size=3),
    producers=known.map(object.told),
)


def golden(name: str) -> tuple[memoryview, dict[str, Any]]:
    stored = bytes.fromhex((make.HERE / f"{name}.hex").read_text(encoding="ascii"))
    return memoryview(stored), json.loads((make.HERE / f"{name}.json").read_text(encoding="ascii"))


@given(head=heads, bodies=st.lists(st.binary(max_size=40), max_size=3))
def test_what_was_put_is_read_back(head: ObjectHead, bodies: list[bytes]) -> None:
    head = msgspec.structs.replace(head, size=sum(map(len, bodies)))
    stored = memoryview(object.encode(head, bodies))
    found, position = object.decode(stored)
    assert found == head
    assert position % 8 == 0
    assert bytes(stored[position:]) == b"".join(bodies)
    assert object.head_bytes(stored) == position
    assert object.decode(stored[:position])[0] == head  # the beginning of an object is enough for its head


@given(known=known)
def test_producers_are_read_back_in_their_order(known: dict[str, ProducerState]) -> None:
    assert list(object.known(object.told(known)).items()) == list(known.items())


@given(head=heads, at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_damage_of_a_head_is_refused(head: ObjectHead, at: int, bit: int) -> None:
    stored = bytearray(object.encode_head(head))
    at %= len(stored)
    if not 20 <= at < 24:  # which say nothing
        stored[at] ^= 1 << bit
        with pytest.raises((Corrupt, Unsupported)):
            object.decode(memoryview(stored))
    with pytest.raises(Corrupt):
        object.decode(memoryview(object.encode_head(head))[:at])


@pytest.mark.parametrize("name", ["object", "object-closed", "object-segment"])
def test_the_golden_objects_are_read(name: str) -> None:
    stored, meaning = golden(name)
    head, position = object.decode(stored)
    assert msgspec.json.decode(msgspec.json.encode(head)) == meaning["head"]
    assert meaning["head"] == msgspec.json.decode(bytes(stored[24:position]))  # as anybody reads it
    offset = head.base
    while offset < head.end:
        found = batch.decode(stored, position, len(stored))
        found.validate()
        assert found.base_offset == offset
        if head.batches:
            assert (offset, position, found.base_ticks) in head.batches
        offset, position = found.end_offset, position + found.size
    if "objects" in meaning:
        table = object.decode_table(stored[position:])
        assert {str(base): nonce for base, nonce in table.items()} == meaning["objects"]
        damaged = bytearray(stored[position:])
        damaged[3] ^= 1
        with pytest.raises(Corrupt):
            object.decode_table(memoryview(damaged))

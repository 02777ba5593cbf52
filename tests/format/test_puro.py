"""Messages of Puro: computed by hand, put together and taken apart, and damaged."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.format import puro
from headwater.limits import PURO_KEY_BYTES_MAX, PURO_TOPIC_BYTES_MAX, PURO_VALUE_BYTES_MAX

# Written down by hand; the CRC is the remainder of a long division, as integers, by x^8 + x^2 + x + 1, made apart.
VECTORS = [
    ("t", "", "", "a7 03 01 74 00"),
    ("t", "k", "v", "c9 05 01 74 01 6b 76"),
    ("orders", "o-17", '{"total":12}', "17 18 06 6f7264657273 04 6f2d3137 7b22746f74616c223a31327d"),
    ("t", "", "a" * 128, "f2 8301 01 74 00" + "61" * 128),
]


def crc8(data: bytes) -> int:
    """Bit by bit, as it is defined."""

    def shift(state: int, bit: int) -> int:
        high = (state >> 7) ^ bit
        return (state << 1 & 0xFF) ^ (0x07 if high else 0)

    return reduce(shift, (byte >> i & 1 for byte in data for i in reversed(range(8))), 0)


messages = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=400)), max_size=8)
topics = st.binary(max_size=300)


def meaning(found: puro.Messages) -> list[tuple[bytes, bytes, bytes]]:
    return list(zip(found.all_topics(), found.all_keys(), found.all_values(), strict=True))


def test_the_crc_is_the_one_of_the_catalogue() -> None:
    assert crc8(b"123456789") == 0xF4  # the check value of CRC-8/SMBUS
    data = np.frombuffer(b"\0" + b"123456789", np.uint8)
    assert puro.checksums(data, np.array([0])).tolist() == [0xF4]


@pytest.mark.parametrize(("topic", "key", "value", "expected"), VECTORS)
def test_bytes_are_those_computed_by_hand(topic: str, key: str, value: str, expected: str) -> None:
    stored = bytes.fromhex(expected)
    assert stored[0] == crc8(stored[1:])
    assert bytes(puro.encode(topic.encode(), [key.encode()], [value.encode()])) == stored
    assert meaning(puro.decode(stored)) == [(topic.encode(), key.encode(), value.encode())]


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16_383, "ff7f"), (2**21, "80808001")]
)
def test_a_varlong_is_groups_of_seven_bits_the_lowest_first(value: int, expected: str) -> None:
    assert puro.varlong(value).hex() == expected


@given(topics, messages)
def test_messages_come_back(topic: bytes, given: list[tuple[bytes, bytes]]) -> None:
    keys, values = [key for key, _ in given], [value for _, value in given]
    stored = bytes(puro.encode(topic, keys, values))
    found = puro.decode(stored)
    assert meaning(found) == [(topic, *each) for each in given]
    assert (found.consumed, found.problem) == (len(stored), "")


@given(st.lists(st.tuples(topics, st.binary(max_size=9), st.binary(max_size=300)), max_size=6))
def test_messages_of_several_topics_come_back_and_each_has_the_crc_of_its_rest(
    given: list[tuple[bytes, bytes, bytes]],
) -> None:
    each = [bytes(puro.encode(topic, [key], [value])) for topic, key, value in given]
    assert meaning(puro.decode(b"".join(each))) == given
    assert [message[0] for message in each] == [crc8(message[1:]) for message in each]


def test_the_largest_message_comes_back_and_a_larger_one_is_refused_before_it_is_read() -> None:
    topic, key = b"t" * PURO_TOPIC_BYTES_MAX, b"k" * PURO_KEY_BYTES_MAX
    stored = bytes(puro.encode(topic, [key], [b"v" * PURO_VALUE_BYTES_MAX]))
    assert [len(each) for each in meaning(puro.decode(stored))[0]] == [1024, 1024, 10 * 1024 * 1024]
    for claims in (puro.varlong(puro.TOTAL_MAX + 1), b"\xff" * 9 + b"\x01"):
        assert puro.decode(b"\0" + claims).problem == "the length of a message is impossible"
    for too_long in (
        puro.encode(topic + b"t", [b""], [b""]),
        puro.encode(b"", [key + b"k"], [b""]),
        puro.encode(b"", [b""], [b"v" * (PURO_VALUE_BYTES_MAX + 1)]),
    ):
        assert puro.decode(bytes(too_long)).problem == "the lengths of a message do not fit"


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=150)), min_size=1, max_size=3), st.data())
def test_what_is_cut_off_gives_the_whole_messages_before_it(
    given: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    each = [bytes(puro.encode(b"topic", [key], [value])) for key, value in given]
    stored = b"".join(each)
    cut = data.draw(st.integers(0, len(stored)))
    found = puro.decode(stored[:cut])
    ends = np.cumsum([0, *map(len, each)])
    assert (found.consumed, found.problem) == (ends[ends <= cut][-1], "")
    assert meaning(found) == [(b"topic", *pair) for pair in given[: len(found)]]


def test_every_damaged_byte_is_found_and_the_message_before_it_stays() -> None:
    """A CRC-8 finds every error within 8 bits, so every damaged byte; one in the total length moves the end, too."""
    first, second = bytes(puro.encode(b"t", [b"k"], [b"first"])), bytes(puro.encode(b"t", [b"key"], [b"the second"]))
    length_at = len(first) + 1
    for at in range(len(first), len(first) + len(second)):
        for flip in range(1, 256):
            damaged = bytearray(first + second + first)
            damaged[at] ^= flip
            found = puro.decode(bytes(damaged))
            if at != length_at:
                assert (found.consumed, len(found), bool(found.problem)) == (len(first), 1, True), (at, flip)
            else:  # 255 of 256 are found by the checksum; some others by the lengths or the end of the file
                assert meaning(found)[:1] == [(b"t", b"k", b"first")]
                assert meaning(found) != meaning(puro.decode(first + second + first))


def test_damage_in_the_total_length_is_mostly_found() -> None:
    stored = bytes(puro.encode(b"t", [b"k"], [bytes(range(100))] * 1))
    whole = stored * 3
    missed = 0
    for flip in range(1, 256):
        damaged = bytearray(whole)
        damaged[1] ^= flip
        found = puro.decode(bytes(damaged))
        missed += bool(len(found))
    assert missed <= 4


@pytest.mark.parametrize("padded", ["05 8100 74 00 76", "05 01 74 8000 76"])
def test_a_length_that_is_not_in_its_shortest_form_is_damage(padded: str) -> None:
    rest = bytes.fromhex(padded)
    assert puro.decode(bytes([crc8(rest)]) + rest).problem == "the lengths of a message do not fit"
    rest = bytes.fromhex("8300 01 74 00")
    assert puro.decode(bytes([crc8(rest)]) + rest).problem == "the length of a message is impossible"


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("lying", ["03 02 74 00", "03 01 74 01", "02 00 01", "03 8001 74", "04 01 74 8001"])
def test_lengths_that_reach_over_the_message_are_damage_also_under_a_right_checksum(lying: str, copies: int) -> None:
    rest = bytes.fromhex(lying)
    found = puro.decode((bytes([crc8(rest)]) + rest) * copies)
    assert (len(found), found.consumed, found.problem) == (0, 0, "the lengths of a message do not fit")


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(data: bytes) -> None:
    found = puro.decode(data)
    assert found.consumed <= len(data)
    assert len(found) == len(meaning(found))

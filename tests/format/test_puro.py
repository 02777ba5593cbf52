"""Messages of Puro: those that Puro itself wrote, put together and taken apart, and damaged."""

from functools import reduce
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.format import puro
from headwater.format.puro import Checksum
from headwater.limits import PURO_KEY_BYTES_MAX, PURO_TOPIC_BYTES_MAX, PURO_VALUE_BYTES_MAX

CHECKSUMS: tuple[Checksum, ...] = get_args(Checksum)
both = pytest.mark.parametrize("checksum", CHECKSUMS)

# What Puro's own tests and its journal hold: a message, a tombstone, and a message of which the length has two bytes.
WRITTEN_BY_PURO = [
    (b"testtopic", bytes.fromhex("badf000d"), bytes.fromhex("deadbeef"), "db130974657374746f70696304badf000ddeadbeef"),
    (b"\0", b"", b"", "ae03010000"),
    (
        b"testTopic",
        b"key1",
        b"value" + b", " * 249 + b"!",
        "f0 8704 09 74657374546f706963 04 6b657931 76616c7565" + "2c20" * 249 + "21",
    ),
]

# Written down by hand, as Puro's document describes messages; the CRC is the remainder of a long division, as integers,
# by x^8 + x^2 + x + 1, made apart.
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


def table() -> list[int]:
    """The table of Puro's code: that of the polynomial 0x31, but for eight entries."""
    found = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state << 1 & 0xFF) ^ (0x31 if state & 0x80 else 0)
        found.append(state)
    wrong = {0x4A: 0xE2, 0x59: 0xF2, 0x6D: 0xF3, 0x7E: 0xE3, 0x89: 0xF0, 0x9A: 0xDE, 0xAE: 0xDF, 0xBD: 0xF1}
    return [wrong.get(byte, state) for byte, state in enumerate(found)]


TABLE = table()


def puro_crc(data: bytes | bytearray) -> int:
    return reduce(lambda state, byte: TABLE[state ^ byte], data, 0)


def take_number(data: bytes) -> tuple[int, bytes, bytes]:
    """A varlong, its bytes, and what follows."""
    size = next(i for i, byte in enumerate(data) if byte < 0x80) + 1
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data[:size])), data[:size], data[size:]


def checksum_of(message: bytes, checksum: Checksum) -> int:
    """The checksum of a message whose lengths fit, byte by byte."""
    if checksum == "documented":
        return crc8(message[1:])
    _, total, rest = take_number(message[1:])
    topic_size, topic_length, rest = take_number(rest)
    topic, rest = rest[:topic_size], rest[topic_size:]
    key_size, key_length, rest = take_number(rest)
    fields = (topic_length, topic, key_length, rest[:key_size], rest[key_size:])
    return reduce(lambda state, field: TABLE[state ^ puro_crc(field)], fields, puro_crc(total))


messages = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=400)), max_size=8)
topics = st.binary(max_size=300)


def meaning(found: puro.Messages) -> list[tuple[bytes, bytes, bytes]]:
    return list(zip(found.all_topics(), found.all_keys(), found.all_values(), strict=True))


def test_the_crc_is_the_one_of_the_catalogue() -> None:
    assert crc8(b"123456789") == 0xF4  # the check value of CRC-8/SMBUS
    data = np.frombuffer(b"\0" + b"123456789", np.uint8)
    assert puro.documented(data, np.array([0])).tolist() == [0xF4]


@pytest.mark.parametrize(("topic", "key", "value", "written"), WRITTEN_BY_PURO)
def test_bytes_are_those_that_puro_wrote(topic: bytes, key: bytes, value: bytes, written: str) -> None:
    stored = bytes.fromhex(written)
    assert stored[0] == checksum_of(stored, "code")
    assert bytes(puro.encode(topic, [key], [value])) == stored
    found = puro.decode(stored)
    assert (meaning(found), found.problem) == ([(topic, key, value)], "")


@pytest.mark.parametrize(
    ("data", "expected"),
    [("4a1f652c416e0a782954137d35690477", 0x16), ("07487410416b706c56210a0d1f132e44", 0xB9)],
)
def test_the_crc_of_a_field_is_that_of_puro(data: str, expected: int) -> None:
    """What Puro's own test of its CRC expects."""
    field = bytes.fromhex(data)
    assert puro_crc(field) == expected
    found = puro.walk(np.frombuffer(field, np.uint8), np.array([0]), np.array([16]))
    assert found.tolist() == [expected]


@pytest.mark.parametrize(("topic", "key", "value", "expected"), VECTORS)
def test_bytes_are_those_computed_by_hand(topic: str, key: str, value: str, expected: str) -> None:
    stored = bytes.fromhex(expected)
    assert stored[0] == crc8(stored[1:])
    assert bytes(puro.encode(topic.encode(), [key.encode()], [value.encode()], "documented")) == stored
    assert meaning(puro.decode(stored, "documented")) == [(topic.encode(), key.encode(), value.encode())]


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16_383, "ff7f"), (2**21, "80808001")]
)
def test_a_varlong_is_groups_of_seven_bits_the_lowest_first(value: int, expected: str) -> None:
    assert puro.varlong(value).hex() == expected


@both
@given(topic=topics, given=messages)
def test_messages_come_back(checksum: Checksum, topic: bytes, given: list[tuple[bytes, bytes]]) -> None:
    keys, values = [key for key, _ in given], [value for _, value in given]
    stored = bytes(puro.encode(topic, keys, values, checksum))
    found = puro.decode(stored, checksum)
    assert meaning(found) == [(topic, *each) for each in given]
    assert (found.consumed, found.problem) == (len(stored), "")


@both
@given(given=st.lists(st.tuples(topics, st.binary(max_size=9), st.binary(max_size=300)), max_size=6))
def test_messages_of_several_topics_come_back_and_each_has_its_checksum(
    checksum: Checksum,
    given: list[tuple[bytes, bytes, bytes]],
) -> None:
    each = [bytes(puro.encode(topic, [key], [value], checksum)) for topic, key, value in given]
    assert meaning(puro.decode(b"".join(each), checksum)) == given
    assert [message[0] for message in each] == [checksum_of(message, checksum) for message in each]


@pytest.mark.parametrize("count", [puro.FEW - 1, 3 * puro.FEW, puro.TOGETHER // 6 + 9])
def test_many_messages_together_have_the_checksums_that_each_has_alone(count: int) -> None:
    keys = [b"k" * (n % 3) for n in range(count)]
    values = [bytes((n * i) & 0xFF for i in range(n % 40)) + b"\x4a" * (n == 7) * 2000 for n in range(count)]
    alone = [bytes(puro.encode(b"t", [key], [value])) for key, value in zip(keys, values, strict=True)]
    assert [message[0] for message in alone[:50]] == [checksum_of(message, "code") for message in alone[:50]]
    together = bytes(puro.encode(b"t", keys, values))
    assert together == b"".join(alone)
    assert meaning(puro.decode(together)) == [(b"t", *pair) for pair in zip(keys, values, strict=True)]


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


@both
@given(
    given=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=150)), min_size=1, max_size=3), data=st.data()
)
def test_what_is_cut_off_gives_the_whole_messages_before_it(
    checksum: Checksum, given: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    each = [bytes(puro.encode(b"topic", [key], [value], checksum)) for key, value in given]
    stored = b"".join(each)
    cut = data.draw(st.integers(0, len(stored)))
    found = puro.decode(stored[:cut], checksum)
    ends = np.cumsum([0, *map(len, each)])
    assert (found.consumed, found.problem) == (ends[ends <= cut][-1], "")
    assert meaning(found) == [(b"topic", *pair) for pair in given[: len(found)]]


def test_every_damaged_byte_is_found_and_the_message_before_it_stays() -> None:
    """A CRC-8 finds every error within 8 bits, so every damaged byte; one in the total length moves the end, too."""
    first, second = (
        bytes(puro.encode(b"t", [key], [value], "documented"))
        for key, value in ((b"k", b"first"), (b"key", b"the second"))
    )
    whole = first + second + first
    for at in range(len(first), len(first) + len(second)):
        for flip in range(1, 256):
            damaged = bytearray(whole)
            damaged[at] ^= flip
            found = puro.decode(bytes(damaged), "documented")
            if at != len(first) + 1:
                assert (found.consumed, len(found), bool(found.problem)) == (len(first), 1, True), (at, flip)
            else:  # 255 of 256 are found by the checksum; some others by the lengths or the end of the file
                assert meaning(found)[:1] == [(b"t", b"k", b"first")]
                assert meaning(found) != meaning(puro.decode(whole, "documented"))


def test_a_damaged_byte_is_found_but_where_the_table_of_puro_has_an_entry_twice() -> None:
    """Two bytes that lead to the same state cannot be told apart: those are few, and they are Puro's."""
    first, second = bytes(puro.encode(b"t", [b"k"], [b"first"])), bytes(puro.encode(b"t", [b"key"], [b"the second"]))
    missed = tried = 0
    for at in range(len(first), len(first) + len(second)):
        for flip in range(1, 256):
            damaged = bytearray(first + second + first)
            damaged[at] ^= flip
            found = puro.decode(bytes(damaged))
            assert meaning(found)[0] == (b"t", b"k", b"first")
            tried += 1
            if len(found) > 1:
                message = bytes(damaged)[len(first) : found.consumed - (len(first) if len(found) == 3 else 0)]
                assert message[0] == checksum_of(message, "code"), (at, flip)
                missed += 1
            else:
                assert (found.consumed, bool(found.problem)) == (len(first), True) or at == len(first) + 1
    assert missed < tried // 50


@both
def test_damage_in_the_total_length_is_mostly_found(checksum: Checksum) -> None:
    stored = bytes(puro.encode(b"t", [b"k"], [bytes(range(100))] * 1, checksum))
    whole = stored * 3
    missed = 0
    for flip in range(1, 256):
        damaged = bytearray(whole)
        damaged[1] ^= flip
        found = puro.decode(bytes(damaged), checksum)
        missed += bool(len(found))
    assert missed <= 4


@pytest.mark.parametrize("padded", ["05 8100 74 00 76", "05 01 74 8000 76"])
def test_a_length_that_is_not_in_its_shortest_form_is_damage(padded: str) -> None:
    rest = bytes.fromhex(padded)
    assert puro.decode(bytes([crc8(rest)]) + rest, "documented").problem == "the lengths of a message do not fit"
    rest = bytes.fromhex("8300 01 74 00")
    assert puro.decode(bytes([crc8(rest)]) + rest, "documented").problem == "the length of a message is impossible"


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("lying", ["03 02 74 00", "03 01 74 01", "02 00 01", "03 8001 74", "04 01 74 8001"])
def test_lengths_that_reach_over_the_message_are_damage_also_under_a_right_checksum(lying: str, copies: int) -> None:
    rest = bytes.fromhex(lying)
    found = puro.decode((bytes([crc8(rest)]) + rest) * copies, "documented")
    assert (len(found), found.consumed, found.problem) == (0, 0, "the lengths of a message do not fit")


@both
@given(data=st.binary(max_size=200))
def test_no_bytes_make_it_fail(checksum: Checksum, data: bytes) -> None:
    found = puro.decode(data, checksum)
    assert found.consumed <= len(data)
    assert len(found) == len(meaning(found))

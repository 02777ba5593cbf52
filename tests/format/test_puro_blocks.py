"""Blocks and the other control messages of Puro: what counts, what was never committed, and what is damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.format import puro
from headwater.format.puro import BLOCK_END, BLOCK_START, TOMBSTONE
from headwater.format.puro_blocks import SIZED_START_BYTES, BlockReader, PuroFile, encode_block
from tests.format.test_puro import checksum_of, puro_crc

sizes = pytest.mark.parametrize("sized", [False, True])
ONE = bytes(puro.encode(b"t", [b"k"], [b"one"]))
TWO = bytes(puro.encode(b"t", [b""], [b"two"]))
TOMB = bytes.fromhex("ae03010000")


def read(stored: bytes) -> tuple[list[bytes], BlockReader]:
    """The values of the events in whole messages, as one buffer."""
    reader = BlockReader()
    messages = puro.decode(stored)
    assert (messages.consumed, messages.problem) == (len(stored), "")
    events = reader.take(messages, 0, "code")
    reader.end(len(stored))
    return events.all_values(), reader


def message(topic: int, value: bytes) -> bytes:
    """A control message, put together here."""
    blank = bytes([0, 3 + len(value), 1, topic, 0]) + value
    return bytes([checksum_of(blank, "code")]) + blank[1:]


def test_a_block_is_what_puro_writes() -> None:
    body = ONE + TWO
    start, end = message(2, b"\1"), message(3, (6 + len(body)).to_bytes(4, "big"))
    assert (len(start), len(end)) == (6, 9)
    assert encode_block(body, sized=False) == start + body + end
    size = (10 + len(body)).to_bytes(4, "big")
    sized = message(2, b"\1" + size)
    assert len(sized) == SIZED_START_BYTES == 10
    assert encode_block(body, sized=True) == sized + body + message(3, size)


@sizes
@given(given=st.lists(st.lists(st.binary(max_size=90), max_size=4), max_size=4))
def test_blocks_come_back_without_their_control_messages(sized: bool, given: list[list[bytes]]) -> None:
    blocks = [encode_block(puro.encode(b"t", [b""] * len(each), each), sized=sized) for each in given]
    values, reader = read(b"".join(blocks))
    assert values == [value for each in given for value in each]
    assert reader.file == PuroFile(reader.file.variant, len(values), 2 * len(given))
    assert reader.file.variant == (("sized-blocks" if sized else "blocks") if given else "")
    assert not reader.problem


@sizes
def test_a_block_that_was_never_committed_is_left_out_with_all_that_follows(sized: bool) -> None:
    """Puro reads nothing from there on, and its next producer deletes it."""
    block = encode_block(ONE + TWO, sized=sized)
    size = block[6:10] if sized else b""
    uncommitted = message(2, b"\0" + size) + block[10 if sized else 6 :]
    values, reader = read(block + uncommitted + block)
    assert values == [b"one", b"two"]
    assert reader.file.unfinished_at == len(block)
    assert str(reader.file) == (
        f"Puro file, variant {'sized-blocks' if sized else 'blocks'}, 2 messages, 2 control messages, "
        f"an unfinished block at byte {len(block)} left out"
    )


@sizes
def test_a_commit_of_which_only_the_checksum_was_written_is_none(sized: bool) -> None:
    """Puro writes the checksum of the committed beginning first, and then the signal."""
    block = bytearray(encode_block(ONE, sized=sized))
    for checksum in (block[0], puro_crc(block[1 : 10 if sized else 6])):
        half = bytearray(block)
        half[0], half[5] = checksum, 0
        values, reader = read(bytes(block + half))
        assert (values, reader.file.unfinished_at) == ([b"one"], len(block))


@sizes
def test_a_beginning_may_have_the_checksum_of_its_bytes_as_a_whole(sized: bool) -> None:
    """Some versions of Puro compute it so when they commit a block."""
    block = bytearray(encode_block(ONE, sized=sized))
    block[0] = puro_crc(block[1 : 10 if sized else 6])
    assert block[0] != encode_block(ONE, sized=sized)[0]
    values, reader = read(bytes(block) * 200)
    assert (values, reader.problem) == ([b"one"] * 200, "")
    block[0] ^= 1
    assert puro.decode(bytes(block)).problem == "the checksum of a message is wrong"


def test_tombstones_end_segments_and_what_was_given_up_is_no_event() -> None:
    given_up = b"\xff\x0a\x01\x01" + b"\xff" * 8
    values, reader = read(ONE + TOMB + given_up + TWO + TOMB)
    assert values == [b"one", b"two"]
    assert reader.file == PuroFile("messages", 2, 3)
    assert str(reader.file) == "Puro file, variant messages, 2 messages, 3 control messages"
    assert puro.decode(b"\xfe" + given_up[1:]).problem == "the lengths of a message do not fit"


def test_what_is_not_one_byte_from_0_to_3_is_a_topic_like_any_other() -> None:
    stored = b"".join(bytes(puro.encode(topic, [b""], [topic])) for topic in (b"", b"\4", b"\0\0", b"\2\2", b"\xff"))
    assert read(stored)[0] == [b"", b"\4", b"\0\0", b"\2\2", b"\xff"]


START, END = message(BLOCK_START, b"\1"), message(BLOCK_END, (6 + len(ONE)).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("stored", "problem", "position"),
    [
        (ONE + END, "a block ends that did not begin", len(ONE)),
        (START + START, "a block begins within another", 6),
        (START + TWO + TWO + END, "the length of a block does not fit", 6 + 2 * len(TWO)),
        (START + ONE + message(BLOCK_END, END[5:] + b"\0"), "the length of a block does not fit", 6 + len(ONE)),
        (message(2, b"\1\0\0\0\1") + message(3, b"\0\0\0\n"), "the length of a block does not fit", 10),
        (START + message(TOMBSTONE, b""), "a segment ends within a block", 6),
        (message(2, b"\2"), "a block begins with something unknown", 0),
        (message(2, b""), "a block begins with something unknown", 0),
        (message(2, b"\1\0"), "a block begins with something unknown", 0),
        (START + ONE, "the block that begins at byte 0 is cut off", 6 + len(ONE)),
    ],
)
def test_control_messages_that_do_not_fit_are_damage(stored: bytes, problem: str, position: int) -> None:
    _, reader = read(stored)
    assert (reader.problem, reader.position) == (problem, position)


def test_a_file_of_nothing_has_no_variant() -> None:
    _, reader = read(b"")
    assert str(reader.file) == "Puro file, empty"

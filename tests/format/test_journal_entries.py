"""Entries of a journal: they come back, and damage never yields a wrong or a later one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.format import journal
from headwater.format.journal import Entry, JournalMove, JournalShare
from tests.strategies import few_types, i64, u32

numbers = st.tuples(i64, i64, i64, i64, i64)
Written = tuple[Entry, list[bytes]]

datas = st.lists(st.binary(max_size=30), max_size=3)
names = few_types | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
slots = st.binary(max_size=9).map(bytes.hex)
moves = st.lists(st.builds(JournalMove, names, names, u32, slots), max_size=2)


@st.composite
def written(draw: st.DrawFn) -> Written:
    drawn = draw(datas)
    shares = [JournalShare(draw(names), draw(u32), "00" * 16, *draw(numbers), draw(i64), len(data)) for data in drawn]
    return Entry(shares, draw(moves)), drawn


journals = st.lists(written(), min_size=1, max_size=3)
some_examples = settings(max_examples=40)


def encoded(entries: list[Written], number: int = 1) -> list[bytes]:
    return [journal.encode(number + at, *each) for at, each in enumerate(entries)]


@some_examples
@given(journals, st.integers(1, 2**60), st.binary(max_size=40).map(lambda rest: bytes(len(rest))))
def test_entries_come_back_in_order_whatever_space_is_reserved(entries: list[Written], first: int, rest: bytes) -> None:
    assert list(journal.decode(b"".join(encoded(entries, first)) + rest)) == entries


def test_an_empty_journal_has_no_entries() -> None:
    assert list(journal.decode(b"")) == list(journal.decode(bytes(500))) == []


@settings(max_examples=6)
@given(journals)
def test_a_flipped_byte_ends_the_journal_before_its_entry(entries: list[Written]) -> None:
    parts = encoded(entries)
    stored = b"".join(parts)
    number, end = 0, len(parts[0])
    for at in range(len(stored)):
        while at >= end:
            number += 1
            end += len(parts[number])
        for flip in (0x01, 0xA0):
            damaged = stored[:at] + bytes([stored[at] ^ flip]) + stored[at + 1 :]
            assert list(journal.decode(damaged)) == entries[:number], at


@settings(max_examples=10)
@given(journals)
def test_a_cut_ends_the_journal_before_the_entry_that_is_not_whole(entries: list[Written]) -> None:
    parts = encoded(entries)
    stored = b"".join(parts)
    ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts))]
    for size in range(len(stored)):
        whole = sum(end <= size for end in ends)
        assert list(journal.decode(stored[:size])) == entries[:whole]
        assert list(journal.decode(stored[:size] + bytes(len(stored) - size + 50)))[:whole] == entries[:whole]


@some_examples
@given(journals, journals)
def test_what_is_left_from_before_the_file_was_begun_anew_is_not_read(old: list[Written], new: list[Written]) -> None:
    before = encoded(old, 1)
    now = b"".join(encoded(new, 1 + len(old)))
    stale = b"".join(before)
    assert list(journal.decode(now + stale)) == new  # even where an old entry begins right behind the new ones
    assert list(journal.decode(now + stale[len(now) :])) == new


@some_examples
@given(journals)
def test_a_void_entry_ends_the_journal(entries: list[Written]) -> None:
    parts = encoded(entries)
    void = bytes(journal.HEADER_BYTES) + parts[-1][journal.HEADER_BYTES :]
    assert list(journal.decode(b"".join([*parts[:-1], void]))) == entries[:-1]

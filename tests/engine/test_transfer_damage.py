"""Files that are cut off, damaged or no events at all: an error with the place, and all before it imported."""

from __future__ import annotations

import io
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import headwater
from headwater.errors import Corrupt, HeadwaterError, Invalid, TooLarge
from headwater.format import puro as format_puro
from headwater.limits import Limits
from headwater.store import Store
from headwater.transfer import exporting, files, jsonl, puro
from tests.log.unsynced import open_unsynced

FORMATS = ("jsonl", "arrow", "arrows", "parquet", "puro")


def exported(hw: Store, format: str) -> bytes:
    out = io.BytesIO()
    hw.export("t", out, format=format)
    return out.getvalue()


def import_into(hw: Store, topic: str, data: bytes, format: str, **options: Any) -> int:
    return hw.import_(topic, io.BytesIO(data), format=format, **options)


def data_of(hw: Store, topic: str) -> list[bytes | None]:
    return [event.data for event in hw.read(topic)] if topic in hw.topics() else []


@pytest.fixture
def filled_store(hw: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A topic of 20 events, exported in groups of 5 and read in small blocks."""
    monkeypatch.setattr(exporting, "GROUP_EVENTS", 5)
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 100)
    monkeypatch.setattr(puro, "BLOCK_BYTES", 50)
    for n in range(4):
        hw.append_many("t", [b"event %d" % (5 * n + i) for i in range(5)], keys=[b"k%d" % i for i in range(5)])
    return hw


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_cut_off_anywhere_gives_what_is_whole_and_an_error(filled_store: Store, format: str) -> None:
    whole = exported(filled_store, format)
    events = data_of(filled_store, "t")
    complete = {len(events)}
    for cut in range(1, len(whole), {"jsonl": 41, "puro": 7}.get(format, 97)):
        with pytest.raises(HeadwaterError) if _is_cut(whole, cut, format) else nullcontext() as caught:
            import_into(filled_store, "copy", whole[:cut], format)
        found = data_of(filled_store, "copy")
        assert found == events[: len(found)]
        if caught is not None:
            assert isinstance(caught.value, Corrupt), caught.value
            assert caught.value.imported == len(found) == caught.value.skip
            assert caught.value.position <= cut
        complete.add(len(found))
        if "copy" in filled_store.topics():
            filled_store.delete("copy")
    assert len(complete) > (1 if format in ("arrow", "parquet") else 3)


def _is_cut(whole: bytes, cut: int, format: str) -> bool:
    """Lines and messages have no mark at their end: a file that ends between two of them is a whole one."""
    if format == "jsonl":
        return whole[cut - 1 : cut] != b"\n" and whole[cut : cut + 1] != b"\n"
    if format == "puro":
        return format_puro.decode(whole[:cut]).consumed != cut
    return True


def test_a_message_that_is_damaged_is_named_by_its_position(filled_store: Store) -> None:
    whole = bytearray(exported(filled_store, "puro"))
    at = whole.index(b"event 7")
    whole[at] ^= 1
    with pytest.raises(Corrupt, match="the checksum of a message is wrong in the stream, at byte") as caught:
        import_into(filled_store, "copy", bytes(whole), "puro")
    assert caught.value.position == 7 * (whole.index(b"event 1") - whole.index(b"event 0"))
    assert caught.value.imported == 7
    assert data_of(filled_store, "copy") == data_of(filled_store, "t")[:7]
    whole[at] ^= 1
    assert import_into(filled_store, "copy", bytes(whole), "puro", skip=7) == 13
    assert data_of(filled_store, "copy") == data_of(filled_store, "t")


def test_what_came_before_the_damage_is_durable(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as hw:
        with pytest.raises(Corrupt):
            import_into(hw, "t", b'{"data": "a"}\n{"data": "b"}\n{', "jsonl")
        (partition,) = hw.describe("t").partitions
        assert (partition.end, partition.durable) == (2, 2)


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        (b'{"data": 1', Corrupt, "is not JSON"),
        (b'{"data": "\xff"}', Invalid, "not text"),
        (b"\xff", Corrupt, "is not JSON"),
        (b'{"data": 1, "colour": "red"}', Invalid, "unknown field `colour`"),
        (b'{"key": "k"}', Invalid, "there is no data"),
        (b'{"data": 1, "meta": {"a": 1}}', Invalid, "Expected `str`"),
        (b"[" * 100_000, HeadwaterError, "line 3"),
        (b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", HeadwaterError, "line 3"),
    ],
)
def test_a_line_that_is_no_event_is_named_by_its_number_and_place(
    hw: Store, line: bytes, kind: type[HeadwaterError], said: str
) -> None:
    before = b'{"data": "one"}\n\n'
    with pytest.raises(kind, match=said) as caught:
        import_into(hw, "t", before + line + b'\n{"data": "two"}\n', "jsonl")
    facts = caught.value
    assert (facts.line, facts.position, facts.size) == (3, len(before), len(line))
    assert "line 3" in str(facts)
    assert "(after 1 event, which are imported; skip 1 to continue)" in str(facts)
    assert data_of(hw, "t") == [b"one"]


def test_lines_may_end_as_they_do_elsewhere(hw: Store) -> None:
    lines = b'{"data": "a"}\r\n\r\n  \n {"data": "b"} \n{"data":\t"c"}'
    assert import_into(hw, "t", lines, "jsonl") == 3
    assert data_of(hw, "t") == [b"a", b"b", b"c"]


def test_an_object_over_several_lines_is_no_line(hw: Store) -> None:
    with pytest.raises(Corrupt, match="line 2"):
        import_into(hw, "t", b'{"data": "a"}\n{"data":\n"b"}\n', "jsonl")
    assert data_of(hw, "t") == [b"a"]


def test_a_line_without_an_end_is_given_up_at_a_limit(tmp_path: Path) -> None:
    limits = Limits(data_bytes_max=1000, blob_bytes_in_memory=1000)
    with open_unsynced(tmp_path / "data", limits=limits) as hw:
        with pytest.raises(TooLarge, match=r"line 2 .* more than 7000 bytes") as caught:
            import_into(hw, "t", b'{"data": "a"}\n' + b" " * 9_000_000, "jsonl")
        assert (caught.value.position, caught.value.imported) == (14, 1)


def test_a_topic_that_is_not_text_is_refused_unless_it_does_not_matter(hw: Store) -> None:
    stored = bytes(format_puro.encode(b"\xff", [b""], [b"x"]))
    with pytest.raises(Invalid, match="not UTF-8"):
        hw.import_(None, io.BytesIO(stored), format="puro")
    assert hw.import_("t", io.BytesIO(stored), format="puro") == 1


def test_a_length_is_not_believed() -> None:
    asked: list[int] = []

    class Source(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    source = files.Input(Source(b"short"), "x")
    assert source.read(2**62) == b"short"
    assert max(asked) <= files.PIECE_BYTES


def test_a_damaged_page_of_parquet_is_found(filled_store: Store) -> None:
    """Random data, so that compression does not shield it, and a flip in the midst of the pages of data."""
    filled_store.append("r", os.urandom(20_000))
    out = io.BytesIO()
    filled_store.export("r", out, format="parquet")
    whole = bytearray(out.getvalue())
    whole[len(whole) // 2] ^= 1
    with pytest.raises(Corrupt, match="damaged"):
        import_into(filled_store, "copy", bytes(whole), "parquet")
    assert data_of(filled_store, "copy") == []


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_byte_never_breaks_anything_but_the_import(
    filled_store: Store, format: str, data: st.DataObject
) -> None:
    if "copy" in filled_store.topics():
        filled_store.delete("copy")
    whole = bytearray(exported(filled_store, format))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        count = import_into(filled_store, "copy", bytes(whole), format)
    except HeadwaterError as error:
        count = error.imported
    assert len(data_of(filled_store, "copy")) == count


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=60).filter(lambda data: not data.isspace()))
def test_what_is_no_file_of_the_format_is_refused(hw: Store, format: str, data: bytes) -> None:
    assume(not len(format_puro.decode(data)))  # one in 256 would be one
    before = data_of(hw, "copy")
    with pytest.raises((Corrupt, Invalid)):
        import_into(hw, "copy", data, format)
    assert data_of(hw, "copy") == before

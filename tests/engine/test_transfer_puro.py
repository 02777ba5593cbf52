"""Files of Puro, in each variant: written, known for what they are, read, and damaged."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater
from headwater.errors import Corrupt, Invalid
from headwater.format import puro as messages
from headwater.format.puro_blocks import VARIANTS, PuroFile, PuroVariant
from headwater.store import Store
from headwater.transfer import exporting, puro
from headwater.transfer.chunks import EventChunk, ImportOptions
from headwater.transfer.files import Input
from tests.server.serving import serving

variants = pytest.mark.parametrize("variant", VARIANTS)
WRITTEN_BY_PURO = bytes.fromhex("db130974657374746f70696304badf000ddeadbeef")
TOMBSTONE = bytes.fromhex("ae03010000")
EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def exported(hw: Store, variant: PuroVariant | None, topic: str = "t") -> bytes:
    out = io.BytesIO()
    hw.export(topic, out, format="puro", puro_variant=variant)
    return out.getvalue()


def imported(hw: Store, stored: bytes, topic: str = "copy") -> tuple[list[tuple[bytes | None, bytes | None]], PuroFile]:
    """What a topic that is made anew has of a file, and what the import tells of the file."""
    told: list[PuroFile] = []
    if topic in hw.topics():
        hw.delete(topic)
    hw.create(topic)
    hw.import_(topic, io.BytesIO(stored), format="puro", report=told.append)
    (file,) = told
    return [(event.key, event.data) for event in hw.read(topic)], file


def read(stored: bytes) -> tuple[list[bytes], PuroFile | Corrupt]:
    """The values of a file, and what the import tells of it, or what ends it."""
    told: list[PuroFile] = []
    values: list[bytes] = []
    try:
        for chunk in puro.read(Input(io.BytesIO(stored), "file"), ImportOptions(), told.append):
            assert isinstance(chunk, EventChunk)
            values += chunk.data
    except Corrupt as error:
        return values, error
    return values, told[0]


def test_a_message_that_puro_wrote_is_read_and_written(hw: Store) -> None:
    assert hw.import_(None, io.BytesIO(WRITTEN_BY_PURO + TOMBSTONE), format="puro") == 1
    assert hw.topics() == ["testtopic"]
    (event,) = hw.read("testtopic")
    assert (event.key, event.data) == (bytes.fromhex("badf000d"), bytes.fromhex("deadbeef"))
    assert exported(hw, None, "testtopic") == exported(hw, "messages", "testtopic") == WRITTEN_BY_PURO


@variants
@EXAMPLES
@given(given=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=300)), max_size=12))
def test_every_variant_comes_back_and_is_told(
    hw: Store, variant: PuroVariant, given: list[tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "GROUP_EVENTS", 5)
    if "t" in hw.topics():
        hw.delete("t")
    hw.create("t")
    for key, data in given:
        hw.append("t", data, key=key)
    for size in (40, 4 * 1024 * 1024):
        monkeypatch.setattr(puro, "BLOCK_BYTES", size)
        found, file = imported(hw, exported(hw, variant))
        assert found == [(key or None, data) for key, data in given]
        blocks = -(-len(given) // 5) if variant.endswith("blocks") else 0
        assert (file.messages, file.control_messages, file.unfinished_at) == (len(given), 2 * blocks, None)
        # A single message has each checksum with a chance of 1 in 256.
        assert file.variant == (variant if given else "") or (len(given) < 3 and file.variant == "messages")


def test_a_file_is_known_also_where_its_first_message_fits_both_checksums(
    hw: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puro, "BLOCK_BYTES", 12)
    fits_both = next(
        stored
        for n in range(100_000)
        if len(messages.decode(stored := bytes(messages.encode(b"t", [b""], [b"%d" % n], "documented")), "code"))
    )
    documented = bytes(messages.encode(b"t", [b""], [b"the second, which does not"], "documented"))
    found, file = imported(hw, fits_both + documented)
    assert (len(found), file) == (2, PuroFile("documented", 2, 0))
    found, file = imported(hw, fits_both + WRITTEN_BY_PURO)
    assert (len(found), file) == (2, PuroFile("messages", 2, 0))


def test_segments_one_after_the_other_are_read_and_so_are_variants_mixed(hw: Store) -> None:
    """As of `cat stream*.puro`, and as of a file that several versions of Puro appended to."""
    hw.append_many("t", [b"a", b"b"])
    stored = b"".join(exported(hw, variant) for variant in ("messages", "blocks", "sized-blocks"))
    found, file = imported(hw, stored + TOMBSTONE + stored)
    assert [data for _, data in found] == [b"a", b"b"] * 6
    assert file == PuroFile("sized-blocks", 12, 9)


@variants
def test_a_damaged_byte_is_told_with_its_place_and_all_before_it_is_read(
    hw: Store, variant: PuroVariant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what the checksum cannot find: bytes of Puro's table that lead to one state, and moved lengths."""
    monkeypatch.setattr(exporting, "GROUP_EVENTS", 4)
    for n in range(4):
        hw.append_many("t", [b"event %d%d" % (n, i) for i in range(4)], keys=[b"k"] * 4)
    whole = exported(hw, variant)
    events, _ = read(whole)
    ends = [whole.index(event) + len(event) for event in events]
    assert len(events) == 16
    missed = tried = 0
    for at in range(len(whole)):
        before = sum(end <= at for end in ends)
        for flip in (0x01, 0x02, 0x40, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= flip
            values, told = read(bytes(damaged))
            assert values[:before] == events[:before]
            tried += 1
            if isinstance(told, Corrupt):
                assert told.position >= (ends[before - 1] if before else 0)
                missed += told.position > at  # found later than it could be
            else:
                missed += told.unfinished_at is None
    assert missed < tried // 50


@variants
def test_an_exact_place_is_told(hw: Store, variant: PuroVariant) -> None:
    hw.append_many("t", [b"first", b"second", b"third"])
    whole = bytearray(exported(hw, variant))
    at = whole.index(b"second")
    whole[at] ^= 0x20
    with pytest.raises(Corrupt, match=f"the checksum of a message is wrong in the stream, at byte {at - 5}") as caught:
        imported(hw, bytes(whole))
    assert (caught.value.position, caught.value.imported, caught.value.variant) == (at - 5, 1, variant)


def test_what_a_producer_left_unfinished_is_left_out_and_told(hw: Store) -> None:
    hw.append_many("t", [b"a", b"b"])
    block = exported(hw, "blocks")
    uncommitted = messages.encode_control(messages.BLOCK_START, b"\0") + block[6:]
    for cut in range(6, len(uncommitted) + 1):
        assert read(block + uncommitted[:cut]) == ([b"a", b"b"], PuroFile("blocks", 2, 2, len(block)))


@pytest.mark.parametrize("variant", ["blocks", "sized-blocks"])
def test_a_block_that_is_cut_off_is_damage(hw: Store, variant: PuroVariant) -> None:
    hw.append_many("t", [b"a", b"b"])
    whole = exported(hw, variant)
    for cut in range(1, len(whole)):
        _, told = read(whole[:cut])
        assert isinstance(told, Corrupt)
        assert "cut off" in told.message
        assert told.position <= cut


def test_a_variant_that_is_none_or_for_another_format_is_refused(hw: Store, tmp_path: Path) -> None:
    hw.append("t", b"x")
    with pytest.raises(Invalid, match="no variant 'segments' of Puro"):
        hw.export("t", tmp_path / "t.puro", puro_variant="segments")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="the format jsonl has no variants"):
        hw.export("t", tmp_path / "t.jsonl", puro_variant="blocks")
    assert not list(tmp_path.glob("t.*"))


def test_a_server_writes_and_reads_variants_too(tmp_path: Path) -> None:
    with serving(tmp_path / "served") as server, headwater.open(server.url) as hw:
        hw.append("t", b"x", key=b"k")
        hw.export("t", tmp_path / "t.puro", puro_variant="sized-blocks")
        told: list[PuroFile] = []
        assert hw.import_("copy", tmp_path / "t.puro", report=told.append) == 1
        assert told == [PuroFile("sized-blocks", 1, 2)]

"""Events whose data looks like batches of the log: damage beside it never makes them events, nor costs sound ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.directory.segment import SegmentFile
from headwater.errors import Corrupt
from headwater.format.batch import encode_lost, encode_one
from headwater.format.tail import MAGIC, OPEN, SIZE, SLOTS_AT, TailSlot
from headwater.store import Store
from tests.log.unsynced import open_unsynced

CARRIER = 3  # the offset of the event that carries forged batches
HEAD_BYTES = 48  # of a batch of one event without type, key and meta: what its data does not begin before
SEGMENT = "topics/t/0/00000000000000000000.log"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Recovery warns of what it cuts; here that happens a thousand times."""
    logging.getLogger("headwater").setLevel(logging.ERROR)
    yield
    logging.getLogger("headwater").setLevel(logging.NOTSET)


def forged(*offsets: int, ticks: int) -> bytes:
    """Batches that are right in every byte, with these offsets."""
    return b"".join(
        encode_one(offset, ticks + number, "bytes", b"forged", b"", None, None) for number, offset in enumerate(offsets)
    )


def chain(ticks: int) -> bytes:
    """A forged log of the offsets behind the carrier's, whose last batch claims all that follows."""
    claim = encode_one(CARRIER + 4, ticks + 3, "bytes", b"forged" * 100, b"", None, None)
    return forged(CARRIER + 1, CARRIER + 2, CARRIER + 3, ticks=ticks) + claim[: HEAD_BYTES + 8]


def payloads(ticks: int) -> dict[str, bytes]:
    return {
        "its own offset": forged(CARRIER, ticks=ticks),
        "the next offset": forged(CARRIER + 1, ticks=ticks),
        "all offsets": forged(*range(12), ticks=ticks),
        "a late offset": forged(CARRIER + 4, ticks=ticks),
        "the end": forged(9, 10, 11, ticks=ticks),
        "a huge offset": forged(2**62, ticks=ticks),
        "a lost range": encode_lost(CARRIER + 1, ticks, 6),
        "a chain": chain(ticks),
    }


PAYLOADS = list(payloads(0))


class Planted:
    """A log of eight events, one of which carries forged batches."""

    def __init__(self, path: Path, payload: str, *, state: str = "active", last: int = 8) -> None:
        self.path = path
        self.segment = path / SEGMENT
        with open_unsynced(path) as hw:
            ticks = 0
            for offset in range(last):
                data = payloads(ticks + 1)[payload] if offset == CARRIER else b"sound %d" % offset
                hw.append("t", data)
                ticks = hw._topics.get("t").logs[0].state().last_ticks
            self.events = [(event.offset, event.data) for event in hw.read("t")]
            log = hw._topics.get("t").logs[0]
            segment = SegmentFile(log.place, 0)
            self.positions = segment.map(log.state().visible_position).positions.tolist()
            self.end = log.state().visible_position
            segment.close()
            if state == "finished":
                log.roll(tell=False)
                hw.append("t", b"sound 8")
        self.stored = self.segment.read_bytes()[: self.end]

    def open(self) -> Store:
        return open_unsynced(self.path, create=False)

    def damage(self, *places: int) -> None:
        stored = bytearray(self.stored)
        for at in places:
            stored[at] ^= 0x15
        self.segment.write_bytes(stored)

    def header(self, offset: int) -> range:
        return range(self.positions[offset], self.positions[offset] + HEAD_BYTES)


def repaired(planted: Planted) -> list[tuple[int, bytes | None]]:
    with planted.open() as hw:
        hw.repair(apply=True)
        report = hw.check()
        assert not report.damaged, report.findings
        assert hw.repair() == []
        found = [(event.offset, event.data) for event in hw.read("t")]
        assert [(event.offset, event.data) for event in hw.read("t", reverse=True)] == found[::-1]
        return found


@pytest.mark.parametrize("state", ["active", "finished"])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_damaged_header_costs_its_own_event_alone(tmp_path: Path, payload: str, state: str) -> None:
    for at in range(0, HEAD_BYTES, 5):
        planted = Planted(tmp_path / f"{at}", payload, state=state)
        planted.damage(planted.header(CARRIER)[at])
        with planted.open() as hw:
            (finding,) = [finding for finding in hw.check().findings if finding.damage]
            assert (finding.position, finding.size) == (
                planted.positions[CARRIER],
                planted.positions[CARRIER + 1] - planted.positions[CARRIER],
            )
        sound = [event for event in planted.events if event[0] != CARRIER]
        if state == "finished":
            sound.append((8, b"sound 8"))
        assert repaired(planted) == sound, at
        with planted.open() as hw:
            assert hw.append("t", b"next").offset == (9 if state == "finished" else 8)
        (kept,) = planted.segment.parent.glob("*.cut-*")
        assert payloads(0)[payload][:4] in kept.read_bytes()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_sound_events_between_two_damaged_headers_are_kept(tmp_path: Path, payload: str) -> None:
    for at in range(0, HEAD_BYTES, 7):
        planted = Planted(tmp_path / f"{at}", payload)
        planted.damage(planted.header(CARRIER)[at], planted.header(6)[-at])
        assert repaired(planted) == [event for event in planted.events if event[0] not in (CARRIER, 6)], at


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_cannot_be_proven_is_lost_and_kept_and_what_follows_stays(tmp_path: Path, payload: str) -> None:
    """Nothing leads to what is between two stretches of zeros: it may be real, or part of the event before it."""
    planted = Planted(tmp_path / "data", payload)
    stored = bytearray(planted.stored)
    for offset in (CARRIER, 6):
        at = planted.header(offset)
        stored[at.start - 8 : at.stop] = bytes(len(at) + 8)
    planted.segment.write_bytes(stored)
    # The zeros reach into the batches before, whose headers tell where they end.
    assert repaired(planted) == [event for event in planted.events if event[0] in (0, 1, 7)]
    cut = b"".join(file.read_bytes() for file in planted.segment.parent.glob("*.cut-*"))
    assert b"sound 4" in cut


def test_the_index_of_a_sealed_segment_tells_what_is_lost(tmp_path: Path) -> None:
    """A size at the end of a batch may be damaged too, so that nothing leads back over it: the index does."""
    with open_unsynced(tmp_path) as hw:
        for number in range(6):  # of two kinds in turn, which are not packed together
            hw.append("t", forged(3, 4, 5, ticks=2**58) if number == 2 else "sound" if number % 2 else b"sound")
        hw.seal("t")
        log = hw._topics.get("t").logs[0]
        positions = SegmentFile(log.place, 0).map(0).positions.tolist()
    file = tmp_path / SEGMENT
    stored = bytearray(file.read_bytes())
    assert len(positions) == 6
    for at in (positions[2] + 20, positions[5] - 2):
        stored[at] ^= 0x15
    file.write_bytes(stored)
    with open_unsynced(tmp_path) as hw:
        hw.repair(apply=True)
        assert not hw.check().damaged
        assert [event.offset for event in hw.read("t")] == [0, 1, 3, 5]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("tail", ["kept", "removed"])
@pytest.mark.parametrize("space", ["cut", "reserved"])
def test_a_torn_event_brings_nothing_of_its_data_back(tmp_path: Path, payload: str, tail: str, space: str) -> None:
    planted = Planted(tmp_path / "data", payload, last=CARRIER + 1)
    torn = range(planted.positions[CARRIER] + HEAD_BYTES, planted.end, 8)
    for size in torn:
        rest = bytes(planted.end - size + 4096) if space == "reserved" else b""
        planted.segment.write_bytes(planted.stored[:size] + rest)
        (tmp_path / "data/topics/t/0/tail").write_bytes(tail_before(planted) if tail == "kept" else b"")
        with planted.open() as hw:
            assert [event.offset for event in hw.read("t")] == [0, 1, 2], size
            assert not hw.check().damaged, size
            assert hw.repair() == [], size
            assert hw.append("t", b"next").offset == CARRIER, size
    assert len(torn) > 3


def tail_before(planted: Planted) -> bytes:
    """The tail as it was before the carrier, of a machine that has lost its power since."""
    at = CARRIER, planted.positions[CARRIER]
    slot = TailSlot(2, b"an earlier boot.", 0, *at, *at, 1, 1, OPEN)
    return (MAGIC.ljust(SLOTS_AT[0], b"\0") + slot.encode()).ljust(SIZE, b"\0")


def test_an_event_that_was_lost_with_the_tail_brings_nothing_of_its_data_back(tmp_path: Path) -> None:
    for payload in PAYLOADS:
        for at in range(0, HEAD_BYTES, 5):
            planted = Planted(tmp_path / f"{payload} {at}", payload, last=CARRIER + 1)
            planted.damage(planted.header(CARRIER)[at])
            (planted.path / "topics/t/0/tail").unlink()
            assert repaired(planted) == planted.events[:CARRIER], (payload, at)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_without_a_tail_nothing_sound_is_cut(tmp_path: Path, payload: str) -> None:
    for at in range(0, HEAD_BYTES, 5):
        planted = Planted(tmp_path / f"{at}", payload)
        planted.damage(planted.header(CARRIER)[at])
        (planted.path / "topics/t/0/tail").unlink()
        assert repaired(planted) == [event for event in planted.events if event[0] != CARRIER], at


@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_size_does_not_lead_a_read_into_the_data_of_an_event(tmp_path: Path, finished: bool) -> None:
    """To find an offset, headers are walked over: one of a wrong size leads to where another log was planted."""
    with open_unsynced(tmp_path) as hw:
        hw.append("t", b"sound")
        ticks = hw._topics.get("t").logs[0].state().last_ticks + 10
        position = hw._topics.get("t").logs[0].state().visible_position
        claim = encode_one(6, ticks + 9, "bytes", bytes(4096), b"", None, None)[:HEAD_BYTES]  # of all that follows
        hw.append("t", bytes(0x200 - HEAD_BYTES) + forged(2, 3, 4, 5, ticks=ticks) + claim)
        events = [hw.append("t", b"sound") for _ in range(7)]
        if finished:
            hw._topics.get("t").logs[0].roll(tell=False)
    file = tmp_path / SEGMENT
    stored = bytearray(file.read_bytes())
    stored[position + 8 : position + 12] = (0x200).to_bytes(4, "little")
    file.write_bytes(stored)
    for start in (2, 3, events[0].id, events[1].id):
        with open_unsynced(tmp_path) as hw, pytest.raises(Corrupt):
            list(hw.read("t", start=start, end=5))

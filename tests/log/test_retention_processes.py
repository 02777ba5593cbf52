"""Retention among processes: one appends and rolls, some read and follow, some delete."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headwater.directory.sealer import seal
from headwater.errors import NotFound, Unavailable
from headwater.format.names import file_of
from headwater.limits import Limits
from headwater.store import Store
from tests.log.children import Child, Said, stop
from tests.log.unsynced import open_unsynced

EVENTS = 6000
LIMITS = Limits(blob_bytes_min=1500)


def data_of(offset: int) -> bytes:
    return (b"%d " % offset).ljust(2000 if offset % 97 == 0 else 40, b".")


def append_all(hw: Store) -> None:
    for offset in range(EVENTS):
        assert hw.append("t", data_of(offset), durability="os").offset == offset


def follow_all(hw: Store) -> list[tuple[int, int]]:
    """Follow to the last event; returns the ranges of offsets that were gone before they could be read."""
    gaps: list[tuple[int, int]] = []
    at = 0
    while at < EVENTS:
        try:
            for event in hw.follow("t", start=at, timeout=30.0):
                assert (event.offset, event.data) == (at, data_of(at))
                at += 1
                if at == EVENTS:
                    break
        except NotFound as error:
            if error.code != "offset_gone":
                raise
            gaps.append((at, error.oldest))
            at = error.oldest
    return gaps


def read_all(hw: Store) -> int:
    """Read forwards and backwards until all was appended; returns how often something was gone."""
    gone, end = 0, 0
    while end < EVENTS:
        for reverse in (False, True):
            [told] = hw.describe("t").partitions
            assert told.start <= told.end
            end = told.end
            try:
                for event in hw.read("t", start=told.start, end=end, reverse=reverse):
                    assert event.data == data_of(event.offset)
                    assert event.offset >= told.start
            except NotFound as error:
                if error.code != "offset_gone" or error.oldest <= told.start:
                    raise
                gone += 1
    return gone


def delete_much(hw: Store) -> int:
    """Delete in all ways until all was appended; returns how many segments went by this."""
    deleted, end = 0, 0
    while end < EVENTS:
        end = hw.describe("t").partitions[0].end
        deleted += len(hw.retain("t", before=max(0, end - 300)))
        deleted += len(hw.retain("t", retention_segments=3 + end % 3))
    return deleted


def test_readers_and_followers_see_what_is_there_or_are_told_that_it_is_gone(path: Path) -> None:
    with open_unsynced(path, limits=LIMITS) as hw:
        hw.create("t", segment_bytes=4096, retention_bytes=30_000)

    def in_engine(work: object) -> Child:
        def run(_: Said) -> object:
            failed: list[object] = []
            threading.excepthook = failed.append  # the thread that seals must not die in silence
            with open_unsynced(path, limits=LIMITS) as mine:
                result = work(mine)  # type: ignore[operator]
            assert failed == []
            return result

        return Child(run)

    followers = [in_engine(follow_all) for _ in range(2)]
    reader, deleters = in_engine(read_all), [in_engine(delete_much) for _ in range(2)]
    writer = in_engine(append_all)
    writer.result()
    for gaps in [follower.result() for follower in followers]:
        assert all(lo < hi for lo, hi in gaps)
    reader.result()  # how often something was gone is chance
    assert sum(deleter.result() for deleter in deleters) > 0
    with open_unsynced(path, limits=LIMITS) as hw:
        hw.retain("t", retention_segments=2)
        [told] = hw.describe("t").partitions
        assert 0 < told.start < told.end == EVENTS
        assert [event.offset for event in hw.read("t")] == list(range(told.start, EVENTS))
        assert not hw.check("t").damaged
        names = os.listdir(path / "topics/t/0")
    stems = {name.partition(".")[0] for name in names if name[0].isdecimal()}
    assert stems == {name.partition(".")[0] for name in names if name.endswith(".log")}


def stopped_while_sealing(path: Path) -> Child:
    """A process that was stopped while it seals the first segment of a topic that is made here."""
    with open_unsynced(path) as hw:
        for _ in range(600):
            hw.append("t", b"small", durability="os")
        hw.directory._topics.live("t").logs[0].roll(tell=False)

    def seal_and_stop(_: Said) -> bool:
        stops = iter([True])
        with open_unsynced(path) as mine:
            place = mine.directory._topics.live("t").logs[0].place
            return seal(place, 0, lambda: stop() if next(stops, False) else None)

    sealer = Child(seal_and_stop)
    sealer.wait_until_stopped()
    return sealer


@pytest.mark.parametrize("killed", [False, True])
def test_when_seal_returns_what_another_process_was_sealing_is_sealed(path: Path, killed: bool) -> None:
    sealer = stopped_while_sealing(path)
    with open_unsynced(path) as hw:
        later = threading.Timer(0.2, sealer.kill if killed else sealer.resume)
        later.start()
        assert hw.seal("t") == int(killed)
        [told] = hw.describe("t").partitions
        assert (told.segments, told.sealed) == (2, 1)
        later.join()
    assert killed or sealer.result() is True


def test_a_segment_that_a_stopped_process_seals_is_waited_for(path: Path) -> None:
    sealer = stopped_while_sealing(path)
    with open_unsynced(path, limits=Limits(lock_wait_s=0.2)) as hw:
        with pytest.raises(Unavailable, match="has been sealing") as error:
            hw.retain("t", retention_segments=1)
        assert error.value.code == "locked"
        with pytest.raises(Unavailable, match="has been sealing"):
            hw.seal("t")
        hw.directory._keeper.rolled(hw.directory._topics.live("t").logs[0].place)  # does not wait
        assert hw.append("t", b"nobody else waits").offset == 600
        sealer.resume()
        assert sealer.result() is True
        assert [each.end for each in hw.retain("t")] == [600]
    assert sorted(os.listdir(path / "topics/t/0")) == [file_of(600, "log"), file_of(600, "oldest"), "lock", "tail"]

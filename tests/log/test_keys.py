"""One key's events and its version, by the index and without it: always what a filter of all events gives."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.directory import batch_lookup, log_cursor, sealer, segment
from headwater.directory import keys as log_keys
from headwater.directory.local_log import LocalLog
from headwater.directory.sealer import Sealer
from headwater.disk.disk import Disk
from headwater.errors import Corrupt
from headwater.event import Event
from headwater.format import hashes
from headwater.format.index import Index
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests import strategies
from tests.log.conformance import plain
from tests.log.unsynced import UnsyncedDisk, open_unsynced
from tests.strategies import Row

TINY_SEGMENT = 4096
LIMITS = Limits(blob_bytes_min=300, pack_bytes=600, pack_events=20)


@pytest.fixture
def by_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for keys in memory also where reading on would be quicker."""
    monkeypatch.setattr(log_cursor, "SCAN_BYTES_MAX", 0)


def log_of(engine: Store) -> LocalLog:
    return engine.directory._topics.live("t").logs[0]


def indexes(engine: Store) -> list[Path]:
    return sorted((engine.path / "topics/t/0").glob("*.index"))


def without_keys(file: Path) -> None:
    """Make it an index of the version that kept no keys."""
    file.write_bytes(msgspec.structs.replace(Index.decode(file.read_bytes()), keys=None).encode())


def told(events: Iterable[Event]) -> list[tuple[int, bytes | None, str, bytes | None]]:
    """What tells events apart; a huge one is read anew each time, and not equal to itself."""
    return [(event.offset, event.key, event.type, event.data) for event in events]


def check_key(engine: Store, key: bytes, events: list[Event]) -> None:
    """Read and version of a key are those of a full read, `events`."""
    mine = told(event for event in events if event.key == key)
    assert told(engine.read("t", key=key)) == mine
    assert told(engine.read("t", key=key, reverse=True)) == mine[::-1]
    assert told(engine.follow("t", key=key, start=0, timeout=0)) == mine
    assert engine.version("t", key) == (mine[-1][0] if mine else None)


class InlineSealer(Sealer):
    """Does at once what it is told."""

    def _begin(self, place: Any, base: int | None) -> None:
        assert base is not None
        sealer.reindex(place, base)


class CountingDisk(UnsyncedDisk):
    """Counts the files that are opened for reading, by their suffix, and the bytes that are read."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.bytes = 0

    def open_read(self, path: Path) -> int:
        self.opened.append(path.suffix)
        return super().open_read(path)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.bytes += size
        return Disk.pread(fd, size, position)


# Any order of anything


class KeyMachine(RuleBasedStateMachine):
    """Two engines on one log whose index files are deleted, damaged and made again. Hashes have two bits."""

    def __init__(self) -> None:
        super().__init__()
        self.monkeypatch = pytest.MonkeyPatch()
        for module in (log_keys, batch_lookup):
            self.monkeypatch.setattr(module, "key_hash", lambda key: hashes.key_hash(key) & 3)
        self.monkeypatch.setattr(log_keys, "key_hashes", lambda column: hashes.key_hashes(column) & 3)
        self.monkeypatch.setattr(log_keys, "PENDING_MAX", 3)
        self.monkeypatch.setattr(log_keys, "GATHER_EVENTS", 5)
        self.monkeypatch.setattr(log_keys, "SMALL_BATCH", 3)
        self.monkeypatch.setattr(segment, "OPEN_SEGMENTS_MAX", 2)
        self.looked = 0
        self.path = Path(tempfile.mkdtemp())
        self.engines = [self.open(), self.open()]
        self.engines[0].create("t", segment_bytes=TINY_SEGMENT)

    def open(self) -> Store:
        return open_unsynced(self.path / "data", limits=LIMITS)

    def teardown(self) -> None:
        for engine in self.engines:
            engine.close()
        shutil.rmtree(self.path)
        self.monkeypatch.undo()

    engine = st.integers(0, 1)
    number = st.integers(0, 9)

    @rule(engine=engine, row=strategies.few_rows, huge=st.booleans())
    def append(self, engine: int, row: Row, huge: bool) -> None:
        data = row.data + b"huge" * 100 if huge else row.data
        self.engines[engine].append("t", data, type=row.type, key=row.key)

    @rule(engine=engine, rows=strategies.few_row_lists, times=st.sampled_from([1, 1, 9]))
    def append_many(self, engine: int, rows: list[Row], times: int) -> None:
        drawn = rows * times
        keys, types = [row.key for row in drawn], [row.type for row in drawn]
        self.engines[engine].append_many("t", [row.data for row in drawn], keys=keys, types=types)

    @rule(engine=engine, key=strategies.few_keys)
    def append_with_one_key(self, engine: int, key: bytes | None) -> None:
        self.engines[engine].append_many("t", [b"1", b"2", b"3"], keys=[key] * 3)

    @rule(engine=engine)
    def seal(self, engine: int) -> None:
        self.engines[engine].seal("t")

    @rule(engine=engine)
    def roll(self, engine: int) -> None:
        log_of(self.engines[engine]).roll(tell=False)

    @rule(engine=engine)
    def reopen(self, engine: int) -> None:
        self.engines[engine].close()
        self.engines[engine] = self.open()

    @rule(number=number)
    def delete_index(self, number: int) -> None:
        for file in indexes(self.engines[0])[number : number + 1]:
            file.unlink()

    @rule(number=number, at=st.integers(0, 10_000), flip=st.integers(1, 255))
    def damage_index(self, number: int, at: int, flip: int) -> None:
        for file in indexes(self.engines[0])[number : number + 1]:
            stored = bytearray(file.read_bytes())
            stored[at % len(stored)] ^= flip
            file.write_bytes(stored)

    @rule(number=number)
    def earlier_index(self, number: int) -> None:
        for file in indexes(self.engines[0])[number : number + 1]:
            try:
                without_keys(file)
            except Corrupt:
                continue

    @rule(engine=engine)
    def reindex(self, engine: int) -> None:
        self.engines[engine].reindex()

    @rule(by_keys=st.booleans())
    def look_otherwise(self, by_keys: bool) -> None:
        self.monkeypatch.setattr(log_cursor, "SCAN_BYTES_MAX", 0 if by_keys else 100)

    @rule(engine=engine, key=strategies.few_keys.filter(bool), data=st.data())
    def read_a_range(self, engine: int, key: bytes, data: st.DataObject) -> None:
        hw = self.engines[engine]
        events = list(hw.read("t"))
        lo, hi = data.draw(st.integers(0, len(events))), data.draw(st.integers(0, len(events)))
        typed = told(event for event in events[lo:hi] if event.key == key and event.type == "paid")
        assert told(hw.read("t", key=key, type="paid", start=lo, end=hi)) == typed
        assert told(hw.read("t", key=key, type="paid", start=lo, end=hi, reverse=True)) == typed[::-1]

    @invariant()
    def keys_are_what_a_filter_tells(self) -> None:
        self.looked += 1
        hw = self.engines[self.looked % 2]
        events = list(hw.read("t"))
        for key in (b"", b"a", b"b", b"o-17", b"absent"):
            check_key(hw, key, events)


TestAnyOrder = KeyMachine.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


@pytest.mark.usefixtures("by_keys_alone")
def test_any_range_of_a_key_is_what_a_slice_of_all_is(hw: Store) -> None:
    """Over a sealed, a finished and an active segment."""
    for finish in (lambda: hw.seal("t"), lambda: log_of(hw).roll(tell=False), lambda: None):
        for count in (1, 3, 1, 4):
            offset = hw.append("t", b"", key=b"other").offset
            hw.append_many("t", [b""] * count, keys=[b"k" if (offset + i) % 2 else b"other" for i in range(count)])
        finish()
    events = list(hw.read("t"))
    for lo in range(len(events) + 1):
        for hi in range(len(events) + 1):
            mine = [event for event in events[lo:hi] if event.key == b"k"]
            assert list(hw.read("t", key=b"k", start=lo, end=hi)) == mine, (lo, hi)
            assert list(hw.read("t", key=b"k", start=lo, end=hi, reverse=True)) == mine[::-1], (lo, hi)


# What is looked at


@pytest.mark.usefixtures("by_keys_alone")
@pytest.mark.parametrize("state", ["active", "finished", "sealed"])
def test_only_the_batches_of_the_key_are_read(tmp_path: Path, state: str) -> None:
    with open_unsynced(tmp_path / "data", limits=Limits(pack_bytes=2000)) as hw:
        for number in range(50):
            hw.append_many("t", [b"x" * 100] * 20, keys=[b"%d-%d" % (number, i) for i in range(20)])
        if state == "finished":
            log_of(hw).roll(tell=False)
        elif state == "sealed":
            hw.seal("t")
        for backwards in (False, True):
            found = list(log_of(hw).batches(0, 1000, backwards=backwards, key=b"17-3"))
            assert [batch.base_offset <= 343 < batch.end_offset for batch in found] == [True]
            assert list(log_of(hw).batches(0, 1000, backwards=backwards, key=b"none")) == []


@pytest.mark.usefixtures("by_keys_alone")
def test_what_is_known_of_the_active_segment_s_keys_grows_with_it(hw: Store) -> None:
    """Few events at a time, or many; after each, only batches of the key are read, in their order."""
    expected: list[int] = []
    for count in (1, 1, 1000, 2, 1, 1, 700, 700, 1, 5000, 1):
        refs = hw.append_many("t", [b"x" * 100] * count, keys=[b"other %d" % i for i in range(count - 1)] + [b"k"])
        hw.append("t", b"", key=b"another")
        expected.append(refs[0].offset)
        for backwards, wanted in ((False, expected), (True, expected[::-1])):
            found = log_of(hw).batches(0, log_of(hw).end(), backwards=backwards, key=b"k")
            assert [batch.base_offset for batch in found] == wanted
        assert hw.version("t", b"k") == refs[-1].offset
    assert log_of(hw).state().segment == 0


def test_an_absent_key_is_looked_for_without_opening_segments(tmp_path: Path) -> None:
    disk = CountingDisk()
    with open_directory(tmp_path / "data", disk=disk) as hw:
        for number in range(12):
            hw.append("t", b"", key=b"%d" % number)
            hw.seal("t")
        assert hw.version("t", b"0") == 0
        disk.opened.clear()
        assert hw.version("t", b"absent") is None
        assert list(hw.read("t", key=b"absent")) == []
        assert set(disk.opened) <= {".index"}
        disk.opened.clear()
        assert hw.version("t", b"3") == 3
        assert disk.opened.count(".log") <= 1


def test_of_a_large_index_only_a_page_is_read(tmp_path: Path) -> None:
    disk = CountingDisk()
    with open_directory(tmp_path / "data", disk=disk) as hw:
        count = 40_000
        hw.append_many("t", [b""] * count, keys=[b"%d" % number for number in range(count)])
        hw.seal("t")
        assert indexes(hw)[0].stat().st_size > 300_000
        disk.bytes = 0
        assert hw.version("t", b"absent") is None
        assert disk.bytes < 100_000  # and the first time, what is in front of the keys
        disk.bytes = 0
        assert hw.version("t", b"none at all") is None
        assert 0 < disk.bytes <= 2 * 8192


def test_an_index_with_a_large_head_is_read(hw: Store) -> None:
    """What is in front of the key entries may be more than is read at once."""
    count = 3000
    for number in range(count):
        hw.append("t", b"", type=f"a type with a long name {number:0100d}", key=b"%d" % number)
    hw.seal("t")
    assert Index.decode(indexes(hw)[0].read_bytes()).types is not None
    assert [hw.version("t", b"%d" % number) for number in (0, 1500, 2999, 3000)] == [0, 1500, 2999, None]
    assert not hw.check().findings


def test_sealing_splits_large_batches(tmp_path: Path) -> None:
    """So that one event of a large batch is read without verifying all of it."""
    with open_unsynced(tmp_path / "data", limits=Limits(pack_bytes=4000)) as hw:
        count = 2000
        keys = [b"%d" % (number % 700) if number % 3 else None for number in range(count)]
        types = [f"{number % 5}" for number in range(count)]
        hw.append_many("t", [b"x" * (number % 60) for number in range(count)], keys=keys, types=types)
        hw.append_many("t", [b"y" * 40] * count, metas=[{"a": "b"}] * count, types="same")
        before = [plain(event) for event in hw.read("t")]
        hw.seal("t")
        assert [plain(event) for event in hw.read("t")] == before
        batches = list(log_of(hw).batches(0, 2 * count))
        assert len(batches) > 20
        assert max(batch.size for batch in batches) < 8000
        check_key(hw, b"7", list(hw.read("t")))
        assert not hw.check().findings


def test_the_active_segment_stays_open(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of its keys would take long to learn again."""
    monkeypatch.setattr(segment, "OPEN_SEGMENTS_MAX", 2)
    for _ in range(6):
        hw.append("t", b"", key=b"k")
        hw.seal("t")
    hw.append("t", b"", key=b"k")
    assert hw.version("t", b"k") == 6
    active = log_of(hw)._reader._segments._found[6][0]
    assert [event.offset for event in hw.read("t", key=b"k", end=6)] == list(range(6))
    assert log_of(hw)._reader._segments._found[6][0] is active
    assert len(log_of(hw)._reader._segments._found) == 2


# Kinds of keys and batches


@pytest.mark.usefixtures("by_keys_alone")
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("sealed", [False, True])
def test_all_kinds_of_batches_are_found(tmp_path: Path, sealed: bool, compression: Any) -> None:
    with open_unsynced(tmp_path / "data", limits=Limits(blob_bytes_min=1000)) as hw:
        hw.create("t", compression=compression)
        hw.append("t", b"one", key=b"k")
        hw.append("t", b"huge" * 500, key=b"k")
        hw.append("t", b"no key")
        hw.append("t", "text", key="")
        hw.append_many("t", [b"a"] * 700, keys=[b"k"] * 700)  # constant
        hw.append_many("t", [b"b"] * 700, keys=[b"k" if i % 7 == 0 else None for i in range(700)])
        hw.append_many("t", [b"c"] * 700, keys=[b"long key %d" % i * 9 for i in range(700)])
        hw.append_many("t", [b"d"] * 3)
        if sealed:
            hw.seal("t")
        events = list(hw.read("t"))
        assert events[1].data == b"huge" * 500
        for key in (b"k", b"", b"long key 699" * 9, b"none"):
            check_key(hw, key, events)
        assert hw.version("t", b"") == 3


def test_lost_events_have_no_key(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        for number in range(6):
            hw.append("t", b"%d" % number, key=b"k")
    file = tmp_path / "data/topics/t/0/00000000000000000000.log"
    stored = file.read_bytes()
    at = stored.index(b"HWB1", stored.index(b"HWB1") + 4)
    file.write_bytes(stored[:at] + b"XXXX" + stored[at + 4 :])
    for sealed in (False, True):
        with open_unsynced(tmp_path / "data") as hw:
            if not sealed:
                hw.repair(apply=True)
            else:
                hw.seal("t")
            assert [event.offset for event in hw.read("t", key=b"k")] == [0, 2, 3, 4, 5]
            check_key(hw, b"k", list(hw.read("t")))


@pytest.mark.parametrize("reverse", [False, True])
def test_damage_of_a_batch_is_told_where_keys_are_looked_for(tmp_path: Path, reverse: bool) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        for number in range(6):
            hw.append("t", b"%d" % number, key=b"k%d" % (number % 2))
    file = tmp_path / "data/topics/t/0/00000000000000000000.log"
    stored = file.read_bytes()
    at = stored.index(b"k0", stored.index(b"k1"))  # the key of event 2
    file.write_bytes(stored[:at] + b"k9" + stored[at + 2 :])
    with open_unsynced(tmp_path / "data") as hw:
        with pytest.raises(Corrupt, match="column 3"):
            list(hw.read("t", key=b"k0", reverse=reverse))
        with pytest.raises(Corrupt):
            hw.version("t", b"absent")
        assert hw.version("t", b"k0") == 4  # nothing before it need be looked at


# Indexes that are of no use


@pytest.mark.parametrize("fate", ["deleted", "empty", "cut", "foreign", "earlier", "page", "head"])
def test_no_index_hides_an_event(tmp_path: Path, fate: str) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        for _ in range(2):
            hw.append_many("t", [b"x"] * 3000, keys=[b"%d" % (number % 1500) for number in range(3000)])
            hw.seal("t")
        events = list(hw.read("t"))
        one, other = indexes(hw)
        sound = one.read_bytes()
        if fate == "foreign":
            shutil.copy(other, one)
        elif fate == "earlier":
            without_keys(one)
        elif fate == "deleted":
            one.unlink()
        else:
            at = 100 if fate == "head" else len(sound) - 5000
            one.write_bytes({"empty": b"", "cut": sound[:-8]}.get(fate, sound[:at] + b"\xff" * 8 + sound[at + 8 :]))
    with open_unsynced(tmp_path / "data") as hw:
        hw.directory._sealer = InlineSealer()
        for number in (0, 1, 700, 1499, 1500):
            check_key(hw, b"%d" % number, events)
        if fate == "deleted":
            assert hw.reindex() == 2
        assert one.read_bytes() == sound  # whoever noticed had it made again
        check_key(hw, b"3", events)
        assert not hw.check().findings


def test_a_damaged_index_is_made_again_in_the_background(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hw.append_many("t", [b"1", b"2"], keys=[b"a", b"b"], types=["x", "y"])
    hw.seal("t")
    (file,) = indexes(hw)
    sound = file.read_bytes()
    made = threading.Event()
    reindex = sealer.reindex

    def reindex_and_tell(*given: Any) -> bool:
        done = reindex(*given)
        made.set()
        return done

    monkeypatch.setattr(sealer, "reindex", reindex_and_tell)
    cases: list[dict[str, Any]] = [{"type": "x"}, {"key": b"a"}]
    for options in cases:
        file.write_bytes(b"?" + sound[1:])
        made.clear()
        with open_unsynced(hw.path) as other:
            assert [event.data for event in other.read("t", **options)] == [b"1"]
            assert made.wait(20)
        assert file.read_bytes() == sound


def test_an_index_on_read_only_media_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        hw.append("t", b"1", key=b"a")
        hw.seal("t")
        (file,) = indexes(hw)
        file.write_bytes(b"")
    with open_unsynced(tmp_path / "data") as hw:
        hw.directory._sealer = InlineSealer()
        monkeypatch.setattr(hw.directory.disk, "writable", lambda path: False)  # noqa: ARG005  # none of them
        assert hw.version("t", b"a") == 0
        assert file.read_bytes() == b""


def test_reindexing_makes_every_index_again(hw: Store) -> None:
    for topic in ("t", "u"):
        hw.create(topic, partitions=2)
        for number in range(4):
            hw.append_many(topic, [b"x"] * 50, keys=[b"%d-%d" % (number, i) for i in range(50)])
            hw.seal(topic)
    files = {file: file.read_bytes() for file in hw.path.rglob("*.index")}
    assert len(files) == 16
    for file in files:
        file.unlink()
    steps: list[tuple[int, int]] = []
    assert hw.reindex("u", progress=lambda done, total: steps.append((done, total))) == 8
    assert {file.parents[1].name for file in hw.path.rglob("*.index")} == {"u"}
    assert steps == sorted(steps)
    assert len(steps) == 8
    assert steps[-1][0] == steps[-1][1] > 0
    next(file for file in files if "u" in file.parts).write_bytes(b"damaged")
    assert hw.reindex() == 16
    assert {file: file.read_bytes() for file in files} == files


def test_check_verifies_the_keys_of_an_index(hw: Store) -> None:
    hw.append_many("t", [b"x"] * 3000, keys=[b"%d" % number for number in range(3000)])
    hw.seal("t")
    (file,) = indexes(hw)
    index = Index.decode(file.read_bytes())
    assert index.keys is not None
    for lie in (index.keys[1:], index.keys + 1):
        file.write_bytes(msgspec.structs.replace(index, keys=lie).encode())
        (finding,) = hw.check().findings
        assert finding.damage
        assert "does not match" in finding.problem
    without_keys(file)
    (finding,) = hw.check().findings
    assert not finding.damage
    assert "reindex" in finding.problem


# Versions


def test_a_version_is_told_while_others_hold_the_log(hw: Store) -> None:
    """A writer asks under the lock of the log: no lock that waits for it may be taken."""
    hw.append("t", b"1", key=b"a")
    hw.seal("t")
    hw.append("t", b"2", key=b"b")
    log = log_of(hw)
    slot = log.state()
    with log.place.lock.open("rb") as lock, log._group.exclusive():
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [log.version(key, slot) for key in (b"a", b"b", b"c")] == [0, 1, None]


def test_a_version_is_that_of_the_slot(hw: Store) -> None:
    log = None
    slots = []
    for number in range(5):
        hw.append("t", b"%d" % number, key=b"k")
        log = log or log_of(hw)
        slots.append(log.state())
    assert log is not None
    assert log.version(b"k") == 4
    assert [log.version(b"k", slot) for slot in slots] == list(range(5))


def test_the_version_of_a_key_whose_segments_are_gone_is_none(hw: Store) -> None:
    for number in range(3):
        hw.append("t", b"", key=b"%d" % number)
        hw.seal("t")
    assert hw.version("t", b"0") == 0
    hw.retain("t", before=1)
    assert [hw.version("t", b"%d" % number) for number in range(3)] == [None, 1, 2]
    assert hw.version("t", b"1") == 1


def test_keys_are_found_while_others_append_and_seal(hw: Store) -> None:
    """Readers in several threads see each version grow, and whole histories."""
    hw.create("t", segment_bytes=TINY_SEGMENT)
    done = threading.Event()
    failures: list[BaseException] = []

    def watch(key: bytes) -> None:
        try:
            seen = -1
            while not done.is_set():
                version = hw.version("t", key)
                found = [event.offset for event in hw.read("t", key=key)]
                assert found == [3 * i + key[0] - 97 for i in range(len(found))]
                assert version is None or seen <= version <= found[-1]
                seen = -1 if version is None else version
        except Exception as error:  # noqa: BLE001  # told in the main thread
            failures.append(error)

    threads = [threading.Thread(target=watch, args=(key,)) for key in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for number in range(300):
        hw.append("t", b"x" * 50, key=b"abc"[number % 3 : number % 3 + 1])
        if number % 60 == 59:
            hw.seal("t")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [hw.version("t", key) for key in (b"a", b"b", b"c")] == [297, 298, 299]

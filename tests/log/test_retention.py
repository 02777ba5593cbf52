"""Retention: what a topic keeps is kept, the rest goes from its oldest end on, and readers are told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.directory import retention, sealer
from headwater.directory.local_log import LocalLog
from headwater.disk.disk import Clock
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable
from headwater.event import time_of
from headwater.format.index import Index
from headwater.format.names import file_of, offset_of
from headwater.format.settings import TopicRecord, TopicSettings
from headwater.limits import Limits
from headwater.log.topic_rules import Rules
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.unsynced import UnsyncedDisk

SEGMENT_BYTES = 4096
DATA = b"x" * 1000  # three of them fill a segment
HOUR = 3600 * 1000
LIMITS = Limits(blob_bytes_min=2000, pack_bytes=2000, lock_wait_s=5.0)


class SetClock(Clock):
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 139_000_000_000_000_000

    def ticks(self) -> int:
        return self.now

    def pass_ms(self, ms: int) -> None:
        self.now += ms * 10_000


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


Open = Callable[..., Store]


@pytest.fixture
def open_engine(tmp_path: Path, clock: SetClock) -> Iterator[Open]:
    """Opens engines on one directory, as so many processes would."""
    opened = []

    def open(limits: Limits = LIMITS) -> Store:
        opened.append(open_directory(tmp_path / "data", limits=limits, disk=UnsyncedDisk(), clock=clock))
        return opened[-1]

    yield open
    for engine in opened:
        engine.close()


@pytest.fixture
def hw(open_engine: Open) -> Store:
    return open_engine()


def only_log(hw: Store, topic: str = "t") -> LocalLog:
    [log] = hw.directory._topics.live(topic).logs
    return log


def fill(hw: Store, segments: int, topic: str = "t", *, events: int = 3) -> None:
    """Finish so many segments, each of so many events; nobody seals or deletes meanwhile."""
    for _ in range(segments):
        for _ in range(events):
            hw.append(topic, DATA, durability="os")
        only_log(hw, topic).roll(tell=False)


def names(hw: Store, topic: str = "t") -> list[str]:
    return sorted(os.listdir(only_log(hw, topic).place.path))


def bases(hw: Store, topic: str = "t") -> list[int]:
    return [base for name in names(hw, topic) if (base := offset_of(name, "log")) is not None]


def offsets(hw: Store, **options: Any) -> list[int]:
    return [event.offset for event in hw.read("t", **options)]


def assert_gone(call: Callable[[], object], oldest: int) -> None:
    with pytest.raises(NotFound) as error:
        call()
    assert (error.value.code, error.value.oldest) == ("offset_gone", oldest)


# Bounds


def test_by_segments_the_oldest_go_and_the_rest_is_read_from_there(hw: Store) -> None:
    fill(hw, 5)
    deleted = hw.retain("t", retention_segments=3)
    assert [(each.partition, each.first, each.end) for each in deleted] == [(0, 0, 3), (0, 3, 6), (0, 6, 9)]
    assert all(each.bytes > 3000 for each in deleted)
    assert bases(hw) == [9, 12, 15]
    assert offsets(hw) == list(range(9, 15))
    told = hw.describe("t").partitions[0]
    assert (told.start, told.end) == (9, 15)
    assert hw.retain("t") == []
    assert hw.append("t", b"next").offset == 15
    assert (hw.splits("t")[0].start, hw.splits("t", start=10)[0].start) == (9, 10)
    assert_gone(lambda: hw.splits("t", start=8), oldest=9)


def test_one_segment_is_the_active_one_and_stays(hw: Store) -> None:
    fill(hw, 2)
    hw.append("t", b"last")
    hw.retain("t", retention_segments=1, retention_bytes=1)
    assert offsets(hw) == [6]


def test_by_bytes_indexes_and_huge_events_count_and_go_too(hw: Store) -> None:
    hw.create("t")
    fill(hw, 1)
    hw.append("t", b"y" * 5000)
    fill(hw, 2)
    hw.seal("t")
    hw.append("t", b"last")
    assert [name for name in names(hw) if name.startswith(file_of(3, ""))] == [
        file_of(3, kind) for kind in ("blobs", "index", "log")
    ]
    sizes = dict.fromkeys(bases(hw), 0)
    for directory, _, files in os.walk(only_log(hw).place.path):
        for name in files:
            stem = (Path(directory).name if directory.endswith(".blobs") else name).partition(".")[0]
            if stem.isdecimal():
                sizes[int(stem)] += os.path.getsize(os.path.join(directory, name))
    sizes[bases(hw)[-1]] = only_log(hw).state().visible_position  # what it has reserved does not count
    assert sizes[3] > 5000 + 3000
    total = sum(sizes.values())
    assert hw.retain("t", retention_bytes=total) == []
    [first] = hw.retain("t", retention_bytes=total - 1)
    assert (first.first, first.end, first.bytes) == (0, 3, sizes[0])
    [second] = hw.retain("t", retention_bytes=total - sizes[0] - sizes[3])
    assert (second.first, second.end, second.bytes) == (3, 7, sizes[3])
    assert [name for name in names(hw) if name < file_of(7, "")] == []


def test_by_age_what_is_old_goes_as_soon_as_its_last_event_is(hw: Store, clock: SetClock) -> None:
    for _ in range(3):
        fill(hw, 1)
        clock.pass_ms(HOUR)
    hw.append("t", b"young")
    assert hw.retain("t", retention_age_ms=3 * HOUR) == []
    clock.pass_ms(1)
    assert [(each.first, each.end) for each in hw.retain("t")] == [(0, 3)]
    clock.pass_ms(HOUR)
    assert [(each.first, each.end) for each in hw.retain("t")] == [(3, 6)]
    assert offsets(hw) == [6, 7, 8, 9]


def test_when_all_events_are_too_old_the_active_segment_goes_and_offsets_go_on(hw: Store, clock: SetClock) -> None:
    fill(hw, 1)
    last = hw.append("t", b"old")
    clock.pass_ms(HOUR + 1)
    would = hw.retain("t", retention_age_ms=HOUR, dry_run=True)
    assert [(each.first, each.end) for each in would] == [(0, 3), (3, 4)]
    assert hw.retain("t") == []  # nothing was changed
    assert [(each.first, each.end) for each in hw.retain("t", retention_age_ms=HOUR)] == [(0, 3), (3, 4)]
    assert (hw.describe("t").partitions[0].start, offsets(hw)) == (4, [])
    assert hw.retain("t") == []
    clock.now = 0
    assert hw.append("t", b"new").ticks > last.ticks
    assert offsets(hw) == [4]


def test_a_young_event_keeps_the_active_segment(hw: Store, clock: SetClock) -> None:
    hw.append("t", b"old")
    clock.pass_ms(HOUR + 1)
    hw.append("t", b"young")
    assert hw.retain("t", retention_age_ms=HOUR) == []
    assert bases(hw) == [0]


def test_before_deletes_what_ends_before_a_place_once(hw: Store, clock: SetClock) -> None:
    for _ in range(4):
        fill(hw, 1)
        clock.pass_ms(HOUR)
    assert [each.end for each in hw.retain("t", before=5, dry_run=True)] == [3]
    assert [each.end for each in hw.retain("t", before=6)] == [3, 6]
    assert "retention_bytes" not in hw.describe("t").settings
    third = list(hw.read("t"))[2]
    assert hw.retain("t", before=third.time) == []
    assert [each.end for each in hw.retain("t", before=third.time + timedelta(microseconds=1))] == [9]
    assert [each.end for each in hw.retain("t", before=time_of(clock.now + 10**12))] == [12]
    assert bases(hw) == [12]


def test_before_needs_the_partition_of_an_offset(hw: Store) -> None:
    hw.create("p", partitions=2)
    with pytest.raises(Invalid, match="applies to only one"):
        hw.retain("p", before=1)
    for partition in (0, 1):
        hw.append("p", DATA, partition=partition)
        hw.directory._topics.live("p").logs[partition].roll(tell=False)
    assert [(each.partition, each.end) for each in hw.retain("p", before=1, partition=1)] == [(1, 1)]
    assert [(each.partition, each.end) for each in hw.retain("p", retention_segments=1)] == [(0, 1)]
    with pytest.raises(Invalid, match="neither"):
        hw.retain("p", before="earliest")  # type: ignore[arg-type]


def test_a_topic_is_made_with_what_it_keeps_and_other_settings_do_not_change(hw: Store) -> None:
    hw.create("t", segment_bytes=SEGMENT_BYTES, retention_age_ms=5, retention_consumers=True)
    hw.retain("t", retention_bytes=10, retention_age_ms=0)
    settings = {"segment_bytes": SEGMENT_BYTES, "retention_consumers": True, "retention_bytes": 10}
    assert hw.describe("t").settings == settings
    with pytest.raises(TypeError, match="segment_bytes"):
        hw.retain("t", segment_bytes=1)  # type: ignore[call-arg]
    for wrong in ({"retention_bytes": -1}, {"overflow": "explode"}, {"overflow": "refuse"}):
        with pytest.raises(Invalid):
            hw.retain("t", **wrong)
    assert hw.describe("t").settings == settings
    with pytest.raises(NotFound):
        hw.retain("missing", retention_bytes=1)


# At each roll


def test_each_roll_deletes_what_is_too_much_in_every_process_from_its_next_roll_on(open_engine: Open) -> None:
    one, other = open_engine(), open_engine()
    one.create("t", segment_bytes=SEGMENT_BYTES)
    for _ in range(9):
        one.append("t", DATA, durability="os")
    other.retain("t", retention_segments=2)
    assert one.describe("t").settings["retention_segments"] == 2
    for _ in range(9):
        one.append("t", DATA, durability="os")
    one.close()  # which waits for what the background thread has to delete
    assert bases(other) == [12, 15]
    assert offsets(other) == list(range(12, 18))


def test_a_deletion_that_fails_in_the_background_is_told_and_tried_at_the_next_roll(
    open_engine: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hw = open_engine()
    hw.create("t", segment_bytes=SEGMENT_BYTES, retention_segments=2)
    tried = threading.Event()

    def fail(_: object) -> None:
        tried.set()
        raise PermissionError(13, "no")

    monkeypatch.setattr(hw.directory.disk, "unlink", fail)
    for _ in range(10):
        hw.append("t", DATA, durability="os")
    assert tried.wait(20)
    monkeypatch.undo()
    for _ in range(3):
        hw.append("t", DATA, durability="os")
    hw.close()
    assert "could not delete old events" in caplog.text
    assert bases(open_engine()) == [9, 12]


# Consumers


def consumer_at(hw: Store, cursor: int | None) -> None:
    hw.directory._keeper.slowest = lambda _topic, _partition: cursor


def append_for_ever(hw: Store) -> None:
    for _ in range(100):
        hw.append("t", DATA)


def test_what_the_slowest_consumer_has_not_passed_is_kept(hw: Store) -> None:
    fill(hw, 4)
    asked: list[tuple[str, int]] = []

    def slowest(topic: TopicRecord, partition: int) -> int:
        asked.append((topic.name, partition))
        return 5

    hw.directory._keeper.slowest = slowest
    assert [each.end for each in hw.retain("t", retention_segments=1, retention_consumers=True)] == [3]
    assert asked == [("t", 0)]
    assert hw.retain("t", before=12) == []
    consumer_at(hw, 6)
    assert [each.end for each in hw.retain("t")] == [6]
    consumer_at(hw, None)
    assert [each.end for each in hw.retain("t")] == [9, 12]


def test_consumers_keep_nothing_unless_the_topic_says_so(hw: Store) -> None:
    fill(hw, 3)
    consumer_at(hw, 0)
    assert [each.end for each in hw.retain("t", retention_segments=1)] == [3, 6, 9]


def test_an_old_active_segment_that_a_consumer_has_not_passed_stays(hw: Store, clock: SetClock) -> None:
    fill(hw, 1)
    hw.append("t", b"unread")
    clock.pass_ms(HOUR + 1)
    consumer_at(hw, 3)
    options: dict[str, Any] = {"retention_age_ms": HOUR, "retention_consumers": True}
    assert [each.end for each in hw.retain("t", **options)] == [3]
    assert bases(hw) == [3]
    consumer_at(hw, 4)
    assert [each.end for each in hw.retain("t")] == [4]


def test_at_the_hard_bound_the_oldest_goes_although_it_was_not_read(hw: Store) -> None:
    fill(hw, 4)
    consumer_at(hw, 1)
    options: dict[str, Any] = {"retention_segments": 1, "retention_consumers": True}
    assert hw.retain("t", **options, retention_bytes_hard=100_000) == []
    assert [each.end for each in hw.retain("t", retention_bytes_hard=7000)] == [3, 6]
    assert_gone(lambda: offsets(hw, start=1), oldest=6)


def test_a_full_log_refuses_until_its_consumers_have_caught_up(open_engine: Open) -> None:
    one, other = open_engine(), open_engine()
    one.create("t", segment_bytes=SEGMENT_BYTES, retention_consumers=True, retention_bytes_hard=9000, overflow="refuse")
    for engine in (one, other):
        consumer_at(engine, 1)
    with pytest.raises(Unavailable, match="is full") as error:
        append_for_ever(one)
    assert error.value.code == "log_full"
    assert "catch up" in error.value.hint
    assert (error.value.maximum, error.value.bytes > 9000) == (9000, True)
    assert one.describe("t").events == 9  # three segments of three: the third goes over the bound
    with pytest.raises(Unavailable, match="is full"):
        other.append("t", DATA)
    assert one.append("t", b"small: it needs no new segment").offset == 9
    assert only_log(one).state().state == 0
    assert offsets(other) == list(range(10))
    consumer_at(one, 4)
    assert one.append("t", DATA).offset == 10
    one.close()  # which waits for the background thread
    assert bases(other) == [3, 6, 10]


def test_a_full_log_without_consumers_is_refused_until_somebody_deletes(hw: Store) -> None:
    hw.create("t", segment_bytes=SEGMENT_BYTES, retention_bytes_hard=5000, overflow="refuse")
    with pytest.raises(Unavailable, match="headwater retain"):
        append_for_ever(hw)
    assert offsets(hw) == list(range(6))
    assert hw.retain("t") == []
    hw.retain("t", before=3)
    assert hw.append("t", DATA).offset == 6


# Readers


@pytest.mark.parametrize("sealed", [False, True])
def test_readers_in_other_processes_are_told_that_what_they_want_is_gone(open_engine: Open, sealed: bool) -> None:
    writer, reader = open_engine(), open_engine()
    fill(writer, 4)
    if sealed:
        writer.seal("t")
    assert offsets(reader) == list(range(12))  # it has all segments open
    log = only_log(reader)
    beginning, middle = log.cursor(0), log.cursor(4)
    follower = reader.follow("t", start=0, timeout=0)
    early = [next(follower).offset, next(beginning.batches(12)).base_offset, next(middle.batches(12)).end_offset]
    assert early[:2] == [0, 0]
    backwards = reader.read("t", reverse=True)
    assert next(backwards).offset == 11
    batch = next(reader.read_batches("t"))
    writer.retain("t", before=6)
    for start in (0, 3, 5):
        assert_gone(lambda: offsets(reader, start=start), oldest=6)  # noqa: B023
        assert_gone(lambda: list(reader.follow("t", start=start, timeout=0)), oldest=6)  # noqa: B023
    assert offsets(reader) == list(range(6, 12))
    writer.retain("t", before=9)
    assert log.start() == reader.describe("t").partitions[0].start == 9
    assert_gone(lambda: list(beginning.batches(12)), oldest=9)
    assert beginning.offset <= 3
    assert_gone(lambda: list(middle.batches(12)), oldest=9)
    assert middle.offset == 6  # it held the file, and read it to its end
    assert_gone(lambda: list(follower), oldest=9)
    seen: list[int] = []
    assert_gone(lambda: seen.extend(event.offset for event in backwards), oldest=9)
    assert seen == [10, 9]
    assert {event.data for event in batch.events()} == {DATA}


def test_a_time_or_id_before_the_oldest_is_the_oldest(open_engine: Open, clock: SetClock) -> None:
    writer, reader = open_engine(), open_engine()
    for _ in range(3):
        fill(writer, 1)
        clock.pass_ms(HOUR)
    first = next(reader.read("t"))
    writer.retain("t", retention_segments=2)
    assert offsets(reader, start=first.time) == offsets(reader, start=first.id) == [6, 7, 8]
    assert offsets(reader, start=datetime(2000, 1, 1, tzinfo=UTC)) == [6, 7, 8]


def test_a_range_backwards_below_the_oldest_is_gone(hw: Store) -> None:
    fill(hw, 3)
    hw.retain("t", before=6)
    assert_gone(lambda: offsets(hw, start=1, end=3, reverse=True), oldest=6)
    assert offsets(hw, start=3, end=3, reverse=True) == []
    assert offsets(hw, start=6, reverse=True) == [8, 7, 6]


def test_a_reader_whose_whole_log_was_replaced_meanwhile_is_told(open_engine: Open, clock: SetClock) -> None:
    writer, reader = open_engine(), open_engine()
    fill(writer, 1)
    cursor, log = only_log(reader).cursor(0), only_log(reader)
    stale = log.state()
    clock.pass_ms(HOUR + 1)
    writer.append("t", b"old")
    clock.pass_ms(HOUR + 1)
    writer.retain("t", retention_age_ms=HOUR)
    writer.append("t", b"new")
    assert_gone(lambda: log._reader.segment(stale.segment, stale), oldest=4)
    assert_gone(lambda: log._reader.base_of(0, stale), oldest=4)
    assert retention.survey(log.place, stale) == []
    assert_gone(lambda: list(cursor.batches(5)), oldest=4)
    assert log.start() == 4
    assert log.offset_at(0) == 4


def test_what_is_told_of_a_log_that_retention_shortens_meanwhile_fits_together(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = open_engine(), open_engine()
    fill(writer, 2)
    log = only_log(reader)

    def shorten_before(look: Callable[[], Any]) -> Callable[[], Any]:
        def looked() -> Any:
            fill(writer, 3)
            writer.retain("t", retention_segments=2)
            return look()

        return looked

    for name in ("start", "local_start", "state"):
        with monkeypatch.context() as patched:
            patched.setattr(log, name, shorten_before(getattr(log, name)))
            [told] = reader.describe("t").partitions
        assert told.start <= (told.local or told.start) <= told.end
        assert told.finished is not None
        assert told.start <= told.finished <= told.end


def test_a_huge_event_of_a_deleted_segment_is_gone_and_not_corrupt(open_engine: Open) -> None:
    limits = Limits(blob_bytes_min=2000, blob_bytes_in_memory=3000)
    writer, reader = open_engine(limits), open_engine(limits)
    for size in (2500, 5000):
        writer.append("t", b"h" * size)
    fill(writer, 1)
    small, huge = list(reader.read("t"))[:2]
    batches = reader.read_batches("t")
    waiting = [next(batches), next(batches)]
    writer.retain("t", before=5)
    assert (small.data, huge.data) == (b"h" * 2500, None)
    assert_gone(lambda: list(huge.chunks()), oldest=5)
    assert_gone(waiting[0].events, oldest=5)


def test_a_segment_that_somebody_took_away_by_hand_is_not_called_deleted(hw: Store) -> None:
    fill(hw, 4)
    assert offsets(hw, start=11) == [11]
    os.unlink(only_log(hw).place.segment(6))
    with pytest.raises(HeadwaterError) as error:
        offsets(hw)
    assert error.value.code != "offset_gone"


# Together with sealing, deleting and repairing


def all_due(log: LocalLog, keep: int) -> list[retention.SegmentFiles]:
    return retention.survey(log.place, log.state())[:-keep]


def test_a_segment_that_is_being_sealed_is_not_deleted_under_it(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hw.create("t", segment_bytes=1 << 20)
    for _ in range(600):
        hw.append("t", b"small", durability="os")
    log = only_log(hw)
    log.roll(tell=False)
    outcomes = []

    def delete_now() -> None:
        outcomes.append(retention.delete(log.place, all_due(log, 1), wait=False))

    def build_index(*args: Any) -> Index:
        delete_now()
        return make_index(*args)

    make_index = sealer.build_index
    monkeypatch.setattr(sealer, "build_index", build_index)
    assert sealer.seal(log.place, 0, delete_now)
    assert len(outcomes) > 3  # while it packs, and while the packed one gets its index
    assert outcomes == [[]] * len(outcomes)
    assert names(hw)[:2] == [file_of(0, "index"), file_of(0, "log")]
    assert [each.end for each in retention.delete(log.place, all_due(log, 1), wait=False)] == [600]
    with pytest.raises(FileNotFoundError):
        sealer.seal(log.place, 0)
    assert [name for name in names(hw) if not name.startswith(("lock", "tail"))] == [
        file_of(600, "log"),
        file_of(600, "oldest"),
    ]


def test_sealers_and_deleters_at_once_leave_no_gap(open_engine: Open) -> None:
    sealers, deleters = [open_engine(), open_engine()], [open_engine(), open_engine()]
    hw = open_engine()
    hw.create("t", segment_bytes=SEGMENT_BYTES)
    errors: list[BaseException] = []
    stop = threading.Event()

    def repeat(work: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  (the test must hear of everything)
            errors.append(error)

    def seal_now(engine: Store) -> None:
        for base in sealer.unsealed(log.place, log.state().segment):
            try:
                sealer.seal(engine.directory._topics.live("t").logs[0].place, base)
            except FileNotFoundError:
                continue

    log = only_log(hw)
    works = [lambda engine=engine: seal_now(engine) for engine in sealers]
    works += [lambda engine=engine: engine.retain("t", before=max(0, log.end() - 20)) for engine in deleters]
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for _ in range(400):
        for _ in range(3):
            hw.append("t", b"some data", durability="os")
        log.roll(tell=False)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert log.start() > 0
    hw.retain("t", before=1180)
    start = log.start()
    assert start == 1179
    assert offsets(hw) == list(range(start, 1200))
    assert not hw.check("t").damaged
    retention.sweep(log.place)
    assert {name.partition(".")[0] for name in names(hw) if name[0] == "0"} == {
        file_of(base, "")[:-1] for base in bases(hw)
    }


def test_a_plan_for_a_topic_that_was_deleted_does_not_touch_its_successor(hw: Store) -> None:
    fill(hw, 3)
    log = only_log(hw)
    plan = all_due(log, 1)
    hw.delete("t")
    assert retention.delete(log.place, plan, wait=False) == []
    hw.append("t", b"h" * 5000)
    fill(hw, 3)
    with pytest.raises(NotFound, match="was deleted"):
        retention.delete(log.place, plan, wait=False)
    with pytest.raises(NotFound, match="was deleted"):
        hw.directory._keeper.rolled(log.place)
    retention._remove_rest(log.place, 0)
    assert offsets(hw) == list(range(10))
    assert bases(hw) == [0, 4, 7, 10]


def test_a_segment_with_a_damaged_header_goes_like_any_other(hw: Store) -> None:
    fill(hw, 3)
    path = only_log(hw).place.segment(3)
    path.write_bytes(b"damaged!" + path.read_bytes()[8:])
    assert [each.end for each in hw.retain("t", retention_segments=1)] == [3, 6, 9]


def test_an_age_that_cannot_be_told_keeps_the_segment(hw: Store, clock: SetClock) -> None:
    fill(hw, 3)
    clock.pass_ms(HOUR + 1)
    path = only_log(hw).place.segment(6)
    path.write_bytes(b"damaged!" + path.read_bytes()[8:])
    assert [each.end for each in hw.retain("t", retention_age_ms=HOUR)] == [3]


def test_what_a_crash_left_of_a_deleted_segment_is_no_damage_and_swept_at_the_next_roll(hw: Store) -> None:
    hw.create("t", segment_bytes=SEGMENT_BYTES)
    fill(hw, 2)
    hw.append("t", b"h" * 3000)
    fill(hw, 1)
    hw.seal("t")
    place = only_log(hw).place
    cut = place.keep(3, 64, b"cut")
    place.mark(place.segments()[3])
    for base in (0, 3, 6):
        os.unlink(place.segment(base))
    report = hw.check("t")
    assert not report.damaged
    left = {Path(found.path).name: found.problem for found in report.findings}
    assert set(left) == {file_of(base, "index") for base in (0, 3, 6)} | {file_of(6, "blobs"), cut.name}
    assert "left over from a deleted segment" in left[file_of(6, "blobs")]
    assert hw.repair("t") == hw.repair("t", apply=True) == []
    for _ in range(4):
        hw.append("t", DATA)
    hw.close()
    assert [name for name in os.listdir(place.path) if name < file_of(7, "")] == []


def test_check_and_repair_take_a_log_that_begins_late(hw: Store) -> None:
    fill(hw, 4)
    hw.seal("t")
    hw.retain("t", before=6)
    assert hw.check("t").findings == []
    assert hw.repair("t") == []
    path = only_log(hw).place.segment(6)
    path.write_bytes(path.read_bytes()[:100] + b"?" + path.read_bytes()[101:])
    assert hw.check("t").damaged
    assert hw.repair("t", apply=True)
    assert not hw.check("t").damaged
    assert offsets(hw)[-3:] == [9, 10, 11]
    assert hw.describe("t").partitions[0].start == 6


def test_a_segment_deleted_while_it_is_checked_is_no_damage(hw: Store) -> None:
    hw.append("t", b"h" * 5000)
    fill(hw, 3)
    assert not hw.check("t").damaged
    disk, done = only_log(hw).place.disk, list[Path]()
    open_read = disk.open_read

    def open_after_deleting(path: Path) -> int:
        if path.suffix == ".blob" and not done:
            done.append(path)
            hw.retain("t", before=4)
        return open_read(path)

    disk.open_read = open_after_deleting  # type: ignore[method-assign]
    report = hw.check("t")
    assert done
    assert [found for found in report.findings if found.damage] == []


def test_a_log_with_no_bounds_is_not_even_looked_at() -> None:
    assert not Rules(TopicSettings(retention_consumers=True), 5).bounded
    assert not Rules(TopicSettings(retention_bytes_hard=5, overflow="refuse")).bounded
    assert Rules(TopicSettings(retention_bytes_hard=5)).bounded
    assert Rules(TopicSettings(), before=1).bounded

"""Who sleeps while a log is compacted, trimmed and collected: each race is built, step by step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.bucket.bucket import partition_info
from headwater.errors import NotFound
from tests.bucket.stage import Killed, Opened, Stage, datas

EVENTS = "/events/"
SLEEP_S = 10_000.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def overtake(other: Opened, *data: bytes) -> None:
    """Append, compact all of it, and let the objects be collected: their places are free."""
    other.append(*data)
    other.compact()
    other.collect_all()
    assert other.objects() == []


# Writers


def test_a_writer_that_slept_from_its_look_to_its_put_appends_at_the_real_end_once(stage: Stage) -> None:
    writer, other = stage.open(), stage.open()
    writer.append(b"a")
    with (
        writer.store.before("create", EVENTS, lambda: overtake(other, b"b", b"c")),
        writer.store.after("create", EVENTS, lambda: ghosts.extend(other.objects())),
    ):
        ghosts: list[int] = []
        assert writer.append(b"late") == [3]
    assert ghosts == [1]  # it was put in a place that had been freed
    assert writer.objects() == [3]
    for reader in (writer, other, stage.open()):
        assert reader.read() == [b"a", b"b", b"c", b"late"]


def test_a_writer_on_a_machine_that_was_suspended_does_not_believe_its_counting_clock(stage: Stage) -> None:
    writer, other = stage.open(), stage.open()
    writer.append(b"a")

    def suspended() -> None:
        before = stage.clock.now_s
        overtake(other, b"b")
        stage.clock.suspended_s += stage.clock.now_s - before

    with writer.store.before("create", EVENTS, suspended):
        assert writer.append(b"late") == [2]
    assert stage.open().read() == [b"a", b"b", b"late"]


def test_a_writer_whose_other_thread_has_looked_meanwhile_does_not_take_that_for_its_own_look(stage: Stage) -> None:
    writer, other = stage.open(), stage.open()
    writer.append(b"a")

    def slept() -> None:
        overtake(other, b"b")
        looking = threading.Thread(target=writer.knowledge.look)
        looking.start()
        looking.join()

    with writer.store.before("create", EVENTS, slept):
        assert writer.append(b"late") == [2]
    assert writer.objects() == [2]
    assert stage.open().read() == [b"a", b"b", b"late"]


def test_a_writer_that_slept_while_the_log_was_trimmed_appends_at_the_real_end(stage: Stage) -> None:
    writer, other = stage.open(), stage.open()
    writer.append(b"a")

    def slept() -> None:
        other.append(b"b", b"c")
        other.compact()
        other.trim(3)
        other.collect_all()

    with writer.store.before("create", EVENTS, slept):
        assert writer.append(b"late") == [3]
    assert (writer.objects(), writer.segments()) == ([3], [])
    assert stage.open().read() == [b"late"]


def test_a_writer_whose_first_put_landed_unheard_finds_it_in_the_segment(stage: Stage) -> None:
    """Its answer was lost, the object compacted and deleted; then the repeated request found the place free."""
    writer, other = stage.open(), stage.open()
    writer.append(b"a")

    def slept() -> None:
        other.append(b"b")
        other.compact()
        other.collect_all()

    with writer.store.losing("create", EVENTS), writer.store.before("get", EVENTS, slept):
        assert writer.append(b"once") == [1]
    assert stage.open().read() == [b"a", b"once", b"b"]
    assert writer.append(b"c") == [3]


def test_a_writer_whose_put_landed_unheard_finds_it_also_behind_the_ghost_of_another(stage: Stage) -> None:
    writer, other = stage.open(), stage.open()
    writer.append(b"a")

    def slept() -> None:
        overtake(other, b"b")
        other.ghost(1, b"ghost")

    with writer.store.losing("create", EVENTS), writer.store.before("get", EVENTS, slept):
        assert writer.append(b"once") == [1]
    assert stage.open().read() == [b"a", b"once", b"b"]


def test_a_ghost_whose_writer_died_is_collected_and_nobody_reads_it(stage: Stage) -> None:
    writer, other = stage.open(), stage.open()
    writer.append(b"a")

    def die() -> None:
        raise RuntimeError("dead")

    with (
        writer.store.before("create", EVENTS, lambda: overtake(other, b"b", b"c")),
        writer.store.after("create", EVENTS, die),
        pytest.raises(Exception, match="dead"),
    ):
        writer.append(b"ghost")
    assert other.objects() == [1]
    assert other.append(b"d") == [3]
    for reader in (other, stage.open()):
        assert reader.read() == [b"a", b"b", b"c", b"d"]
    assert other.compact() == 1
    assert stage.open().read() == [b"a", b"b", b"c", b"d"]
    other.collect_all()
    assert other.objects() == []


# Readers


def test_a_reader_that_slept_in_a_catch_up_goes_on_in_segments(stage: Stage) -> None:
    reader, other = stage.open(cache_bytes=0), stage.open()
    data = [b"%d" % number for number in range(20)]
    other.append(*data)
    batches = reader.log.batches(0, reader.log.end())
    found = datas(next(batches))
    other.compact()
    other.collect_all()
    assert other.objects() == []
    for batch in batches:
        found += datas(batch, len(found))
    assert found == data


def test_a_reader_whose_next_offset_was_trimmed_is_told_so(stage: Stage) -> None:
    reader, other = stage.open(cache_bytes=0), stage.open()
    other.append(*[b"%d" % number for number in range(20)])
    batches = reader.log.batches(0, reader.log.end())
    next(batches)
    other.compact()
    other.trim(20)
    other.append(b"new")
    other.collect_all()
    with pytest.raises(NotFound) as told:
        list(batches)
    assert (told.value.code, told.value.facts["oldest"]) == ("offset_gone", 20)


@pytest.mark.parametrize("look", ["start", "state", "batches"])
def test_what_is_told_of_a_log_that_is_trimmed_meanwhile_fits_together(
    stage: Stage, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, other = stage.open(cache_bytes=0), stage.open()
    other.append(b"old")
    looked = getattr(reader.log, look)

    def trimmed(*place: int) -> object:
        other.append(*[b"%d" % number for number in range(20)])
        other.compact()
        other.trim(other.log.end())
        other.collect_all()
        reader.log.chain.knowledge.look()
        return looked(*place)

    monkeypatch.setattr(reader.log, look, trimmed)
    told = partition_info(reader.log)
    assert told.start <= told.end


@pytest.mark.parametrize("looked", [False, True], ids=["alone", "another thread looked"])
def test_a_reader_that_stopped_before_its_get_does_not_hand_out_a_ghost(stage: Stage, looked: bool) -> None:
    reader, other = stage.open(cache_bytes=0), stage.open()
    other.append(b"a", b"b", b"c")
    assert reader.log.end() == 3

    def slept() -> None:
        overtake(other, b"d")
        other.ghost(1, b"ghost")
        if looked:
            looking = threading.Thread(target=reader.knowledge.look)
            looking.start()
            looking.join()

    with reader.store.before("get", other.place.events_at(1), slept):
        assert reader.read(1) == [b"b", b"c", b"d"]  # a segment has them in one batch
    assert reader.read() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("looked", [False, True], ids=["alone", "another thread looked"])
def test_a_follower_that_slept_before_its_look_at_the_end_does_not_take_a_ghost_for_it(
    stage: Stage, looked: bool
) -> None:
    reader, other = stage.open(), stage.open()
    other.append(b"a")
    assert reader.log.end() == 1

    def slept() -> None:
        overtake(other, b"b")
        other.ghost(1, b"ghost", reader.log.chain.tip.nonce)
        if looked:
            looking = threading.Thread(target=reader.knowledge.look)
            looking.start()
            looking.join()

    with reader.store.before("get", EVENTS, slept):
        assert reader.log.end() == 2
    assert reader.log.chain.tip.nonce == other.knowledge.look().compacted.nonce
    assert reader.append(b"c") == [2]
    assert stage.open().read() == reader.read() == [b"a", b"b", b"c"]


def test_what_was_compacted_stays_for_a_slow_reader_until_nobody_can_believe_in_it(stage: Stage) -> None:
    reader, other = stage.open(cache_bytes=0), stage.open()
    other.append(b"a", b"b", b"c")
    batches = reader.log.batches(0, reader.log.end())
    found = datas(next(batches))
    other.compact()
    for _ in range(3):
        other.collect()
        stage.clock.now_s += stage.limits.collect_s / 3 - 1
    assert other.objects() == [0, 1, 2]
    for batch in batches:
        found += datas(batch, len(found))
    assert found == [b"a", b"b", b"c"]
    stage.clock.now_s += 10
    other.collect()
    assert other.objects() == []


def test_a_segment_that_was_merged_stays_until_nobody_can_believe_in_it(stage: Stage) -> None:
    reader, other = stage.open(cache_bytes=0), stage.open()
    other.append(b"a", b"b", b"c")
    other.compact()
    stage.clock.now_s += SLEEP_S
    other.collect_all()
    assert reader.read() == [b"a", b"b", b"c"]
    other.append(b"d", b"e", b"f")
    other.compact()
    assert len(other.knowledge.look().segments) == 1
    other.collect()
    assert len(other.segments()) == 2
    assert reader.read(0)[:3] == [b"a", b"b", b"c"]
    other.collect_all()
    assert len(other.segments()) == 1


# Compactors and collectors


def test_of_two_compactors_one_wins_and_the_other_takes_its_segment_away(stage: Stage) -> None:
    one, two = stage.open(), stage.open()
    one.append(b"a", b"b", b"c")
    with one.store.before("get", "/meta/", lambda: None), one.store.after("put", "/segments/", two.compact):
        assert one.compact() == 0
    assert len(one.segments()) == 1
    assert stage.open().read() == [b"a", b"b", b"c"]


def test_a_compactor_that_is_overtaken_by_retention_names_nothing_that_was_trimmed(stage: Stage) -> None:
    one, two = stage.open(), stage.open()
    one.append(b"a", b"b", b"c")
    one.compact()
    one.append(b"d")

    def overtaken() -> None:
        two.trim(3)

    with one.store.after("put", "/segments/", overtaken):
        one.compact()
    meta = one.knowledge.look()
    assert (meta.trim.offset, [(each.base, each.end) for each in meta.segments]) == (3, [(3, 4)])
    assert stage.open().read() == [b"d"]
    one.collect_all()
    one.collect_all()
    assert len(one.segments()) == 1


@pytest.mark.parametrize(
    ("verb", "part", "done"),
    [("put", "/segments/", False), ("put", "/segments/", True), ("swap", "/meta/", False), ("swap", "/meta/", True)],
)
def test_a_compactor_may_be_killed_anywhere(stage: Stage, verb: str, part: str, done: bool) -> None:
    victim, other = stage.open(), stage.open()
    victim.append(b"a", b"b", b"c")

    def die() -> None:
        raise Killed

    hooked = victim.store.after if done else victim.store.before
    with hooked(verb, part, die), pytest.raises(Killed):
        victim.compact()
    assert other.append(b"d") == [3]
    assert other.read() == [b"a", b"b", b"c", b"d"]
    other.compact()
    assert stage.open().read() == [b"a", b"b", b"c", b"d"]
    for _ in range(3):
        other.collect_all()
    meta = other.knowledge.look()
    assert [other.place.segment(each.base, each.end, each.nonce) for each in meta.segments] == [
        other.place.segments + each for each in other.segments()
    ]
    assert stage.open().read() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(("verb", "part"), [("delete", EVENTS), ("delete", "/segments/"), ("swap", "/meta/")])
def test_a_collector_may_be_killed_anywhere(stage: Stage, verb: str, part: str) -> None:
    victim, other = stage.open(), stage.open()
    other.append(b"a", b"b")
    other.compact()
    other.append(b"c", b"d")
    other.compact()  # merges, so that a segment is superfluous, too
    assert len(other.segments()) == 2
    stage.clock.now_s += SLEEP_S
    victim.collect()
    stage.clock.now_s += SLEEP_S
    other.append(b"e")
    other.compact()

    def die() -> None:
        raise Killed

    with victim.store.before(verb, part, die), pytest.raises(Killed):
        victim.collect()
    assert stage.open().read() == [b"a", b"b", b"c", b"d", b"e"]
    stage.clock.now_s += SLEEP_S
    other.collect_all()
    other.collect_all()
    assert (other.objects(), len(other.segments())) == ([], len(other.knowledge.look().segments))
    assert stage.open().read() == [b"a", b"b", b"c", b"d", b"e"]


def test_a_compactor_that_slept_until_its_segment_was_collected_does_not_have_it_named(stage: Stage) -> None:
    sleeper, other = stage.open(), stage.open()
    sleeper.append(b"a", b"b", b"c")

    def slept() -> None:
        stage.clock.now_s += SLEEP_S
        other.collect_all()
        assert other.segments() == []
        stage.clock.now_s += SLEEP_S
        other.append(b"d")
        other.collect_all()  # its mark does not name that segment any more

    with sleeper.store.after("put", "/segments/", slept):
        sleeper.compact()
    assert stage.open().read() == [b"a", b"b", b"c", b"d"]


def test_a_collector_does_not_take_the_segment_of_a_compactor_that_is_at_it(stage: Stage) -> None:
    compactor, other = stage.open(), stage.open()
    compactor.append(b"a", b"b")
    compactor.compact()
    compactor.append(b"c", b"d")
    with compactor.store.after("put", "/segments/", other.collect):
        compactor.compact()
    other.collect_all()
    assert stage.open().read() == [b"a", b"b", b"c", b"d"]


def test_two_collectors_are_harmless(stage: Stage) -> None:
    one, two = stage.open(), stage.open()
    one.append(b"a", b"b")
    one.compact()
    one.collect()
    stage.clock.now_s += SLEEP_S
    with one.store.before("delete", EVENTS, lambda: overtake(two, b"c")):
        one.collect()
    assert stage.open().read() == [b"a", b"b", b"c"]
    assert one.objects() == []


def test_a_collector_that_slept_does_not_set_the_mark_back(stage: Stage) -> None:
    """It would make others believe in places that are free."""
    sleeper, other, writer = stage.open(), stage.open(), stage.open()
    writer.append(b"a")
    sleeper.compact()
    with sleeper.store.before("swap", "/meta/", lambda: overtake(other, b"b", b"c")):
        sleeper.collect()
    assert sleeper.knowledge.look().mark.offset == 3
    with writer.store.before("create", EVENTS, lambda: overtake(other, b"d")):
        assert writer.append(b"late") == [4]


def test_a_lost_answer_to_the_swap_does_not_make_a_second_segment(stage: Stage) -> None:
    compactor = stage.open()
    compactor.append(b"a", b"b", b"c")
    with compactor.store.losing("swap", "/meta/"):
        assert compactor.compact() == 1
    assert len(compactor.segments()) == 1
    assert stage.open().read() == [b"a", b"b", b"c"]


def test_a_segment_whose_swap_was_answered_too_late_stays_for_those_who_believe_in_it(stage: Stage) -> None:
    """It was named, the answer was lost, and it was merged with others since: a reader may be about to fetch it."""
    compactor, other, reader = stage.open(), stage.open(), stage.open(cache_bytes=0)
    compactor.append(b"a", b"b", b"c")

    def merged() -> None:
        assert reader.read(2) == [b"c"]
        other.append(b"d", b"e", b"f")
        other.compact()
        assert len(other.knowledge.meta().segments) == 1

    with compactor.store.losing("swap", "/meta/"), compactor.store.after("swap", "/meta/", merged):
        compactor.compact()
    assert len(compactor.segments()) == 2
    with reader.store.before("get", "/meta/", pytest.fail):
        pass_by = reader.log.batches(0, 3)
        assert [each for batch in pass_by for each in datas(batch)] == [b"a", b"b", b"c"]
        reader.store._hooks.clear()
    stage.clock.now_s += SLEEP_S
    other.collect_all()
    assert len(other.segments()) == 1

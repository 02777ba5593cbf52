"""Publishing what was staged: once, whatever dies. No session is needed for that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.disk.disk import Clock, Disk
from headwater.errors import Conflict, Corrupt, NotFound
from headwater.event import UNIX_EPOCH_TICKS, Refs
from headwater.format.producers import ProducerAnswer, ProducerState
from headwater.limits import DEFAULTS
from headwater.requests import AppendMany
from headwater.spark.writing import publishing, spreading
from headwater.spark.writing.publishing import publish
from headwater.spark.writing.staging import ORPHAN_S, StagedWrite, StagingArea
from tests.server.serving import serving
from tests.spark.staged import (
    Dies,
    Steps,
    dying_log,
    files,
    manifests,
    numbers_of,
    opened,
    rows,
    stage,
    staging_at,
)

if TYPE_CHECKING:
    from headwater.store import Store

QUERY = "8f1d3c5a-7b9e-4246-8ace-13579bdf0246"
DAY_TICKS = 86_400 * 10_000_000


class Later(Clock):
    """A clock that is so many days ahead."""

    def __init__(self, days: float) -> None:
        self._ahead = int(days * DAY_TICKS)

    def ticks(self) -> int:
        return super().ticks() + self._ahead


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few events are many requests of a producer, more than a log keeps the answers of, one after the other."""
    monkeypatch.setattr(publishing, "PARTITIONS_AT_ONCE", 1)
    monkeypatch.setattr(spreading, "CHUNK_EVENTS", 2)


@pytest.fixture(params=["directory", "bucket", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A log with the topic `orders` of three partitions, wherever it is."""
    if request.param == "server":
        with serving(tmp_path / "served") as server:
            yield made(server.url)
    else:
        yield made(str(tmp_path / "data") if request.param == "directory" else f"objects://{tmp_path}/bucket")


def made(address: str) -> str:
    with opened(address) as hw:
        hw.create("orders", partitions=3)
    return address


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(made(str(tmp_path / "data")))


def run(address: str, place: Path, write: StagedWrite, numbers: range, steps: Steps) -> None:
    """One run of a batch, from its tasks on, in which the driver dies at a step or does not."""
    half = len(numbers) // 2
    sent = stage(address, write, rows(numbers[:half]), rows(numbers[half:]), staging=str(place))
    with opened(address) as hw:
        dying_log(hw, steps)
        publish(hw, staging_at(place, steps), write, sent)


def test_a_driver_may_die_before_and_after_every_step(address: str, tmp_path: Path) -> None:
    """Where a log is slow, at every third step; the requests of one partition are more than a log keeps answers of."""
    place, expected, at = tmp_path / "place", list[int](), 0
    stride = 3 if "://" in address else 1
    died = True
    while died:
        numbers = range(at * 100, at * 100 + 32)
        write = StagedWrite.of_query(QUERY, at * 2)  # with gaps between the batches
        died = dies(address, place, write, numbers, Steps(at))
        if died:
            run(address, place, write, numbers, Steps())
        expected += numbers
        assert not files(place)
        with opened(address) as hw:
            assert sorted(numbers_of(hw)) == expected
            for partition in range(3):  # in the order of the rows
                there = [int(event.data or b"") for event in hw.read("orders", partition=partition)]
                assert there == sorted(there)
        at += stride
    assert at > 40
    assert manifests(place) == [f"query-{QUERY}.{(at - stride) * 2:020d}"]


def dies(address: str, place: Path, write: StagedWrite, numbers: range, steps: Steps) -> bool:
    try:
        run(address, place, write, numbers, steps)
    except Dies:
        return True
    return False


def test_a_driver_may_die_twice(data: Path) -> None:
    """The second one in the midst of finishing what the first began."""
    write, numbers = StagedWrite.of_query(QUERY, 5), range(32)
    with pytest.raises(Dies):
        run(str(data), data, write, numbers, Steps(9))
    with pytest.raises(Dies):
        run(str(data), data, write, numbers, Steps(15))
    run(str(data), data, write, numbers, Steps())
    with opened(data) as hw:
        assert sorted(numbers_of(hw)) == list(numbers)


def test_a_run_finishes_the_manifest_that_it_finds_and_not_its_own_rows(data: Path) -> None:
    """What a source gives the second time may be cut in another way, or be in another order."""
    write = StagedWrite.of_query(QUERY, 1)
    with pytest.raises(Dies):
        run(str(data), data, write, range(32), Steps(7))
    run(str(data), data, write, range(16, 200), Steps())
    with opened(data) as hw:
        assert sorted(numbers_of(hw)) == list(range(32))
    assert not files(data)


def test_a_batch_that_is_finished_is_not_published_again(data: Path) -> None:
    for _ in range(3):
        run(str(data), data, StagedWrite.of_query(QUERY, 0), range(32), Steps())
    with opened(data) as hw:
        assert sorted(numbers_of(hw)) == list(range(32))
    assert not files(data)


def test_a_batch_of_long_ago_is_not_published_again(data: Path) -> None:
    """A driver that everybody took for dead wakes up, when its batch is not even remembered any more."""
    for batch in (0, 1, 4):
        run(str(data), data, StagedWrite.of_query(QUERY, batch), range(batch * 100, batch * 100 + 32), Steps())
    run(str(data), data, StagedWrite.of_query(QUERY, 0), range(32), Steps())
    with opened(data) as hw:
        assert len(numbers_of(hw)) == len(set(numbers_of(hw))) == 96
    assert manifests(data) == [f"query-{QUERY}.{4:020d}"]
    assert not files(data)


def test_what_is_published_is_durable(data: Path) -> None:
    for write in (StagedWrite.of_query(QUERY, 0), StagedWrite.once()):
        run(str(data), data, write, range(32), Steps())
        with opened(data) as hw:
            assert all(partition.durable == partition.end for partition in hw.describe("orders").partitions)


def test_files_are_synced_where_they_must_outlive_a_crash(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[str]()
    monkeypatch.setattr(Disk, "fdatasync", staticmethod(lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))))
    stage(data, StagedWrite.once(), rows(range(10)))
    assert not any("staging" in path for path in synced)
    stage(data, StagedWrite.of_transaction("t"), rows(range(10)))
    assert any("staging" in path for path in synced)


def test_two_drivers_publish_the_same_batch_at_once(data: Path) -> None:
    write, numbers = StagedWrite.of_query(QUERY, 3), range(32)
    sent = stage(data, write, rows(numbers))
    with opened(data) as hw, opened(data) as other:
        append = hw.backend.append_many
        calls = iter(range(32))

        def overtaken(request: AppendMany) -> Refs:
            if next(calls) == 4:
                assert publish(other, staging_at(data), write, sent) == 32
            return append(request)

        hw.backend.append_many = overtaken  # type: ignore[method-assign]
        assert publish(hw, staging_at(data), write, sent) == 32
        assert sorted(numbers_of(hw)) == list(numbers)


def test_of_two_attempts_of_a_task_one_is_published(data: Path) -> None:
    """A speculative one stages the same rows; Spark names the first that is done, and kills the other, or does not."""
    write = StagedWrite.once()
    wins, loses = stage(data, write, rows(range(32))), stage(data, write, rows(range(32)))
    assert {each.chunk.file for each in wins}.isdisjoint(each.chunk.file for each in loses)
    with opened(data) as hw:
        publish(hw, staging_at(data), write, wins)
        assert sorted(numbers_of(hw)) == list(range(32))
        assert not files(data)
        late = stage(data, write, rows(range(32)))  # it was not killed in time
        aged(data, ORPHAN_S / 86_400 + 1)
        publish(hw, staging_at(data), StagedWrite.once(), [])
        assert sorted(numbers_of(hw)) == list(range(32))
    assert late
    assert not files(data)


def test_queries_and_transactions_do_not_meet(data: Path) -> None:
    for write in (
        StagedWrite.of_query("a", 0),
        StagedWrite.of_query("b", 0),
        StagedWrite.of_transaction("a"),
        StagedWrite.once(),
    ):
        run(str(data), data, write, range(10), Steps())
    with opened(data) as hw:
        assert sorted(numbers_of(hw)) == sorted([*range(10)] * 4)
    assert not any(name.startswith("once-") for name in manifests(data))


def test_a_failed_run_leaves_what_a_manifest_names(data: Path) -> None:
    write = StagedWrite.of_query(QUERY, 0)
    with pytest.raises(Dies):
        run(str(data), data, write, range(32), Steps(7))
    before = files(data)
    sent = stage(data, write, rows(range(32)))
    publishing.abandon(staging_at(data), write, {each.chunk.file for each in sent})
    assert files(data) == before != []
    publishing.abandon(staging_at(data), write, [f"files/{name}" for name in before])
    assert files(data) == before
    run(str(data), data, write, range(32), Steps())
    with opened(data) as hw:
        assert sorted(numbers_of(hw)) == list(range(32))


def test_a_failed_run_without_a_manifest_leaves_nothing(data: Path) -> None:
    write = StagedWrite.once()
    stage(data, write, rows(range(32)))
    other = stage(data, StagedWrite.of_query(QUERY, 0), rows(range(32)))
    publishing.abandon(staging_at(data), write, [])
    assert files(data) == [each.chunk.file.removeprefix("files/") for each in other[:1]]


def test_what_a_write_without_a_name_left_in_the_midst_is_given_up(data: Path) -> None:
    write = StagedWrite.once()
    with pytest.raises(Dies):
        run(str(data), data, write, range(32), Steps(7))
    publishing.abandon(staging_at(data), write, [])
    assert not files(data)
    assert not manifests(data)


# What cannot be told, or is not there


def old_manifest(data: Path) -> StagedWrite:
    """A batch of which a part was published, by a driver that died then."""
    write = StagedWrite.of_query(QUERY, 0)
    with pytest.raises(Dies):
        run(str(data), data, write, range(32), Steps(7))
    return write


def forgetting(hw: Store, known: int = 0) -> None:
    """Have a log know so many producers, none of whom is ours."""
    others = {f"other-{number}": ProducerState(0, [ProducerAnswer(0, 0, 0, 1)]) for number in range(known)}
    for partition in range(3):
        log = hw.logs.partition_log("orders", partition)
        log.producers = lambda: (0, others)


def test_an_old_manifest_is_not_finished_where_the_log_may_have_forgotten(data: Path) -> None:
    write = old_manifest(data)
    with opened(data) as hw:
        forgetting(hw)
        with pytest.raises(Conflict) as refused:
            publish(hw, staging_at(data, clock=Later(4)), write, [])
    assert refused.value.code == "publishing_unknown"
    assert files(data)


def test_an_old_manifest_is_finished_where_the_log_remembers(data: Path) -> None:
    write = old_manifest(data)
    with opened(data) as hw:
        publish(hw, staging_at(data, clock=Later(4)), write, [])
        assert sorted(numbers_of(hw)) == list(range(32))


def test_an_old_manifest_is_finished_where_nothing_came_since(data: Path) -> None:
    write = StagedWrite.of_query(QUERY, 0)
    with pytest.raises(Dies):
        run(str(data), data, write, range(32), Steps(2))  # the manifest is there, and nothing else
    assert manifests(data)
    with opened(data) as hw:
        forgetting(hw)
        publish(hw, staging_at(data, clock=Later(40)), write, [])
        assert sorted(numbers_of(hw)) == list(range(32))


def test_a_manifest_is_not_finished_where_too_many_producers_came_since(data: Path) -> None:
    write = old_manifest(data)
    with opened(data) as hw:
        forgetting(hw, DEFAULTS.producers_max)
        with pytest.raises(Conflict, match="no longer know"):
            publish(hw, staging_at(data), write, [])


def test_a_topic_that_was_made_anew_gets_nothing_of_the_old_one(data: Path) -> None:
    write = old_manifest(data)
    fresh = StagedWrite.of_query("another", 0)
    sent = stage(data, fresh, rows(range(10)))
    with opened(data) as hw:
        hw.delete("orders")
        hw.create("orders", partitions=3)
        for each, of in ((write, []), (fresh, sent)):
            with pytest.raises(Conflict, match="deleted and recreated"):
                publish(hw, staging_at(data), each, of)
        assert numbers_of(hw) == []


def test_files_that_are_missing_are_found_before_anything_is_published(data: Path) -> None:
    write = StagedWrite.once()
    sent = stage(data, write, rows(range(16)), rows(range(16, 32)))
    staging_at(data).drop_files([sent[-1].chunk.file])
    with opened(data) as hw:
        with pytest.raises(NotFound, match="1 of 2 staged files"):
            publish(hw, staging_at(data), write, sent)
        assert numbers_of(hw) == []


def test_damage_in_a_staged_file_is_found(data: Path) -> None:
    write = StagedWrite.of_query(QUERY, 0)
    sent = stage(data, write, rows(range(32)))
    path = data / "staging" / sent[-1].chunk.file
    stored = bytearray(path.read_bytes())
    stored[sent[-1].chunk.position + sent[-1].chunk.size // 2] ^= 1
    path.write_bytes(stored)
    with opened(data) as hw, pytest.raises(Corrupt):
        publish(hw, staging_at(data), write, sent)


# Orphans


def aged(data: Path, days: float) -> None:
    for path in (data / "staging").glob("[fm]*/*"):
        at = path.stat().st_mtime - days * 86_400
        os.utime(path, (at, at))


def test_old_files_that_nobody_names_are_swept_and_others_are_not(data: Path) -> None:
    pending = old_manifest(data)
    named = files(data)
    stage(data, StagedWrite.of_query("dead", 0), rows(range(10)))
    with pytest.raises(Dies):
        run(str(data), data, StagedWrite.once(), range(10), Steps(7))
    aged(data, ORPHAN_S / 86_400 + 1)
    young = stage(data, StagedWrite.of_query("young", 0), rows(range(10)))
    assert staging_at(data).sweep() == 3  # one of the dead query, two of the write that was given up
    assert files(data) == sorted([*named, young[0].chunk.file.removeprefix("files/")])
    assert manifests(data) == [pending.key]


def test_a_write_sweeps(data: Path) -> None:
    stage(data, StagedWrite.of_query("dead", 0), rows(range(10)))
    aged(data, ORPHAN_S / 86_400 + 1)
    run(str(data), data, StagedWrite.once(), range(10), Steps())
    assert not files(data)


def test_files_that_may_be_swept_are_not_published(data: Path) -> None:
    write = StagedWrite.once()
    sent = stage(data, write, rows(range(10)))
    with opened(data) as hw:
        with pytest.raises(Conflict, match="days ago"):
            publish(hw, staging_at(data, clock=Later(5)), write, sent)
        assert numbers_of(hw) == []


def test_staging_trips_nobody(data: Path) -> None:
    old_manifest(data)
    with opened(data) as hw:
        assert hw.topics() == ["orders"]
        assert not hw.check().findings


def test_the_time_of_staging_is_the_time() -> None:
    clock = Clock()
    found = StagingArea.at("/nowhere").now().timestamp()
    assert abs(found - (clock.ticks() - UNIX_EPOCH_TICKS) / 10_000_000) < 5

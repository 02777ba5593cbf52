"""Leases and fences among real processes: killed, stopped, continued, joining and leaving."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headwater.consumers.log_consumer import LogConsumer
from headwater.errors import Fenced
from headwater.event import Event
from headwater.limits import Limits
from headwater.store import Store
from tests.log.children import Child, Said, stop_with
from tests.log.unsynced import open_unsynced
from tests.opened import join
from tests.waiting import wait_for

LEASE_MS = 300
LEASE_S = LEASE_MS / 1000
PATIENCE_S = 30.0
LIMITS = Limits(lease_ms=LEASE_MS, ack_ms=20, retry_ms=1)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def fill(hw: Store, count: int, partitions: int = 1) -> None:
    hw.create("t", partitions=partitions)
    for partition in range(partitions):
        hw.append_many("t", [b"%d" % number for number in range(count)], partition=partition)


def stop_when(pid: int) -> None:
    """Stop a process, and return when it is."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def member(path: Path, work: Callable[[LogConsumer, Said], Any], **options: Any) -> Child:
    """A process that joins the consumer `c` of topic `t`, and does its work."""

    def run(said: Said) -> Any:
        with (
            open_unsynced(path, limits=LIMITS) as hw,
            join(hw, "c", "t", timeout=PATIENCE_S, **options) as consumer,
        ):
            return work(consumer, said)

    return Child(run)


def acks_two_and_hangs(consumer: LogConsumer, said: Said) -> None:
    """Takes three events, acks two of them, and says so."""
    consumer.ack(*islice(consumer, 2))
    consumer.flush()
    next(consumer)
    said.send(consumer.id)
    said.recv()


def test_another_takes_over_when_the_lease_of_a_killed_one_has_expired(path: Path, hw: Store) -> None:
    fill(hw, 5)
    child = member(path, acks_two_and_hangs)
    owner = child.hear()
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:
        assert consumer.partitions == []
        assert hw.consumers()[0].owner == owner
        child.kill()
        killed = time.monotonic()
        assert next(consumer).offset == 2
        assert hw.consumers()[0].owner == consumer.id
        assert time.monotonic() - killed > LEASE_S / 4  # the last renewal is at most a third of a lease ago
        assert hw.consumers()[0].failures == 1


def test_a_clean_end_hands_over_at_once(path: Path, hw: Store) -> None:
    fill(hw, 5)
    child = member(path, acks_two_and_hangs, lease_ms=60_000)
    child.hear()
    with join(hw, "c", "t", timeout=PATIENCE_S, lease_ms=60_000) as consumer:
        assert consumer.partitions == []
        child.tell()
        assert next(consumer).offset == 2
        assert hw.consumers()[0].failures == 0


def test_a_stopped_owner_is_replaced_and_its_late_acks_are_refused(path: Path, hw: Store) -> None:
    fill(hw, 5)

    def acks_late(consumer: LogConsumer, said: Said) -> list[int]:
        """Stops with an event in its hands; goes on, and acks, as if nothing had happened."""
        first, second = islice(consumer, 2)
        consumer.ack(first)  # and not stored
        fence = consumer.fences[0]
        said.send(fence)
        stop_with(consumer)
        with pytest.raises(Fenced):
            consumer.ack(second)
        with pytest.raises(Fenced):
            consumer.ack_to(second)
        with pytest.raises(Fenced):
            consumer.flush()
        said.send("refused")
        said.recv()
        return [event.offset for event in consumer.drain()]

    child = member(path, acks_late)
    fence = child.hear()
    child.wait_until_stopped()
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:
        events = list(islice(consumer, 4))
        assert [event.offset for event in events] in ([0, 1, 2, 3], [1, 2, 3, 4])
        assert consumer.fences[0] > fence
        consumer.ack(events[:3])
        consumer.flush()
        before = hw.consumers()[0]
        child.resume()
        assert child.hear() == "refused"
        after = hw.consumers()[0]
        assert (after.cursor, after.fence, after.owner) == (before.cursor, before.fence, before.owner)
        consumer.close()
        child.tell()
    assert child.result()[:1] == [after.cursor]


def test_a_stopped_owner_that_nobody_replaced_goes_on(path: Path, hw: Store) -> None:
    fill(hw, 3)

    def stops(consumer: LogConsumer, _: Said) -> list[int]:
        event = next(consumer)
        fence = consumer.fences[0]
        stop_with(consumer)
        consumer.ack(event)
        assert consumer.fences[0] == fence
        return [event.offset for event in islice(consumer, 2)]

    child = member(path, stops)
    child.wait_until_stopped()
    wait_for(lambda: hw.consumers()[0].lease_ms == 0)
    child.resume()
    assert child.result() == [1, 2]
    assert hw.consumers()[0].cursor == 1


def test_a_handler_may_work_longer_than_its_lease(path: Path, hw: Store) -> None:
    fill(hw, 3)
    child = member(path, acks_two_and_hangs)
    owner = child.hear()
    with join(hw, "c", "t", timeout=LEASE_S * 4) as other:
        assert list(other) == []
        assert hw.consumers()[0].owner == owner
    child.kill()


def test_members_share_partitions_by_count(hw: Store) -> None:
    hw.create("t", partitions=4)
    joined: list[LogConsumer] = []
    threads: list[threading.Thread] = []

    def joins() -> LogConsumer:
        consumer = join(hw, "c", "t")
        joined.append(consumer)
        threads.append(threading.Thread(target=lambda: list(consumer)))
        threads[-1].start()
        return consumer

    def shares() -> list[int]:
        return sorted((len(consumer.partitions) for consumer in joined), reverse=True)

    joins()
    wait_for(lambda: shares() == [4])
    joins()
    wait_for(lambda: shares() == [2, 2])
    first = joined[0]
    joins()
    wait_for(lambda: shares() == [2, 1, 1])
    joins()
    joins()
    wait_for(lambda: shares() == [1, 1, 1, 1, 0])
    for consumer in (first, joined[1]):
        consumer.stop()
        consumer.close()
        joined.remove(consumer)
    wait_for(lambda: shares() == [2, 1, 1])
    owners = {info.partition: info.owner for info in hw.consumers()}
    assert {consumer.id: consumer.partitions for consumer in joined} == {
        consumer.id: sorted(number for number, owner in owners.items() if owner == consumer.id) for consumer in joined
    }
    for consumer in joined:
        consumer.stop()
    for thread in threads:
        thread.join()


def test_what_is_given_up_for_a_new_member_was_acked_first(hw: Store) -> None:
    fill(hw, 50, 2)
    with join(hw, "c", "t", timeout=0) as first:
        seen = list(islice(first, 51))  # something of both partitions
        second = join(hw, "c", "t", timeout=PATIENCE_S)
        taken: list[Event] = []
        waiting = threading.Thread(target=lambda: taken.append(next(second)))
        waiting.start()
        wait_for(lambda: [holding for holding in first._held.values() if holding.leaving])
        wait_for(lambda: first._member._tended_s > time.monotonic() - LEASE_S / 10)
        assert len(first.partitions) == 2
        first.ack(seen)  # in its hands: it was neither taken away nor refused
        fill(hw, 20, 2)
        deadline = time.monotonic() + PATIENCE_S
        while waiting.is_alive():
            assert time.monotonic() < deadline
            for event in first:
                seen.append(event)
                first.ack(event)
        waiting.join()
        assert len(first.partitions) == 1
        assert taken[0].partition not in first.partitions
        assert (taken[0].partition, taken[0].offset) not in {(event.partition, event.offset) for event in seen}


def test_what_was_to_be_given_up_and_is_kept_after_all_is_handed_out(hw: Store) -> None:
    fill(hw, 50)
    with join(hw, "c", "t", timeout=0) as consumer:
        seen = list(islice(consumer, 3))
        holding = consumer._held[0]
        holding.leaving = True
        consumer._put_back()
        consumer._member.give_up()  # three are in hand: it stays
        assert (holding.cursor, holding.end, consumer.partitions) == (0, 3, [0])
        holding.leaving = False
        seen += consumer
        assert [event.offset for event in seen] == list(range(50))
        consumer.ack(seen)
    assert hw.consumers()[0].cursor == 50


def test_an_event_that_ends_its_process_is_set_aside_and_no_other(path: Path, hw: Store) -> None:
    fill(hw, 40)

    def dies_at_seventeen(consumer: LogConsumer, _: Said) -> int:
        handled = 0
        for event in consumer.drain():
            if event.offset == 17:
                os.kill(os.getpid(), signal.SIGKILL)
            consumer.ack(event)
            handled += 1
        return handled

    for _ in range(4):  # the first one's acks before it are not stored; then each is
        child = member(path, dies_at_seventeen, failures_max=3, lease_ms=60)
        with pytest.raises(AssertionError, match="-9"):
            child.result()
    assert hw.consumers()[0].cursor == 17
    assert member(path, dies_at_seventeen, failures_max=3, lease_ms=60).result() == 22
    assert [event.meta["dead_offset"] for event in hw.read("t.dead")] == ["17"]


def test_the_event_that_ends_its_process_is_found_among_thousands(path: Path, hw: Store) -> None:
    fill(hw, 6000)

    def dies(consumer: LogConsumer, _: Said) -> int:
        handled = 0
        for event in consumer.drain():
            if event.offset == 3000:
                os.kill(os.getpid(), signal.SIGKILL)
            consumer.ack(event)
            handled += 1
        return handled

    deaths = 0
    while not (hw.consumers() and hw.consumers()[0].cursor == 6000):
        child = member(path, dies, failures_max=1, lease_ms=60)
        try:
            child.result()
        except AssertionError as error:
            assert "-9" in str(error)  # noqa: PT017  (until it does not die)
            deaths += 1
    assert deaths <= 3  # with all in hand, with some of them, with it alone
    assert [event.meta["dead_offset"] for event in hw.read("t.dead")] == ["3000"]


def test_killing_an_idle_member_is_no_failure_of_what_comes_next(path: Path, hw: Store) -> None:
    fill(hw, 1)

    def waits(consumer: LogConsumer, said: Said) -> None:
        for event in consumer:
            consumer.ack(event)
            consumer.flush()
            said.send("idle")

    for number in range(3):
        child = member(path, waits, lease_ms=60)
        child.hear()
        child.kill()
        hw.append("t", b"%d" % number)
    with join(hw, "c", "t", timeout=PATIENCE_S) as consumer:
        next(consumer)
    assert hw.consumers()[0].failures == 0


def handles_all(log: Path) -> Callable[[LogConsumer, Said], None]:
    """Work that writes down each delivery, with fence and owner, and acks it, at random intervals."""

    def work(consumer: LogConsumer, said: Said) -> None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        said.send("ready")
        source = random.Random(os.getpid())
        for event in consumer:
            fence = consumer.fences.get(event.partition)
            if fence is None:
                continue  # lost since: not delivered to anybody who would act on it
            os.write(fd, b"%d %d %s %d\n" % (event.partition, fence, consumer.id.encode(), event.offset))
            try:
                consumer.ack(event)
            except Fenced:
                continue
            if source.random() < 0.05:
                time.sleep(0.003)

    return work


def test_no_fence_has_two_owners_and_no_cursor_goes_back(path: Path, hw: Store, tmp_path: Path) -> None:
    partitions, count, fences = 4, 1000, 7
    source = random.Random(5)
    hw.create("t", partitions=partitions)
    log = tmp_path / "deliveries"
    log.touch()
    children = [member(path, handles_all(log)) for _ in range(3)]
    for child in children:
        child.hear()
    highest = [0] * partitions
    stopped: list[tuple[float, Child]] = []
    appended, fence, began = 0, 0, time.monotonic()
    while min(highest) < appended or fence < fences or stopped:
        assert time.monotonic() - began < PATIENCE_S
        unruly = appended < count or fence < fences
        if unruly and appended < min(highest) + 500:
            for partition in range(partitions):
                hw.append_many("t", [b"x"] * 10, partition=partition)
            appended += 10
        for info in hw.consumers("t"):
            assert info.cursor >= highest[info.partition], "a cursor went back"
            highest[info.partition] = info.cursor
            fence = max(fence, info.fence)
        now = time.monotonic()
        for until, child in [pair for pair in stopped if pair[0] <= now]:
            child.resume()
            stopped.remove((until, child))
        if unruly and len(stopped) < 2 and source.random() < 0.1:
            victim = source.choice([child for child in children if child not in [child for _, child in stopped]])
            if source.random() < 0.4:
                victim.kill()
                children[children.index(victim)] = member(path, handles_all(log))
            else:
                stop_when(victim.pid)
                stopped.append((now + source.choice([0.1, 1.5, 2.5]) * LEASE_S, victim))
    for child in children:
        child.kill()
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    delivered: dict[str, set[int]] = defaultdict(set)
    for line in log.read_text(encoding="ascii").splitlines():
        partition_of_it, fence_of_it, owner, offset = line.split()
        owners[partition_of_it, fence_of_it].add(owner)
        delivered[partition_of_it].add(int(offset))
    assert max(map(len, owners.values())) == 1
    assert len(owners) > partitions
    assert list(delivered.values()) == [set(range(appended))] * partitions

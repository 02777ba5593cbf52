"""What leases must do wherever cursors are kept: the suite that every implementation passes.

Each contender has a clock of its own that stands still until the test moves it, and begins somewhere else: whoever
compares the times of two of them fails here. In a file they share one, as the processes of a machine do.
"""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.consumers.leases import Consumers, Leases, Progress
from headwater.disk.disk import Clock
from headwater.errors import Fenced, HeadwaterError, NotFound
from headwater.format.settings import TopicRecord

TOPIC = TopicRecord(name="orders", uuid="00000000-0000-4000-8000-000000000001", partitions=4)
LEASE_MS = 10_000
LEASE_S = LEASE_MS / 1000
OWNERS = 4  # so many, at least, a history has


class OwnClock(Clock):
    """A monotonic clock that stands still."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s


class Contender:
    """Somebody who wants partitions, as a `Member` would, with a clock of its own."""

    def __init__(self, consumers: Consumers, clock: OwnClock, **options: Any) -> None:
        self.consumers = consumers
        self.clock = clock
        self.leases: Leases = consumers.join("c", TOPIC, LEASE_MS, lambda: [0] * 4, **options)
        self.held: dict[int, int] = {}
        self.grants: list[tuple[int, int]] = []

    def tend(self, *, claim: bool = True) -> list[int]:
        """Tend, and give up what is above the share; returns what is held."""
        found = self.leases.tend(self.held, claim=claim)
        for number in found.lost:
            del self.held[number]
        for each in found.claimed:
            self.held[each.partition] = each.standing.fence
            self.grants.append((each.partition, each.standing.fence))
        self.expires_s = found.expires_s
        while len(self.held) > found.share:
            self.release(max(self.held))
        return sorted(self.held)

    def progress(self, partition: int, cursor: int, reached: int = 0) -> Progress:
        return Progress(partition, self.held[partition], cursor, reached, cursor, 0)

    def store(self, partition: int, cursor: int, reached: int = 0) -> bool:
        """Store a cursor; whether the partition is still held."""
        return self.leases.store([self.progress(partition, cursor, reached)], sync=True)[1] == []

    def release(self, partition: int, cursor: int = 0, **options: Any) -> bool:
        lost = self.leases.release([self.progress(partition, cursor)], **options)
        del self.held[partition]
        return lost == []

    def cursor(self, partition: int) -> int:
        return self.leases.peek([partition])[partition].cursor


class LeasesConformance:
    """Whoever inherits from it says where the cursors are kept."""

    contenders: list[Contender]

    lease_ms, seconds = 120, 1.5  # of that history

    @abstractmethod
    @contextmanager
    def place(self, path: Any) -> Iterator[Callable[[Clock], Consumers]]:
        """Consumers of a new place, for each clock."""
        raise NotImplementedError

    def clock(self) -> OwnClock:
        return OwnClock(random.uniform(10, 1e6))

    @pytest.fixture
    def join(self, tmp_path: Any) -> Iterator[Callable[..., Contender]]:
        self.contenders = []
        with self.place(tmp_path) as consumers:

            def join(**options: Any) -> Contender:
                clock = self.clock()
                contender = Contender(consumers(clock), clock, **options)
                self.contenders.append(contender)
                return contender

            yield join

    def wait(self, seconds: float) -> None:
        for clock in {id(each.clock): each.clock for each in self.contenders}.values():
            clock.now_s += seconds

    def taken_over(self, join: Callable[..., Contender]) -> tuple[Contender, Contender]:
        a, b = join(), join(guest=range(4))
        a.tend()
        a.store(0, 5)
        b.tend()
        self.wait(LEASE_S + 0.01)
        b.tend()
        return a, b

    def settle(self) -> list[int]:
        """Have all tend until it comes to rest; how many partitions each holds."""
        for _ in range(6):
            self.wait(LEASE_S / 2.9)
            for each in self.contenders:
                each.tend()
        return [len(each.held) for each in self.contenders]

    def test_one_member_takes_all_under_new_fences(self, join: Callable[..., Contender]) -> None:
        a = join()
        assert a.tend() == [0, 1, 2, 3]
        assert a.held == dict.fromkeys(range(4), 1)
        assert a.expires_s == pytest.approx(a.clock.now_s + LEASE_S)

    def test_a_silent_owner_is_replaced_when_the_contender_has_waited_long_enough(
        self, join: Callable[..., Contender]
    ) -> None:
        a, b = join(), join(guest=range(4))
        a.tend()
        a.store(2, 7)
        assert b.tend() == []
        self.wait(LEASE_S - 0.01)
        assert b.tend() == []
        self.wait(0.02)
        assert b.tend() == [0, 1, 2, 3]
        assert b.held == dict.fromkeys(range(4), 2)
        assert b.cursor(2) == 7

    def test_a_zombie_cannot_commit(self, join: Callable[..., Contender]) -> None:
        a, b = self.taken_over(join)
        assert not a.store(0, 9)
        assert b.cursor(0) == 5
        assert b.store(0, 6)
        assert not a.store(0, 9)
        assert b.cursor(0) == 6

    def test_a_zombie_cannot_renew_nor_release_nor_seek(self, join: Callable[..., Contender]) -> None:
        a, b = self.taken_over(join)
        assert sorted(a.leases.tend(a.held, claim=False).lost) == [0, 1, 2, 3]
        with pytest.raises(Fenced):
            a.leases.seek([a.progress(0, 0)])
        assert not a.release(1)
        self.wait(LEASE_S / 2)
        assert b.tend() == [0, 1, 2, 3]
        assert b.held == dict.fromkeys(range(4), 2)

    def test_what_is_released_is_taken_at_once(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join(guest=range(4))
        a.tend()
        b.tend()
        assert a.release(3, cursor=11)
        assert b.tend() == [3]
        assert b.held == {3: 2}
        assert b.cursor(3) == 11

    def test_cursors_never_go_back(self, join: Callable[..., Contender]) -> None:
        a = join()
        a.tend()
        for cursor, stored in ((5, 5), (3, 5), (8, 8), (-1, 8)):
            assert a.store(1, cursor)
            assert a.cursor(1) == stored
        a.release(1, cursor=2)
        b = join(guest=[1])
        assert b.tend() == [1]
        assert b.cursor(1) == 8

    def test_an_outsider_seeks_and_the_partition_is_free(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join(guest=range(4))
        a.tend()
        a.store(1, 9)
        b.consumers.seek("c", TOPIC, {1: 4})
        assert not a.store(1, 10)
        assert b.tend() == [1]
        assert (b.held[1], b.cursor(1)) == (3, 4)

    def test_a_forgotten_consumer_stops_its_members_and_begins_anew(self, join: Callable[..., Contender]) -> None:
        a = join()
        a.tend()
        a.store(0, 9)
        a.consumers.forget("c", TOPIC.name)
        with pytest.raises(NotFound):
            a.store(0, 10)
        self.wait(LEASE_S)
        with pytest.raises(NotFound):
            a.tend()
        with pytest.raises(NotFound):
            a.consumers.check("c", TOPIC)
        assert a.consumers.names(TOPIC) == []
        b = join()
        assert b.tend() == [0, 1, 2, 3]
        assert b.cursor(0) == 0

    def test_partitions_are_shared_by_count_as_members_come_and_go(self, join: Callable[..., Contender]) -> None:
        a = join()
        assert self.settle() == [4]
        b = join()
        assert self.settle() == [2, 2]
        c = join()
        assert sorted(self.settle()) == [1, 1, 2]
        every = [*a.held, *b.held, *c.held]
        assert sorted(every) == [0, 1, 2, 3]
        for number in list(b.held):
            b.release(number)
        b.leases.release([], leave=True)
        self.contenders.remove(b)
        assert self.settle() == [2, 2]
        self.contenders.remove(c)  # it died
        for _ in range(3):
            self.settle()
        assert len(a.held) == 4

    def test_no_fence_has_two_owners_and_no_cursor_goes_back(self, tmp_path: Any) -> None:
        with self.place(tmp_path) as consumers:
            all_of_them = [consumers(Clock()) for _ in range(4)]
            history = History(all_of_them[0], self.lease_ms, self.seconds)
            for number, each in enumerate(all_of_them):
                history.begin(each, random.Random(number))
            history.check()


class LeasesDetails(LeasesConformance):
    """The rest, for implementations that differ, and not only in where they are."""

    def test_nothing_is_taken_unless_it_is_asked_for(self, join: Callable[..., Contender]) -> None:
        a = join()
        found = a.leases.tend({}, claim=False)
        assert (found.claimed, found.more) == ([], True)

    def test_what_is_renewed_is_never_taken(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join()
        a.tend()
        for _ in range(20):
            self.wait(LEASE_S / 2)
            b.leases.tend({}, claim=True)
            found = a.leases.tend(a.held, claim=False)
            assert found.lost == []
            assert b.held == {}
            assert found.expires_s > a.clock.now_s + LEASE_S / 2

    def test_a_store_renews_the_lease(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join(guest=range(4))
        a.tend()
        for cursor in range(1, 6):
            self.wait(LEASE_S * 0.6)
            for number in range(4):
                assert a.store(number, cursor)
            assert b.tend() == []

    def test_who_takes_over_from_a_dead_owner_learns_what_it_had_in_hand(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join(guest=[0, 1, 2])
        a.tend()
        a.store(0, 5, reached=9)
        a.store(1, 5, reached=5)
        b.tend()
        assert a.release(2, cursor=4, died=True)
        self.wait(LEASE_S + 0.01)
        claims = {each.partition: each for each in b.leases.tend({}, claim=True).claimed}
        assert (claims[0].careful_until, claims[0].standing.failures, claims[0].standing.failing) == (9, 1, 5)
        assert (claims[1].careful_until, claims[1].standing.failures) == (0, 0)

    def test_a_released_partition_counts_no_failure(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join(guest=range(4))
        a.tend()
        a.store(0, 5, reached=9)
        a.release(0, cursor=5)
        (claim,) = b.leases.tend({}, claim=True).claimed
        assert (claim.careful_until, claim.standing.failures) == (0, 0)

    def test_failures_are_kept(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join(guest=range(4))
        a.tend()
        a.leases.store([Progress(0, 1, 5, 6, 5, 3)], sync=True)
        a.leases.release([Progress(0, 1, 5, 6, 5, 3)])
        (claim,) = b.leases.tend({}, claim=True).claimed
        assert (claim.standing.failing, claim.standing.failures) == (5, 3)

    def test_a_member_seeks_under_a_new_fence(self, join: Callable[..., Contender]) -> None:
        a = join()
        a.tend()
        a.store(0, 9)
        expires_s, (moved,) = a.leases.seek([a.progress(0, 2)])
        assert (moved.fence, moved.cursor) == (2, 2)
        assert expires_s > a.clock.now_s
        assert not a.store(0, 10)  # under the fence before
        a.held[0] = 2
        assert a.store(0, 3)
        assert a.cursor(0) == 3

    def test_the_slowest_and_the_names_are_known(self, join: Callable[..., Contender]) -> None:
        a = join()
        a.tend()
        a.store(0, 9)
        a.consumers.join("ä/b", TOPIC, LEASE_MS, lambda: [3, 4, 5, 6])
        assert a.consumers.names(TOPIC) == ["c", "ä/b"]
        assert [a.consumers.slowest(TOPIC, number) for number in range(4)] == [3, 0, 0, 0]
        assert a.consumers.slowest(TopicRecord(name="x", uuid=TOPIC.uuid[::-1], partitions=1), 0) is None

    def test_what_a_dead_member_held_is_taken_within_two_leases(self, join: Callable[..., Contender]) -> None:
        a, b = join(), join()
        assert self.settle() == [2, 2]
        self.contenders.remove(b)
        for _ in range(20):
            self.wait(LEASE_S / 10)
            a.tend()
        assert len(a.held) == 4

    def test_a_guest_takes_what_it_wants_and_is_not_counted(self, join: Callable[..., Contender]) -> None:
        guest = join(guest=[1, 3])
        assert guest.tend() == [1, 3]
        a = join()
        assert a.tend() == [0, 2]
        assert guest.tend() == [1, 3]
        guest.release(1)
        assert a.tend() == [0, 1, 2]

    def test_a_guest_sees_whether_somebody_lives_who_holds_a_partition(self, join: Callable[..., Contender]) -> None:
        a, guest = join(), join(guest=range(4))
        a.tend()
        assert guest.tend() == []
        assert guest.leases.busy(range(4)) == set()
        a.store(2, 1)
        guest.tend()
        assert guest.leases.busy(range(4)) == {2}


class History:
    """Contenders in threads that pause at random, some for longer than their leases."""

    def __init__(self, consumers: Consumers, lease_ms: int, seconds: float) -> None:
        self.consumers = consumers
        self.lease_ms = lease_ms
        self.until_s = time.monotonic() + seconds
        self.grants: list[tuple[int, int, str]] = []
        self.commits: list[tuple[int, int, int]] = []  # partition, fence, cursor
        self.failed: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def begin(self, consumers: Consumers, chance: random.Random) -> None:
        thread = threading.Thread(target=self._contend, args=(consumers, chance))
        self.threads.append(thread)
        thread.start()

    def _contend(self, consumers: Consumers, chance: random.Random) -> None:
        try:
            while time.monotonic() < self.until_s or len({owner for _, _, owner in self.grants}) <= OWNERS:
                self._live(consumers.join("c", TOPIC, self.lease_ms, lambda: [0] * 4), chance)
        except BaseException as error:  # noqa: BLE001  # the test tells of it
            self.failed.append(error)

    def _live(self, leases: Leases, chance: random.Random) -> None:
        """One member's life: it ends by leaving, or by silence."""
        held: dict[int, tuple[int, int]] = {}
        for _ in range(chance.randrange(3, 12)):
            with_fences = {number: fence for number, (fence, _) in held.items()}
            try:
                found = leases.tend(with_fences, claim=True)
                for number in found.lost:
                    del held[number]
                for each in found.claimed:
                    self.grants.append((each.partition, each.standing.fence, leases.id.hex()))
                    held[each.partition] = each.standing.fence, each.standing.cursor
                if chance.random() < 0.3:
                    time.sleep(self.lease_ms / 1000 * chance.uniform(0.5, 2.0))
                for number, (fence, cursor) in list(held.items()):
                    progress = Progress(number, fence, cursor + 1, cursor + 1, cursor + 1, 0)
                    if leases.store([progress], sync=False)[1]:
                        del held[number]
                    else:
                        held[number] = fence, cursor + 1
                        self.commits.append((number, fence, cursor + 1))
                if held and chance.random() < 0.3:
                    number, (fence, cursor) = held.popitem()
                    leases.release([Progress(number, fence, cursor, cursor, cursor, 0)])
            except HeadwaterError as error:
                if error.code != "unavailable":
                    raise
            time.sleep(chance.uniform(0, 0.01))
        if chance.random() < 0.5:
            last = [Progress(number, fence, cursor, 0, cursor, 0) for number, (fence, cursor) in held.items()]
            leases.release(last, leave=True)

    def check(self) -> None:
        for thread in self.threads:
            thread.join()
        assert not self.failed, self.failed
        fences = [(partition, fence) for partition, fence, _ in self.grants]
        assert len(fences) == len(set(fences)), "a fence has two owners"
        for number in range(4):
            commits = sorted((fence, cursor) for partition, fence, cursor in self.commits if partition == number)
            cursors = [cursor for _, cursor in commits]
            assert cursors == sorted(cursors), "a cursor went back"
            assert len(cursors) == len(set(cursors)), "two committed the same"
            stored = self.consumers.slowest(TOPIC, number)
            assert stored is not None
            assert stored >= max(cursors, default=0)

"""Leases in a file, in the records of a bucket, and in DynamoDB: one suite; and what only records have to bear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore
from headwater.bucket.opening import open_store
from headwater.consumers.coordinated_consumers import CoordinatedConsumers
from headwater.consumers.coordinator import BucketCoordinator, Coordinator
from headwater.consumers.dynamodb import DynamoCoordinator
from headwater.consumers.file_consumers import FileConsumers
from headwater.consumers.leases import Consumers
from headwater.disk.disk import Clock, Disk
from headwater.errors import Unavailable
from headwater.limits import DEFAULTS
from tests.bucket.leases_conformance import LEASE_S, TOPIC, Contender, LeasesConformance, LeasesDetails, OwnClock
from tests.log.unsynced import UnsyncedDisk


class TestFile(LeasesDetails):
    """In the file of a directory, where all processes share one clock."""

    def clock(self) -> OwnClock:
        return self.contenders[0].clock if self.contenders else OwnClock(1000.0)

    @contextmanager
    def place(self, path: Path) -> Iterator[Callable[[Clock], Consumers]]:
        yield lambda clock: FileConsumers(path, Disk(), clock, DEFAULTS)


@contextmanager
def coordinated(coordinator: Coordinator) -> Iterator[Callable[[Clock], Consumers]]:
    made: list[CoordinatedConsumers] = []

    def consumers(clock: Clock) -> Consumers:
        made.append(CoordinatedConsumers(coordinator, clock, DEFAULTS, lambda _: TOPIC))
        return made[-1]

    yield consumers
    for each in made:
        each.close()


class TestDirectoryStore(LeasesDetails):
    @contextmanager
    def place(self, path: Path) -> Iterator[Callable[[Clock], Consumers]]:
        with coordinated(
            BucketCoordinator(DirectoryStore(path / "objects", UnsyncedDisk(), Clock()), Clock())
        ) as consumers:
            yield consumers


class TestSeaweed(LeasesConformance):
    lease_ms, seconds = 800, 2.0  # whoever loses a race there waits for a second

    @pytest.fixture(autouse=True)
    def of_the_server(self, s3_url: str) -> None:
        self.url = s3_url

    @contextmanager
    def place(self, path: Path) -> Iterator[Callable[[Clock], Consumers]]:  # noqa: ARG002  # it is elsewhere
        store = open_store(self.url, clock=Clock(), disk=Disk())
        with coordinated(BucketCoordinator(store, Clock())) as consumers:
            yield consumers
        store.close()


class TestDynamoDB(LeasesDetails):
    lease_ms, seconds = 300, 2.0

    @pytest.fixture(autouse=True)
    def of_the_server(self, dynamodb: str, dynamodb_table: str) -> None:
        self.url = f"dynamodb://{dynamodb_table}?region=us-east-1&endpoint={dynamodb}&create=true"

    @contextmanager
    def place(self, path: Path) -> Iterator[Callable[[Clock], Consumers]]:  # noqa: ARG002  # it is elsewhere
        with coordinated(DynamoCoordinator(self.url, Clock())) as consumers:
            yield consumers


class LossyStore:
    """A store whose answers get lost: what is written stays written. `lose` counts down to the swap whose answer is."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.lose: int | None = None
        self.how: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        swapped = self._store.swap(key, data, version)
        if self.lose is not None:
            self.lose -= 1
            if self.lose < 0:
                self.lose = None
                self.how()  # raises, or lets others come in between
                return None
        return swapped


def unavailable() -> None:
    raise Unavailable("the store did not answer")


class TestLostAnswers:
    @pytest.fixture
    def lossy_store(self, tmp_path: Path) -> LossyStore:
        return LossyStore(DirectoryStore(tmp_path / "objects", UnsyncedDisk(), Clock()))

    @pytest.fixture
    def join(self, lossy_store: LossyStore) -> Iterator[Callable[..., Contender]]:
        with coordinated(BucketCoordinator(cast("ObjectStore", lossy_store), Clock())) as consumers:

            def join(**options: Any) -> Contender:
                clock = OwnClock(1000.0)
                return Contender(consumers(clock), clock, **options)

            yield join

    def test_a_grant_whose_answer_was_lost_is_known_by_its_nonce(
        self, lossy_store: LossyStore, join: Callable[..., Contender]
    ) -> None:
        a = join(guest=[0])
        lossy_store.lose = 0
        assert a.tend() == [0]
        assert a.held == {0: 1}
        assert a.store(0, 3)

    def test_a_grant_that_was_never_heard_of_is_used_by_nobody(
        self, lossy_store: LossyStore, join: Callable[..., Contender]
    ) -> None:
        a = join(guest=[0])
        lossy_store.lose, lossy_store.how = 0, unavailable
        with pytest.raises(Unavailable):
            a.tend()
        assert a.tend() == [0]
        assert a.held == {0: 2}

    def test_a_grant_that_was_replaced_before_its_answer_came_is_lost(
        self, lossy_store: LossyStore, join: Callable[..., Contender]
    ) -> None:
        a, b = join(guest=[0]), join(guest=[0])
        lossy_store.lose, lossy_store.how = 0, lambda: b.consumers.seek("c", TOPIC, {0: 7})
        assert a.tend() == []
        assert a.tend() == [0]
        assert (a.held, a.cursor(0)) == ({0: 3}, 7)

    def test_a_commit_that_was_not_answered_is_repeated_and_the_lease_is_still_held(
        self, lossy_store: LossyStore, join: Callable[..., Contender]
    ) -> None:
        a = join(guest=[0])
        a.tend()
        lossy_store.lose, lossy_store.how = 0, unavailable
        with pytest.raises(Unavailable):
            a.store(0, 3)
        assert a.store(0, 4)
        assert a.cursor(0) == 4

    def test_a_commit_after_one_that_was_replaced_is_refused(
        self, lossy_store: LossyStore, join: Callable[..., Contender]
    ) -> None:
        a, b = join(guest=[0]), join(guest=[0])
        a.tend()
        lossy_store.lose, lossy_store.how = 0, lambda: b.consumers.seek("c", TOPIC, {0: 1})
        assert not a.store(0, 3)
        assert b.tend() == [0]
        assert b.cursor(0) == 1

    def test_the_owner_counts_its_lease_from_before_it_asked(
        self, lossy_store: LossyStore, join: Callable[..., Contender]
    ) -> None:
        a, b = join(guest=[0]), join(guest=[0])

        def slow() -> None:
            a.clock.now_s += 4.0

        began_s = a.clock.now_s
        lossy_store.lose, lossy_store.how = 0, slow
        a.tend()
        assert a.expires_s == began_s + LEASE_S
        b.tend()
        lossy_store.lose = 0
        began_s = a.clock.now_s
        expires_s, _ = a.leases.store([a.progress(0, 1)], sync=True)
        assert expires_s == began_s + LEASE_S


class CountingStore(LossyStore):
    """A store that counts what is asked of it."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return super().__getattr__(name)

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        self.asked["swap"] += 1
        return super().swap(key, data, version)


def test_whoever_comes_three_times_in_a_lease_renews_each_time(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "objects", UnsyncedDisk(), Clock())
    with coordinated(BucketCoordinator(store, Clock())) as consumers:
        clock = OwnClock(1000.0)
        a = Contender(consumers(clock), clock)
        a.tend()
        for _ in range(9):
            clock.now_s += LEASE_S / 3 - 0.01  # the request before went out a little later than the thread came
            assert a.leases.tend(a.held, claim=False).expires_s == clock.now_s + LEASE_S


def test_a_member_at_rest_asks_for_little(tmp_path: Path) -> None:
    store = CountingStore(DirectoryStore(tmp_path / "objects", UnsyncedDisk(), Clock()))
    with coordinated(BucketCoordinator(cast("ObjectStore", store), Clock())) as consumers:
        clock = OwnClock(1000.0)
        a, b = Contender(consumers(clock), clock), Contender(consumers(clock), clock)
        for _ in range(8):
            clock.now_s += 3.4
            a.tend(), b.tend()
        assert (len(a.held), len(b.held)) == (2, 2)
        store.asked.clear()
        for _ in range(100):  # a second each
            clock.now_s += 1.0
            a.tend(), b.tend()
        rounds = 100 / (10 / 3)
        assert store.asked["swap"] <= 4 * rounds * 1.1  # one for each partition
        assert store.asked["put"] <= 2 * rounds * 1.1  # one for each member
        assert store.asked["list"] <= 2 * rounds * 1.1
        assert store.asked["get"] == 0  # nobody is late, and nothing is to be taken
        store.asked.clear()
        mine = list(a.held)
        a.leases.peek(mine)
        for number in mine:
            assert a.store(number, 0)  # nothing changed, and the lease is young
        assert not store.asked

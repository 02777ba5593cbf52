"""Records tell a lost answer from a lost race, and refuse what they do not understand."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore
from headwater.bucket.opening import open_store
from headwater.bucket.records import Records
from headwater.disk.disk import Clock, Disk
from headwater.errors import Corrupt, Unsupported
from tests.bucket.chaos import chaotic
from tests.servers import Seaweed


class Counter(msgspec.Struct):
    """A record."""

    count: int
    counted_by: list[str] = []


class Losing(DirectoryStore):
    """A store whose next answers are lost: the request was done, and its repetition finds it so. Or it was refused."""

    lost = 0
    refused = 0

    def create(self, key: str, data: bytes) -> str | None:
        if self.refused:
            self.refused -= 1
            return None
        return self._answer(super().create(key, data))

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        return self._answer(super().swap(key, data, version))

    def _answer(self, version: str | None) -> str | None:
        if self.lost:
            self.lost -= 1
            return None
        return version


@pytest.fixture
def losing(tmp_path: Path) -> Losing:
    return Losing(tmp_path, Disk(), Clock())


def records(store: ObjectStore) -> Records[Counter]:
    return Records(store, Clock(), Counter)


def test_a_record_is_created_once_read_and_swapped(object_store: ObjectStore) -> None:
    counters = records(object_store)
    assert counters.read("a") is None
    version = counters.create("a", Counter(1))
    assert counters.create("a", Counter(2)) is None
    found = counters.read("a")
    assert found == (Counter(1), version)
    second = counters.swap("a", Counter(3), found.version)
    assert second is not None
    assert counters.swap("a", Counter(4), found.version) is None
    assert counters.read("a") == (Counter(3), second)
    assert counters.swap("b", Counter(5), second) is None


def test_a_record_that_comes_again_with_the_same_content_is_another_one(object_store: ObjectStore) -> None:
    counters = records(object_store)
    first = counters.create("a", Counter(1))
    assert first is not None
    second = counters.swap("a", Counter(2), first)
    assert second is not None
    assert counters.swap("a", Counter(1), second) is not None
    assert counters.swap("a", Counter(9), first) is None


def test_a_lost_answer_is_told_from_a_lost_race(losing: Losing) -> None:
    counters = records(losing)
    losing.lost = 1
    first = counters.create("a", Counter(1))
    assert first is not None
    losing.lost = 1
    second = counters.swap("a", Counter(2), first)
    assert second is not None
    assert counters.read("a") == (Counter(2), second)
    losing.lost = 1
    assert counters.create("a", Counter(1)) is None
    assert counters.swap("a", Counter(3), first) is None


def test_create_tries_again_when_the_store_refused_two_who_came_at_once(losing: Losing) -> None:
    losing.refused = 2
    assert records(losing).create("a", Counter(1)) is not None
    assert losing.refused == 0


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"count":1}', None])
def test_a_damaged_record_is_corrupt(losing: Losing, damage: bytes | None) -> None:
    counters = records(losing)
    counters.create("a", Counter(1))
    found = losing.get("a")
    assert found is not None
    data = bytes(found.data).replace(b'"count":1', b'"count":2') if damage is None else damage
    losing.put("a", data)
    with pytest.raises(Corrupt, match="/a") as corrupt:
        counters.read("a")
    assert corrupt.value.size == len(data)


@pytest.mark.parametrize("changed", [{"format": 2}, {"count": "many"}])
def test_a_record_of_a_later_version_is_not_misread(losing: Losing, changed: dict[str, object]) -> None:
    plain = {"count": 1, "format": 1, "nonce": "00"} | changed
    crc = crc32c(msgspec.json.encode(plain, order="sorted"))
    losing.put("a", msgspec.json.encode(plain | {"crc": f"{crc:08x}"}))
    with pytest.raises(Unsupported, match="/a"):
        records(losing).read("a")


def test_a_record_may_have_fields_that_a_later_version_added(losing: Losing) -> None:
    plain = {"count": 1, "format": 1, "nonce": "00", "added": 1}
    crc = crc32c(msgspec.json.encode(plain, order="sorted"))
    losing.put("a", msgspec.json.encode(plain | {"crc": f"{crc:08x}"}))
    found = records(losing).read("a")
    assert found is not None
    assert found.record == Counter(1)


def test_no_race_has_two_winners_and_no_swap_is_lost_when_requests_and_answers_are(seaweed: Seaweed) -> None:
    contend(seaweed, seed=11)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(20))
def test_the_same_for_long(seaweed: Seaweed, seed: int) -> None:
    contend(seaweed, seed, contenders=3, rounds=30)


def contend(seaweed: Seaweed, seed: int, contenders: int = 2, rounds: int = 10) -> None:
    """Every attempt has a token of its own: those that were told to be done are there once, in order; none is twice."""
    prefix = uuid.uuid4().hex
    done: list[list[str]] = [[] for _ in range(contenders)]
    created: list[list[int]] = [[] for _ in range(contenders)]
    start = threading.Barrier(contenders)

    def run(me: int) -> None:
        counters = records(open_store(seaweed.url(prefix, proxy.endpoint), clock=Clock(), disk=Disk()))
        start.wait()
        created[me] = [each for each in range(rounds) if counters.create(f"race/{each}", Counter(me)) is not None]
        counters.create("counter", Counter(0))
        while len(done[me]) < rounds:
            found = counters.read("counter")
            assert found is not None
            token = uuid.uuid4().hex
            counter = Counter(found.record.count + 1, [*found.record.counted_by, token])
            if counters.swap("counter", counter, found.version) is not None:
                done[me].append(token)

    with chaotic(seaweed.endpoint, seed, requests=0.15, answers=0.15) as proxy:
        with ThreadPoolExecutor(contenders) as pool:
            list(pool.map(run, range(contenders)))
        assert proxy.lost_requests > 3
        assert proxy.lost_answers > 3
    direct = records(open_store(seaweed.url(prefix), clock=Clock(), disk=Disk()))
    assert sorted(each for mine in created for each in mine) == list(range(rounds))
    for me, mine in enumerate(created):
        for each in mine:
            found = direct.read(f"race/{each}")
            assert found is not None
            assert found.record.count == me
    last = direct.read("counter")
    assert last is not None
    tokens = last.record.counted_by
    assert len(tokens) == len(set(tokens)) == last.record.count
    for told in done:
        assert [token for token in tokens if token in told] == told

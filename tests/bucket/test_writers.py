"""Many writers of one partition, in processes of their own: stopped, killed, and through a network that loses things.

In every run: offsets are dense, nothing acknowledged is missing or elsewhere, nothing is there twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import pytest

import headwater
from headwater.errors import NotFound
from tests.bucket.chaos import chaotic
from tests.bucket.writer import Writer
from tests.servers import Seaweed


def check(url: str, writers: Iterable[Writer], *, all_of: int | None = None) -> None:
    """Compare what is in the log with what the writers were told."""
    with headwater.open(url, mode="existing") as hw:
        try:
            events = list(hw.read("t"))
        except NotFound:
            events = []
    told = {data: offset for writer in writers for data, offset in writer.acknowledged.items()}
    found = {(event.data or b"").decode(): event.offset for event in events}
    assert [event.offset for event in events] == list(range(len(events)))
    assert len(found) == len(events)  # nothing twice
    assert all(before.ticks < after.ticks for before, after in zip(events, events[1:], strict=False))  # noqa: RUF007
    assert {data: found.get(data) for data in told} == told
    for writer in {data.partition(" ")[0] for data in found}:  # the events of one writer are in its order
        numbers = [int(data.partition(" ")[2]) for data in found if data.startswith(f"{writer} ")]
        assert numbers == sorted(numbers)
    if all_of is not None:
        assert len(found) == all_of


@pytest.mark.parametrize(("writers", "count"), [(1, 60), (4, 50)])
def test_writers_of_one_partition_share_it(store_url: str, writers: int, count: int) -> None:
    if store_url.startswith("s3:"):  # where losers sleep for a second
        writers, count = min(2, writers), 20
    running = [Writer(store_url, "t", f"w{number}", count) for number in range(writers)]
    for writer in running:
        writer.finish()
    assert all(len(writer.acknowledged) == count for writer in running)
    check(store_url, running, all_of=writers * count)


def test_lost_requests_and_answers_lose_and_repeat_nothing(seaweed: Seaweed, s3_url: str) -> None:
    prefix = s3_url.partition("?")[0].rpartition("/")[2]
    with chaotic(seaweed.endpoint, requests=0.15, answers=0.15) as proxy:
        url = seaweed.url(prefix, proxy.endpoint)
        running = [Writer(url, "t", f"w{number}", 12) for number in range(2)]
        for writer in running:
            writer.finish()
    check(s3_url, running, all_of=24)


def test_a_writer_that_was_stopped_goes_on_behind_the_others(bucket_url: str) -> None:
    stopped, other = (Writer(bucket_url, "t", name, 80) for name in ("stopped", "other"))
    stopped.ready()
    stopped.hear(10)
    stopped.stop()
    other.finish()
    stopped.go_on()
    stopped.finish()
    check(bucket_url, [stopped, other], all_of=160)


def kill_writers(url: str, rounds: int, seed: int) -> list[Writer]:
    choose = random.Random(seed)
    writers: list[Writer] = []
    for number in range(rounds):
        some = [Writer(url, "t", f"w{number}-{each}", 100_000) for each in range(2)]
        writers += some
        for writer in some:
            writer.ready()
        for writer in some:
            writer.hear(choose.randint(1, 12))
            time.sleep(choose.random() * 0.02)  # anywhere in the midst of an append
            writer.kill()
    return writers


def test_what_killed_writers_were_told_is_there(bucket_url: str) -> None:
    check(bucket_url, kill_writers(bucket_url, 3, 1))


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_what_many_killed_writers_were_told_is_there(store_url: str, seed: int) -> None:
    check(store_url, kill_writers(store_url, 12, seed))

"""Consumers of a bucket: what they store, and what differs. The rest is in tests/consumers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.consumers.coordinator import BucketCoordinator, CursorRecord
from headwater.consumers.log_consumer import LogConsumer
from headwater.disk.disk import Clock
from headwater.errors import Fenced, Unsupported
from headwater.limits import Limits
from headwater.opening import open_bucket
from headwater.store import Store
from tests.consumers.consuming import fill, numbers
from tests.log.unsynced import UnsyncedDisk
from tests.opened import bucket_of, join

LIMITS = Limits(retry_ms=1, lease_ms=5000, bucket_ack_ms=5, follow_ms=5, follow_ms_max=20)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Store]:
    with open_bucket(f"objects://{tmp_path}/objects", limits=LIMITS, disk=UnsyncedDisk()) as bucket:
        yield bucket


def now(hw: Store, **options: Any) -> LogConsumer:
    """A member that ends when there is nothing more."""
    return join(hw, "c", "t", timeout=0, **options)


def test_a_transaction_cannot_ack(bucket: Store) -> None:
    fill(bucket, 3)
    with now(bucket) as consumer:
        event = next(consumer)
        with pytest.raises(Unsupported, match="append, then ack") as refused:
            consumer.moves([event])
        assert refused.value.code == "unsupported"
        with pytest.raises(Unsupported), bucket.transaction() as tx:
            tx.ack(event)


def test_what_others_appended_just_now_is_found_without_waiting(bucket: Store) -> None:
    fill(bucket, 3)
    rarely = Limits(follow_ms=60_000, follow_ms_max=60_000)
    with open_bucket(bucket.address, limits=rarely, disk=UnsyncedDisk()) as other, now(other) as consumer:
        for first in (0, 3):
            assert numbers(consumer) == [first, first + 1, first + 2]
            fill(bucket, 3, first=first + 3)


def test_how_far_events_were_handed_out_is_stored_with_the_first_and_then_now_and_then(bucket: Store) -> None:
    rarely = Limits(bucket_ack_ms=60_000, follow_ms=1, follow_ms_max=1)
    with open_bucket(bucket.address, limits=rarely, disk=UnsyncedDisk()) as other:
        fill(bucket, 1)
        with other.consumer("c", "t") as consumer:
            for number in range(5):
                assert next(consumer).offset == number
                fill(bucket, 1)
            assert stored(bucket).beat == 2  # taken, and handed out
            assert stored(bucket).reached == 1
        assert stored(bucket).reached == 0


def test_an_event_that_ends_its_process_again_and_again_is_set_aside(bucket: Store) -> None:
    fill(bucket, 3)
    deaths = 0
    while True:
        consumer = now(bucket)
        if next(consumer).offset:
            break
        consumer.abandon()  # as if the process had ended
        deaths += 1
    consumer.close()
    assert 5 <= deaths <= 8
    (dead,) = bucket.read("t.dead")
    assert dead.meta["dead_offset"] == "0"


def test_a_consumer_that_is_moved_again_and_again_goes_on(bucket: Store) -> None:
    fill(bucket, 20)
    over = threading.Event()

    def move() -> None:
        for number in range(100):
            bucket.seek("c", "t", number % 20)
        over.set()

    thread = threading.Thread(target=move)
    with now(bucket) as consumer:
        thread.start()
        while not over.is_set():
            for event in consumer:
                with contextlib.suppress(Fenced):
                    consumer.ack(event)
                    consumer.flush()
        thread.join()
    bucket.seek("c", "t", 15)
    with now(bucket) as consumer:
        assert numbers(consumer) == [15, 16, 17, 18, 19]
        assert consumer.fences[0] > 100


def stored(hw: Store) -> CursorRecord:
    kept = BucketCoordinator(bucket_of(hw)._store, Clock()).consumer(hw.logs._catalogue.find("t"), "c").read(0)
    assert kept is not None
    return kept.record


def test_owners_and_leases_are_told_as_far_as_they_are_known(bucket: Store) -> None:
    fill(bucket, 3)
    with now(bucket) as consumer, open_bucket(bucket.address, disk=UnsyncedDisk()) as other:
        (here,), (there,) = bucket.consumers("t"), other.consumers("t")
        assert (here.owner, here.fence, here.lag) == (there.owner, there.fence, there.lag) == (consumer.id, 1, 3)
        assert 0 < here.lease_ms <= 5000
        assert there.lease_ms == 0
    assert bucket.consumers("t")[0].owner is None

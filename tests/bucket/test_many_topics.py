"""Any number of topics in one bucket: those that nobody uses cost neither memory nor a thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headwater import Limits
from headwater.bucket import appender
from headwater.opening import open_bucket
from headwater.store import Store
from tests.log.unsynced import UnsyncedDisk
from tests.waiting import wait_for

TOPICS = 60


@pytest.fixture
def bucket(tmp_path: Path) -> Store:
    limits = Limits(open_topics_max=4, linger_ms=5)
    return open_bucket(f"objects://{tmp_path}/bucket", limits=limits, disk=UnsyncedDisk())


def test_more_topics_than_are_kept_open_are_appended_to_and_read(bucket: Store) -> None:
    with bucket:
        follower = bucket.follow("t0", timeout=30) if bucket.create("t0") else None
        assert follower is not None
        later = [bucket.append_later(f"t{number}", b"%d" % number) for number in range(TOPICS)]
        assert [each.result().offset for each in later] == [0] * TOPICS
        assert [bucket.append(f"t{number}", b"more").offset for number in range(TOPICS)] == [1] * TOPICS
        assert len(bucket.logs._topics.open) <= 4
        for number in range(TOPICS):
            assert [event.data for event in bucket.read(f"t{number}")] == [b"%d" % number, b"more"]
        assert [next(follower).data for _ in range(2)] == [b"0", b"more"]
        assert bucket.consumers() == []


def test_what_waits_to_be_appended_is_flushed_however_many_topics_it_is_for(tmp_path: Path) -> None:
    limits = Limits(open_topics_max=4, linger_ms=60_000)
    with open_bucket(f"objects://{tmp_path}/bucket", limits=limits, disk=UnsyncedDisk()) as hw:
        for number in range(20):
            hw.append_later(f"t{number}", b"%d" % number)
        hw.flush()
        assert [next(hw.read(f"t{number}")).data for number in range(20)] == [b"%d" % n for n in range(20)]


def test_a_topic_that_nobody_appends_to_has_no_thread(bucket: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "IDLE_S", 0.05)

    def appending() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("headwater-t")]

    with bucket:
        bucket.append_later("t1", b"0").result()
        assert appending() == ["headwater-t1-0"]
        wait_for(lambda: not appending())
        assert bucket.append_later("t1", b"1").result().offset == 1

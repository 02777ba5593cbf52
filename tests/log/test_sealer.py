"""Sealing in the background stands back for those who append, for a moment each time."""

from __future__ import annotations

import threading
from pathlib import Path

from headwater.disk.disk import Clock
from headwater.limits import Limits
from headwater.opening import open_directory
from tests.waiting import wait_for


class LeapingClock(Clock):
    """For the thread that seals, an hour passes between any two looks, as if it were stopped again and again."""

    def __init__(self) -> None:
        self.hours = 0
        self.rests_s: list[float] = []

    def monotonic(self) -> float:
        self.hours += threading.current_thread().name == "headwater-seal"
        return super().monotonic() + self.hours * 3600

    def sleep(self, seconds: float) -> None:  # type: ignore[override]  # nobody here sleeps otherwise
        if threading.current_thread().name == "headwater-seal":
            self.rests_s.append(seconds)
        else:
            super().sleep(seconds)


def test_after_an_hour_in_which_the_process_was_stopped_it_rests_only_for_a_moment(tmp_path: Path) -> None:
    clock = LeapingClock()
    with open_directory(tmp_path / "data", limits=Limits(segment_bytes=4096), clock=clock) as hw:
        for _ in range(50):
            hw.append("t", bytes(100), durability="os")
        wait_for(lambda: clock.rests_s)
    assert max(clock.rests_s) < 1.0

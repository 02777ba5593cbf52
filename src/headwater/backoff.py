"""Delays between retries: they grow, and are random, so that clients which failed together do not return together."""

from __future__ import annotations

import random
from typing import Protocol

_random = random.Random()  # noqa: S311  # spreads retries, keeps no secret


class RetryClock(Protocol):
    """The part of a clock that retries need."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...
    def random_bytes(self, size: int, /) -> bytes: ...


def delay_s(tries: int, first_s: float, max_s: float, *, spread: float = 0.5, drawn: float | None = None) -> float:
    """Return how long to wait after so many tries, from 1 on: `first_s`, then twice as long each time, up to `max_s`.

    A random share of it is left out, at most `spread`; `drawn` is the random number from 0 to 1 to use for it.
    """
    longest_s: float = min(max_s, first_s * 2 ** min(tries - 1, 30))
    return longest_s * (1 - spread * (_random.random() if drawn is None else drawn))


class Backoff:
    """The pauses between the tries of one operation, which end after `total_s`. For one thread."""

    def __init__(self, clock: RetryClock, first_s: float, max_s: float, total_s: float) -> None:
        self._clock = clock
        self._first_s = first_s
        self._max_s = max_s
        self._deadline = clock.monotonic() + total_s
        self._tries = 0

    def pause(self, ahead_s: float = 0.0) -> bool:
        """Sleep before the next try; return False, without sleeping, if there is no time left for one of `ahead_s`."""
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= max(0.0, ahead_s):
            return False
        self._tries += 1
        drawn = 1 - int.from_bytes(self._clock.random_bytes(4)) / 2**32
        self._clock.sleep(min(left_s, delay_s(self._tries, self._first_s, self._max_s, spread=1.0, drawn=drawn)))
        return True

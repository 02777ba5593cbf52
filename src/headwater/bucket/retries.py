"""Pauses between tries: they grow, and each is random, so that those who failed together do not come back together."""

from __future__ import annotations

from headwater.disk.disk import Clock


class Backoff:
    """The pauses of one undertaking, for one thread: none is longer than `max_s`, and after `total_s` it is over."""

    def __init__(self, clock: Clock, first_s: float, max_s: float, total_s: float) -> None:
        self._clock = clock
        self._ceiling_s = first_s
        self._max_s = max_s
        self._deadline = clock.monotonic() + total_s

    def pause(self, ahead_s: float = 0.0) -> bool:
        """Sleep for anything up to the present ceiling, and double that; False, at once, if the time is over.

        It is over, too, if what takes `ahead_s` would end after it.
        """
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= max(0.0, ahead_s):
            return False
        fraction = int.from_bytes(self._clock.random_bytes(4)) / 2**32
        self._clock.sleep(min(left_s, self._ceiling_s * fraction))
        self._ceiling_s = min(self._max_s, self._ceiling_s * 2)
        return True

"""Delays between retries: they grow, and are random, so that clients which failed together do not return together."""

from __future__ import annotations

import random

_random = random.Random()  # noqa: S311  # spreads retries, keeps no secret


def delay_s(tries: int, first_s: float, max_s: float, *, spread: float = 0.5) -> float:
    """Return how long to wait after so many tries, from 1 on: `first_s`, then twice as long each time, up to `max_s`.

    A random share of it is left out, at most `spread`.
    """
    longest_s: float = min(max_s, first_s * 2 ** min(tries - 1, 30))
    return longest_s * (1 - spread * _random.random())

"""Fair timing on a noisy machine: contenders take turns, and medians and ratios come from the same rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

Contender = Callable[[], float]
"""Does one round of work and returns its figure, usually events per second."""


class Samples:
    """The figures of all contenders, round by round."""

    def __init__(self, figures: Mapping[str, list[float]]) -> None:
        self.figures = figures

    def median(self, name: str) -> float:
        return median(self.figures[name])

    def ratio(self, name: str, other: str) -> float:
        """The median of the ratios of each round: what slows the machine for a while slows both."""
        pairs = zip(self.figures[name], self.figures[other], strict=True)
        return median(mine / theirs for mine, theirs in pairs)


def interleave(rounds: int, contenders: Mapping[str, Contender]) -> Samples:
    """Run all contenders in turn, every second round in reverse order. Each first runs once untimed, all alike."""
    names = list(contenders)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        contenders[name]()
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            figures[name].append(contenders[name]())
    return Samples(figures)


def rate(count: int, work: Callable[[], object]) -> float:
    """How many per second, when `work` does `count`."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)

"""Slots that keep the responses of a connection in the order of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple


class AnswerSlot(NamedTuple):
    """The response to a request, or to several that follow each other; `then` is called when it is written.

    For the metrics: `error` is what it reports. Where it answers several frames, `outcomes` has the error of each, None
    for success, with how many frames in a row have it.
    """

    data: bytes
    then: Callable[[], None] | None = None
    error: BaseException | None = None
    outcomes: Sequence[tuple[BaseException | None, int]] = ()


class ResponseSlot:
    """The place of one answer, or of several that come together, among those of its connection."""

    __slots__ = ("begun", "count", "data", "size", "then", "written")

    def __init__(self, size: int, count: int = 1) -> None:
        self.size = size  # of the frames that it answers
        self.count = count  # of those frames
        self.data: bytes | None = None
        self.then: Callable[[], None] | None = None
        self.begun = perf_counter()
        self.written = False  # by another thread, which the loop has not heard of yet

    def finish(self) -> None:
        """Do what is left when another thread has written it."""

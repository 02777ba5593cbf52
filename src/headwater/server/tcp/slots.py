"""Slots that keep the responses of a connection in the order of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple


class AnswerSlot(NamedTuple):
    """The answer to a request that had the connection for itself; `then` is called when it is written.

    For those who count: `error` is what it tells of. Where it answers several frames, `errors` has what it tells of
    each, None for what went well.
    """

    data: bytes
    then: Callable[[], None] | None = None
    error: BaseException | None = None
    errors: Sequence[BaseException | None] = ()


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

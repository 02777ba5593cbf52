"""The places of answers on a connection: they are written in the order of what they answer."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class Answer(NamedTuple):
    """The answer to a request that had the connection for itself.

    `then` is called when it is written; `error` is what it tells of, for those who count; `counted`: they did already.
    """

    data: bytes
    then: Callable[[], None] | None = None
    error: BaseException | None = None
    counted: bool = False


class Slot:
    """The place of one answer, or of several that come together, among those of its connection."""

    __slots__ = ("begun", "counted", "data", "size", "then", "written")

    def __init__(self, size: int) -> None:
        self.size = size  # of the frames that it answers
        self.data: bytes | None = None
        self.then: Callable[[], None] | None = None
        self.counted = False  # by who answered it
        self.begun = perf_counter()
        self.written = False  # by another thread, which the loop has not heard of yet

    def finish(self) -> None:
        """Do what is left when another thread has written it."""

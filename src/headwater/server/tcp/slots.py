"""The places of answers on a connection: they are written in the order of what they answer."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class Answer(NamedTuple):
    """The answer to a request that had the connection for itself; `then` is called when it is written.

    `counted`: metrics and the access log know of it already.
    """

    data: bytes
    then: Callable[[], None] | None = None
    counted: bool = False


class Slot:
    """The place of one answer, or of several that come together, among those of its connection."""

    __slots__ = ("begun", "counted", "data", "size", "then")

    def __init__(self, size: int) -> None:
        self.size = size  # of the frames that it answers
        self.data: bytes | None = None
        self.then: Callable[[], None] | None = None
        self.counted = False  # by who answered it
        self.begun = perf_counter()

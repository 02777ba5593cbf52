"""Responses that the committing thread writes itself, before the loop learns of the commit.

The system takes as long to send an answer as we do for all the rest; meanwhile the loop can read what comes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol


class Way:
    """A duplicate socket descriptor for the committing thread; closed after its last use.

    The loop may close its own at any time, and the next connection may get its number: no answer must go there.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = os.dup(number)

    def __del__(self) -> None:
        os.close(self.number)


class Prompt(Protocol):
    """An answer that was `made`. The loop writes what is left of it, if not all was `written`."""

    way: Way | None
    made: bytes
    sent: int
    written: bool


def write(answers: Iterable[Prompt]) -> None:
    """Write answers that are all made: clients that are awake need not be woken for each."""
    for answer in answers:
        if answer.way is None:
            continue  # only the loop may write
        try:
            answer.sent = os.write(answer.way.number, answer.made)
            answer.written = answer.sent == len(answer.made)
        except OSError:
            continue  # the socket is full or closed: the loop handles it

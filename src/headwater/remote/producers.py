"""Who appends: a producer for each request that is under way, so that one whose answer was lost can be sent again.

A producer has one request at a time, and its `seq` grows; a request takes a free one, or a new one. Few are made: as
many as there are requests at once. Safe from any thread; a forked child has producers of its own.
"""

from __future__ import annotations

import threading
from uuid import uuid4

from headwater.format.producers import Producer


class ProducerSlot:
    """A producer, and the seq of its last request."""

    __slots__ = ("id", "seq")

    def __init__(self, id: str) -> None:
        self.id = id
        self.seq = -1


class ProducerPool:
    """The producers of one opened log."""

    def __init__(self) -> None:
        self.after_fork()

    def take(self) -> tuple[ProducerSlot, Producer]:
        """Return a producer that has no request under way, and its next request."""
        with self._mutex:
            if self._free:
                slot = self._free.pop()
            else:
                slot = ProducerSlot(f"{self._name}-{self._made}")
                self._made += 1
        slot.seq += 1
        return slot, Producer(slot.id, 0, slot.seq)

    def give_back(self, slot: ProducerSlot) -> None:
        """Its request was answered. One whose answer was lost is not given back: its user may ask with it again."""
        with self._mutex:
            self._free.append(slot)

    def after_fork(self) -> None:
        """Start over, under another name."""
        self._mutex = threading.Lock()  # protects what follows
        self._free: list[ProducerSlot] = []
        self._name = uuid4().hex
        self._made = 0

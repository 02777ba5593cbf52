"""How many files the logs of this process keep open: the least recently used give theirs back when these are many.

A process has few descriptors, 1024 as a rule, and may work on any number of logs. A holder keeps files open from one
use to the next, and opens them again when it needs them; so `rest` may be called at any time. What is in use
refuses. Safe from any thread. Maps hold no descriptor (`shared_memory.py`) and are not counted.
"""

from __future__ import annotations

import os
import resource
import threading
from typing import Protocol
from weakref import ReferenceType, ref

FILES_MAX = 8192  # of logs, however many the system allows: more gain nothing, and each costs memory of the kernel
SHARE = 2  # the logs may have one in so many; the others are for connections, databases, and the program itself


class Holder(Protocol):
    """What keeps files open between two uses."""

    files: int  # how many
    used: int  # the `turn` of its last use

    def rest(self) -> bool:
        """Close its files, if they are not in use; False if they are. Never waits."""
        ...


class OpenFiles:
    """The holders of one process."""

    def __init__(self) -> None:
        self.turn = 0  # grows whenever files are opened; an owner notes it when it uses its own
        self._holders: dict[int, ReferenceType[Holder]] = {}  # by identity: each leaves with its files, at the latest
        self._count = 0
        self._mutex = threading.RLock()  # protects the two; reentrant, for a holder that is collected meanwhile

    @property
    def most(self) -> int:
        """Return how many files the logs may keep open."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return FILES_MAX if soft == resource.RLIM_INFINITY else min(FILES_MAX, soft // SHARE)

    @property
    def many(self) -> bool:
        """Return whether so many are open that it is time to keep fewer."""
        return self._count > self.most // 2

    def opened(self, holder: Holder) -> None:
        """Note that a holder has opened its files; others may have to rest for that."""
        with self._mutex:
            self.turn += 1
            holder.used = self.turn
            if id(holder) not in self._holders:
                self._holders[id(holder)] = ref(holder)
                self._count += holder.files
            most = self.most
            too_many = self._count > most
        if too_many:
            self._spare(most * 3 // 4)

    def closed(self, holder: Holder) -> None:
        """Note that a holder has closed its files."""
        with self._mutex:
            if self._holders.pop(id(holder), None) is not None:
                self._count -= holder.files

    def spare(self) -> bool:
        """Have some holders close their files, because the process has no descriptor left; False if none can."""
        before = self._count
        self._spare(before // 2)
        return self._count < before

    def after_fork(self) -> None:
        """In a forked child: a thread of the parent may have held the mutex."""
        self._mutex = threading.RLock()

    def _spare(self, target: int) -> None:
        with self._mutex:
            holders = [holder for each in list(self._holders.values()) if (holder := each()) is not None]
        for holder in sorted(holders, key=lambda each: each.used):
            if self._count <= target:
                break
            holder.rest()


open_files = OpenFiles()
os.register_at_fork(after_in_child=open_files.after_fork)

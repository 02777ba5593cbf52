"""An open log directory with all the verbs: those of `Engine`, and those of views."""

from __future__ import annotations

import threading
from pathlib import Path
from weakref import WeakSet

from headwater.engine.engine import Engine
from headwater.event import Durability
from headwater.info import ViewInfo
from headwater.limits import DEFAULTS, Limits
from headwater.storage.disk import Clock, Disk
from headwater.views import status
from headwater.views.binder import Binder
from headwater.views.files import Files

BINDERS_KEPT = 256  # with their connections, so that the next read is quick; names come from outside


class Local(Engine):
    """What `headwater.open("data")` returns. Close it, or use it in a `with` statement; safe from any thread."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        durability: Durability = "fsync",
        limits: Limits = DEFAULTS,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(path, create=create, durability=durability, limits=limits, disk=disk, clock=clock)
        self._files = Files.of(self)
        self._binders: dict[str, Binder] = {}
        self._all_binders: WeakSet[Binder] = WeakSet()  # also those that are not kept any more, but still used
        self._binding = threading.Lock()  # protects changes of both

    def binder(self, name: str) -> Binder:
        """The documents of a binder, to be read; it need not be there yet, and reading it then raises NotFound."""
        found = self._binders.get(name)
        return found if found is not None else self._new_binder(name)

    def binders(self) -> list[str]:
        """The names of all binders, sorted; empty if there are none."""
        self.check_open()
        return self._files.names()

    def views(self) -> list[ViewInfo]:
        """How all projections and functions are, by name within their binders; empty if there are none."""
        self.check_open()
        return status.views(self)

    def close(self) -> None:
        """Let go of all files, also those of binders. May be called twice."""
        super().close()
        with self._binding:
            binders = list(self._all_binders)
        for binder in binders:
            binder.close()

    def after_fork(self) -> None:
        """In a forked child: begin anew."""
        super().after_fork()
        self._binding = threading.Lock()

    def _new_binder(self, name: str) -> Binder:
        with self._binding:
            found = self._binders.get(name)
            if found is None:
                found = Binder(self, self._files, name)
                self._all_binders.add(found)
                if len(self._binders) >= BINDERS_KEPT:
                    del self._binders[next(iter(self._binders))]
                self._binders[name] = found
            return found

"""The documents of a directory, as the verbs of a store: `LocalViews`. Safe from any thread."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

from headwater.info import ViewInfo
from headwater.store import Store
from headwater.views import status
from headwater.views.binder import LocalBinder
from headwater.views.files import Files

BINDERS_KEPT = 256  # with their connections, so that the next read is quick; names come from outside

_all: WeakSet[LocalViews] = WeakSet()  # which take a lock of their own in a forked child


class LocalViews:
    """The binders, projections and functions of a directory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = Files.of(store)
        self._binders: dict[str, LocalBinder] = {}
        self._all_binders: WeakSet[LocalBinder] = WeakSet()  # also those that are not kept any more, but still used
        self._binding = threading.Lock()  # protects changes of both
        _all.add(self)

    def binder(self, name: str) -> LocalBinder:
        """Return a binder; the next call returns the same one, with its connections."""
        found = self._binders.get(name)
        return found if found is not None else self._new_binder(name)

    def binders(self) -> list[str]:
        self._store.directory.check_open()
        return self._files.names()

    def views(self) -> list[ViewInfo]:
        self._store.directory.check_open()
        return status.views(self._store)

    def close(self) -> None:
        """Close the files of all binders. May be called twice."""
        with self._binding:
            binders = list(self._all_binders)
        for binder in binders:
            binder.close()

    def after_fork(self) -> None:
        """Take a new lock; called automatically in a forked child."""
        self._binding = threading.Lock()

    def _new_binder(self, name: str) -> LocalBinder:
        with self._binding:
            found = self._binders.get(name)
            if found is None:
                found = LocalBinder(self._store, self._files, name)
                self._all_binders.add(found)
                if len(self._binders) >= BINDERS_KEPT:
                    del self._binders[next(iter(self._binders))]
                self._binders[name] = found
            return found


def _after_fork() -> None:
    for views in list(_all):
        views.after_fork()


os.register_at_fork(after_in_child=_after_fork)

"""Runs an application: each projection and each function is a `ViewWorker` in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Protocol, Self

from headwater.errors import Corrupt, NotFound, Unavailable
from headwater.store import Store
from headwater.views import registry
from headwater.views.app import App
from headwater.views.files import Files
from headwater.views.function_worker import FunctionWorker
from headwater.views.projection_worker import ProjectionWorker

LOOK_S = 0.01  # between the first two looks whether everything is done
LOOK_MAX_S = 0.2  # and between later ones: a look takes the time of a hundred events


class Runner:
    """Runs an application in this process. Close it, or use it in a `with` statement, which starts it."""

    def __init__(self, hw: Store, app: App) -> None:
        """Prepare to run; raises Invalid for an application that cannot run on this log."""
        self._hw = hw
        self._app = app
        self._parts: list[ViewWorker] = []
        self._threads: list[threading.Thread] = []
        self._check()
        for projection in app.projections.values():
            self._parts.append(ProjectionWorker(hw, projection, app.of_binder(projection.binder)))
        for function in app.functions.values():
            self._parts.append(FunctionWorker(hw, function))

    def start(self) -> None:
        """Begin to work, in threads; the binders are there when this returns, with the indexes that were declared."""
        files = Files.of(self._hw)
        for name in {projection.binder for projection in self._app.projections.values()}:
            files.ensure(name)
            files.tidy(name)
            with contextlib.suppress(Corrupt):  # its projection reports it, and the others continue
                for field in self._app.binders[name].indexes:
                    self._hw.binder(name).index(field)
        for part in self._parts:
            thread = threading.Thread(target=part.run, name=f"headwater-{part.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until everything that is in the topics now is handled, and what functions appended meanwhile too.

        Raises Unavailable when that takes longer, or a part has been stopped by an error.
        """
        deadline, pause_s = time.monotonic() + timeout, LOOK_S
        while True:
            before = self._ends()
            waiting = [part for part in self._parts if not part.settled()]
            if not waiting and before == self._ends():  # no view has produced events for another meanwhile
                return
            if time.monotonic() > deadline:
                names = ", ".join(sorted(part.name for part in waiting))
                raise Unavailable(f"not all events were handled within {timeout} seconds: {names}", code="view_behind")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, LOOK_MAX_S)

    def _ends(self) -> list[tuple[int, ...]]:
        topics = {projection.topic for projection in self._app.projections.values()}
        topics |= {function.topic for function in self._app.functions.values()}
        there = topics.intersection(self._hw.topics())
        return [registry.topic_of(self._hw, topic).ends for topic in sorted(there)]

    def close(self) -> None:
        """Finish what is in work, give up all partitions, and end the threads. May be called twice."""
        for part in self._parts:
            part.stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self) -> None:
        """Refuse what can never be right, before anything is begun."""
        for projection in self._app.projections.values():
            try:
                partitions = len(registry.topic_of(self._hw, projection.topic).ends)
            except NotFound:
                partitions = 1  # it is not made yet; the projection looks again when it is
            together = self._app.of_binder(projection.binder)
            registry.check_order(together, projection, partitions)


class ViewWorker(Protocol):
    """A running projection or function."""

    name: str

    def run(self) -> None:
        """Work until `stop` is called. What goes wrong is kept for `views status`; it ends only when it is stopped."""

    def stop(self) -> None:
        """End `run`, soon; from any thread."""

    def settled(self) -> bool:
        """Return whether it has handled everything that is there now, durably; from any thread.

        Raises Unavailable if it cannot go on.
        """

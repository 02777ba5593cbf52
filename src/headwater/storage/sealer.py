"""The thread that seals finished segments in the background, leaving most of the processor to the appends."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading

from headwater.errors import HeadwaterError
from headwater.storage import seal
from headwater.storage.failures import unavailable
from headwater.storage.place import Place

log = logging.getLogger("headwater")

WORK_S = 0.002  # how long to work before standing back: a thread that computes holds up all who append
REST = 1.0  # rest per work: half of one core at most


class Sealer:
    """Seals what it is told of, one segment at a time. Lazy: no thread before there is work."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Place | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()  # protects `_thread`
        self._thread: threading.Thread | None = None
        self._stopping = False

    def rolled(self, place: Place) -> None:
        """A segment of this log was finished."""
        self._work.put(place)
        with self._mutex:
            if self._stopping or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="headwater-seal", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop soon. What is not sealed stays readable, and is sealed by whoever comes next."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        if thread is not None and thread.is_alive():
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        while (place := self._work.get()) is not None:
            try:
                seal_all(place, _Pacer(place, self).pause)
            except _Stop:
                return
            except HeadwaterError as error:
                log.warning("%s could not be sealed, and stays as it is: %s", place, error)

    @property
    def stopping(self) -> bool:
        return self._stopping


def seal_all(place: Place, pause: seal.Pause = lambda: None) -> int:
    """Seal every finished segment of a log that is not sealed; returns how many."""
    bases = place.segments()
    done = 0
    for base in seal.unsealed(place, bases[-1]) if bases else ():
        try:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                done += seal.seal(place, base, pause)
        except OSError as error:
            raise unavailable(place, "a segment cannot be sealed, and stays as it is", error) from error
    return done


class _Stop(Exception):  # it is a signal, not an error
    """Ends the work between two pieces of it."""


class _Pacer:
    def __init__(self, place: Place, sealer: Sealer) -> None:
        self._clock = place.clock
        self._sealer = sealer
        self._began = place.clock.monotonic()

    def pause(self) -> None:
        if self._sealer.stopping:
            raise _Stop
        worked = self._clock.monotonic() - self._began
        if worked > WORK_S:
            self._clock.sleep(worked * REST)
            self._began = self._clock.monotonic()

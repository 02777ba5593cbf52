"""The thread that seals finished segments in the background, leaving most of the processor to the appends."""

from __future__ import annotations

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
        self._work: queue.SimpleQueue[tuple[Place, int | None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()  # protects `_thread`
        self._thread: threading.Thread | None = None
        self._stopping = False

    def rolled(self, place: Place) -> None:
        """A segment of this log was finished."""
        self._begin(place, None)

    def damaged(self, place: Place, base: int) -> None:
        """The index of a finished segment is of no use: it is made again, where that can be written."""
        if place.disk.writable(place.lock):
            self._begin(place, base)

    def _begin(self, place: Place, base: int | None) -> None:
        self._work.put((place, base))
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
        while (work := self._work.get()) is not None:
            place, base = work
            pause = _Pacer(place, self).pause
            try:
                if base is None:
                    seal_all(place, pause)
                else:
                    reindex(place, base, pause)
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
    return sum(_seal(place, base, pause) for base in seal.unsealed(place, bases[-1])) if bases else 0


def reindex(place: Place, base: int, pause: seal.Pause = lambda: None) -> bool:
    """Make the index of a finished segment again from what it holds; False if another process is at it."""
    return _seal(place, base, pause, anew=True)


def _seal(place: Place, base: int, pause: seal.Pause, *, anew: bool = False) -> bool:
    try:
        return seal.seal(place, base, pause, anew=anew)
    except FileNotFoundError:  # removed meanwhile
        return False
    except OSError as error:
        raise unavailable(place, "a segment cannot be sealed, and stays as it is", error) from error


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

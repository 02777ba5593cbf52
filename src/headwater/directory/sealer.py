"""The thread that deletes and seals finished segments in the background, leaving the processor to the appends."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator

from headwater.directory import seal
from headwater.directory.failures import being_sealed, unavailable
from headwater.directory.log_directory import LogDirectory
from headwater.errors import HeadwaterError, NotFound
from headwater.log.packing import Pause

log = logging.getLogger("headwater")

WORK_S = 0.002  # how long to work before standing back: a thread that computes holds up all who append
REST = 1.0  # rest per work: half of one core at most
REST_S_MAX = 0.1  # and not for as long as the process was stopped: the caller that closes the log waits for it


class Sealer:
    """Sees to logs that rolled, one segment at a time: deletes what is old, then seals. No thread before there is work.

    `retain` applies the retention of a log. It is called for all that rolled before another segment is sealed.
    """

    def __init__(self, retain: Callable[[LogDirectory], None] = lambda _: None) -> None:
        self._retain = retain
        self._work: queue.SimpleQueue[tuple[LogDirectory, int | None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()  # protects `_thread`
        self._thread: threading.Thread | None = None
        self._stopping = False

    def rolled(self, place: LogDirectory) -> None:
        """A segment of this log was finished."""
        self._begin(place, None)

    def damaged(self, place: LogDirectory, base: int) -> None:
        """The index of a finished segment is of no use: it is made again, where that can be written."""
        if place.disk.writable(place.lock):
            self._begin(place, base)

    def _begin(self, place: LogDirectory, base: int | None) -> None:
        self._work.put((place, base))
        with self._mutex:
            if self._stopping or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="headwater-seal", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop soon. What is not sealed stays readable, and is sealed by the process that comes next."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        if thread is not None and thread.is_alive():
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        waiting: deque[tuple[LogDirectory, Iterator[int]]] = deque()
        while self._take(waiting):
            if waiting and not self._stopping:
                place, sealing = waiting[0]
                try:
                    if next(sealing, None) is None:
                        waiting.popleft()
                except _SealerStopError:
                    waiting.clear()
                except HeadwaterError as error:
                    waiting.popleft()
                    log.warning("%s could not be sealed, and is unchanged: %s", place, error)

    def _take(self, waiting: deque[tuple[LogDirectory, Iterator[int]]]) -> bool:
        """Apply the retention of all logs that rolled, and have them wait to be sealed; False at the end."""
        while self._stopping or not waiting or not self._work.empty():
            work = self._work.get()
            if work is None:
                return False
            place, base = work
            pause = _Pacer(place, self).pause
            if base is not None:
                waiting.append((place, (int(reindex(place, each, pause)) for each in (base,))))
                continue
            try:
                self._retain(place)
            except NotFound:
                continue  # the topic was deleted
            except HeadwaterError as error:
                log.warning("%s could not delete old events, and keeps them: %s", place, error)
            waiting.append((place, seal_each(place, pause)))
        return True

    @property
    def stopping(self) -> bool:
        return self._stopping


def seal_all(place: LogDirectory, *, wait: bool = False) -> int:
    """Seal every finished segment of a log that is not sealed; returns how many.

    One that another process is at is left to them; with `wait`, until they are done.
    """
    bases = place.segments()
    sealed = sum(seal_each(place, lambda: None))
    if wait and bases:
        sealed += sum(_seal_or_wait(place, base) for base in seal.unsealed(place, bases[-1]))
    return sealed


def _seal_or_wait(place: LogDirectory, base: int) -> bool:
    """Seal a segment, or wait for who is at it (False); raises Unavailable when that takes too long."""
    deadline = place.clock.monotonic() + place.limits.lock_wait_s
    while base in seal.unsealed(place, base + 1):
        if _seal(place, base, lambda: None):
            return True
        if place.clock.monotonic() > deadline:
            raise being_sealed(place, base)
        place.clock.sleep(seal.BUSY_POLL_S)
    return False


def seal_each(place: LogDirectory, pause: Pause) -> Iterator[int]:
    """The same, one at a time: 1 for each segment that was sealed, 0 if another process is at it or it is gone."""
    bases = place.segments()
    for base in seal.unsealed(place, bases[-1]) if bases else ():
        yield int(_seal(place, base, pause))


def reindex(place: LogDirectory, base: int, pause: Pause = lambda: None) -> bool:
    """Make the index of a finished segment again from what it holds; False if another process is at it."""
    return _seal(place, base, pause, anew=True)


def _seal(place: LogDirectory, base: int, pause: Pause, *, anew: bool = False) -> bool:
    try:
        return seal.seal(place, base, pause, anew=anew)
    except FileNotFoundError:  # removed meanwhile
        return False
    except OSError as error:
        raise unavailable(place, "a segment cannot be sealed, and is unchanged", error) from error


class _SealerStopError(Exception):  # it is a signal, not an error
    """Ends the work between two pieces of it."""


class _Pacer:
    def __init__(self, place: LogDirectory, sealer: Sealer) -> None:
        self._clock = place.clock
        self._sealer = sealer
        self._began = place.clock.monotonic()

    def pause(self) -> None:
        if self._sealer.stopping:
            raise _SealerStopError
        worked = self._clock.monotonic() - self._began
        if worked > WORK_S:
            self._clock.sleep(min(worked * REST, REST_S_MAX))
            self._began = self._clock.monotonic()

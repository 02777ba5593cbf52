"""Appending to one partition of a bucket: what waits together becomes one object, put where none is.

A thread of its own puts one object after the other; there are never two on their way. Whoever appends waits until its
object is durable, or goes on and asks later. Of several writers on a partition one wins each place; the others read
what is there, and put theirs behind it (docs/BUCKET.md, "The rules"). Safe from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain as chained

from headwater.backoff import Backoff
from headwater.bucket.chain import Chain, Tip
from headwater.bucket.meta import packed_in
from headwater.bucket.object_place import ObjectPlace
from headwater.disk.latch import Latch
from headwater.errors import Closed, HeadwaterError, Invalid, Unavailable, Unsupported
from headwater.format import object as format
from headwater.format import producers
from headwater.format.object import ObjectHead, ProducerRecord
from headwater.format.producers import ProducerAnswer
from headwater.log.rows import Rows, encode, mergeable

NONCE_BYTES = 16
FAILED_MAX = 1000  # appends that failed and are kept to tell of; one is enough to know that it is not all
LOSSES_IN_A_ROW = 3  # then a writer lets the others go first for a moment
FIRST_PAUSE_S, PAUSE_S_MAX = 0.005, 0.5
LINGER_MS = 100  # how long `append_later` gathers before an object is put: requests are what a bucket costs
IDLE_S = 10.0  # a log that nobody appends to for so long needs no thread: there may be many
REFUSED_S_MAX = 60.0  # how long a store may refuse an object as being there which is not


class Unit:
    """Rows that go into one object together, and the caller that waits for that."""

    __slots__ = ("_done", "error", "hurry", "rows", "size", "told")

    def __init__(self, rows: list[Rows], *, hurry: bool) -> None:
        self.rows = rows
        self.hurry = hurry
        self.size = sum(each.size for each in rows)
        self.error: BaseException | None = None
        self.told = False  # whether a caller knows of the error
        self._done = Latch()

    @property
    def done(self) -> bool:
        """Return whether it is durable, or has failed."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is; False if the time was over."""
        return self._done.wait(timeout_s)

    def check(self) -> None:
        """Raise what kept it from being appended."""
        if self.error is not None:
            self.told = True
            raise self.error

    def finish(self, error: BaseException | None = None) -> None:
        """Tell the caller that waits."""
        self.error = error
        for rows in self.rows:
            rows.error = error
        self._done.set()


class Appender:
    """The writing side of one partition in one process."""

    def __init__(
        self, place: ObjectPlace, chain: Chain, *, patient: bool, was_put: Callable[[], None] = lambda: None
    ) -> None:
        """`patient`: those who wait for their append linger, too, as `append_later` does.

        `was_put` is called for each object that is in the log; it must not wait.
        """
        self._place = place
        self._chain = chain
        self._patient = patient
        self._linger_s = (LINGER_MS if place.limits.linger_ms is None else place.limits.linger_ms) / 1000
        self._was_put = was_put
        self._writer = place.clock.random_bytes(8).hex()
        self._mutex = threading.Lock()  # protects all below
        self._asleep: list[Latch] = []  # of who wait for a change of it
        self._queue: deque[Unit] = deque()
        self._waiting_bytes = 0
        self._since_s = 0.0  # when the first of the queue came
        self._flushing = 0  # who wait for all that was queued
        self._failed: list[Unit] = []  # of which nobody may know yet
        self._on_way: list[Unit] | None = None  # what is put now: the turn of the process that puts it
        self._closed = False
        self._thread: threading.Thread | None = None

    def append(self, rows: list[Rows]) -> None:
        """Append rows as one, durably; returns with their offsets and ticks set, or raises what kept them from it.

        Who comes while nobody else appends needs no other thread for it.
        """
        _check(rows)
        unit = Unit(rows, hurry=True)
        alone = [unit]
        try:
            if not self._patient and self._alone(alone):
                self._work(alone)
            else:
                unit = self.submit(rows, hurry=not self._patient)
                unit.wait()
        finally:
            with self._mutex:  # also when a signal handler raised: the turn must not stay taken
                if self._on_way is alone:
                    self._on_way = None
        unit.check()

    def append_all(self, group: list[Rows]) -> None:
        """Append the rows of many requests; each has its offset and ticks then, or its error."""
        units = []
        for rows in group:
            try:
                units.append(self.submit([rows], hurry=not self._patient))
            except HeadwaterError as error:
                rows.error = error
        for unit in units:
            unit.wait()

    def submit(self, rows: list[Rows], *, hurry: bool = False) -> Unit:
        """Have rows appended as one with what comes next. Waits while too much waits already."""
        _check(rows)
        unit = Unit(rows, hurry=hurry)
        limits = self._place.limits
        while True:
            with self._mutex:
                self._check_open()
                if not self._queue or self._waiting_bytes + unit.size <= max(1, limits.buffer_bytes):
                    if not self._queue:
                        self._since_s = self._place.clock.monotonic()
                    self._queue.append(unit)
                    self._waiting_bytes += unit.size
                    break
                change = self._next_change()
            change.wait()
        with self._mutex:
            if self._thread is None:
                name = f"headwater-{self._place.topic}-{self._place.partition}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._tell()
        return unit

    def flush(self) -> None:
        """Put all that waits now; returns when it is durable. Raises an error since the last time, if nobody heard."""
        waiting: list[Unit] | None = None
        try:
            with self._mutex:
                waiting = [*(self._on_way or ()), *self._queue]
                self._flushing += 1
                self._tell()
            for unit in waiting:
                unit.wait()
        finally:
            with self._mutex:
                self._flushing -= waiting is not None
        with self._mutex:
            failed, self._failed = [unit for unit in self._failed if not unit.told], []
        for unit in failed:
            unit.check()

    def close(self) -> None:
        """Put what waits, and end. May be called twice."""
        while True:
            with self._mutex:
                self._closed = True
                self._tell()
                thread = self._thread
                if not self._queue and self._on_way is None:
                    break
                change = self._next_change()
            change.wait()
        if thread is not None:
            thread.join()

    def idle(self) -> bool:
        """Return whether nothing waits or is on its way, and nobody has yet to hear of a failure."""
        with self._mutex:
            return not self._queue and self._on_way is None and not self._failed

    def finish_log(self) -> None:
        """Put the last object of the log, after which nobody can append: its topic is deleted. The first one counts."""
        turn: list[Unit] = []
        try:
            while not self._take_turn(turn):
                pass
            while not self._put_last():
                self._chain.advance()  # raises NotFound if another process has closed it
        finally:
            with self._mutex:
                if self._on_way is turn:
                    self._on_way = None
                self._tell()

    # The thread, and the caller that appends alone

    def _run(self) -> None:
        while True:
            units = self._gather()
            if not units:
                return
            self._work(units)

    def _alone(self, units: list[Unit]) -> bool:
        """Return whether nothing waits or is on its way.

        Then it is this thread's turn, until it is done with `_work`.
        """
        with self._mutex:
            self._check_open()
            alone = self._on_way is None and not self._queue
            if alone:
                self._on_way = units
        return alone

    def _take_turn(self, units: list[Unit]) -> bool:
        """Take the turn, if nothing is on its way; else wait until that may have changed."""
        with self._mutex:
            if self._on_way is None:
                self._on_way = units
                return True
            change = self._next_change()
        change.wait()
        return False

    def _next_change(self) -> Latch:
        """Return what is set when something has changed, behind the mutex, which the caller has."""
        self._asleep.append(change := Latch())
        return change

    def _tell(self) -> None:
        """Wake all who wait for a change. The caller has the mutex."""
        for change in self._asleep:
            change.set()
        self._asleep = []

    def _work(self, units: list[Unit]) -> None:
        """Append units, the caller that waits for them is told; it is this thread's turn, which ends with it."""
        error: BaseException | None = None
        try:
            try:
                units = self._commit(units)
            except HeadwaterError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001  # the caller that waits must be told, whatever it is
                error = Unavailable(f"{self._place}: an append failed: {failure!r}", code="append_failed")
            except BaseException:  # an interrupt of the caller that appends alone; another thread may flush meanwhile
                error = Unavailable(f"{self._place}: an append was interrupted", code="interrupted")
                raise
            finally:
                _finish(units, error)
        finally:
            with self._mutex:
                self._on_way = None
                if error is not None and len(self._failed) < FAILED_MAX:
                    self._failed += [unit for unit in units if not unit.hurry]
                self._tell()

    def _gather(self) -> list[Unit]:
        """Return what goes into the next object, when it is time for that.

        Nothing when all is put and it was closed, or nobody has appended for a while: then the thread is over.
        """
        idle = False
        while True:
            with self._mutex:
                if self._due():
                    self._on_way = units = self._take_due()
                    self._tell()
                    return units
                if not self._queue and (self._closed or idle):
                    self._thread = None
                    return []
                left_s = self._since_s + self._linger_s - self._place.clock.monotonic()
                wait_s = max(0.0, left_s) if self._queue and self._on_way is None else IDLE_S
                change = self._next_change()
            idle = not change.wait(wait_s)

    def _take_due(self) -> list[Unit]:
        """Take from the queue what fits one object.

        A second append of a producer waits for the next one: it may be a retry of the first, which is answered only
        when that is in the log.
        """
        units: list[Unit] = []
        producers: set[str] = set()
        size = 0
        while self._queue:
            unit = self._queue[0]
            producer = unit.rows[0].producer
            if units and size + unit.size > self._place.limits.object_bytes:
                break
            if producer is not None:
                if producer.id in producers:
                    break
                producers.add(producer.id)
            units.append(self._queue.popleft())
            size += unit.size
        self._waiting_bytes -= size
        self._since_s = self._place.clock.monotonic()
        return units

    def _due(self) -> bool:
        if not self._queue or self._on_way is not None:
            return False
        limits = self._place.limits
        return (
            self._closed
            or self._flushing > 0
            or self._waiting_bytes >= limits.linger_bytes
            or self._place.clock.monotonic() >= self._since_s + self._linger_s
            or any(unit.hurry for unit in self._queue)
        )

    def _commit(self, units: list[Unit]) -> list[Unit]:
        """Append units as one object; returns those of them that are not finished yet: they are durable."""
        losses = 0
        backoff = Backoff(self._place.clock, FIRST_PAUSE_S, PAUSE_S_MAX, float("inf"))
        while True:
            tip = self._tip()
            units = [unit for unit in units if not self._answered(unit, tip)]
            if not units:
                return []
            head, batches = self._built(units, tip)
            data = format.encode(head, batches)
            if self._put(head, data):
                self._chain.cache.put(self._place.events_at(head.base), memoryview(data))
                self._chain.take(head)
                self._chain.hint()
                self._was_put()
                return units
            losses += 1
            if losses >= LOSSES_IN_A_ROW:
                backoff.pause()
            self._chain.advance()

    def _tip(self) -> Tip:
        meta = self._chain.knowledge.meta()
        tip = self._chain.tip
        return tip if tip.end >= meta.reached.offset else self._chain.advance()

    def _answered(self, unit: Unit, tip: Tip) -> bool:
        """Return whether it is a retry, which then has its answer, or is refused."""
        first = unit.rows[0]
        if first.producer is None:
            return False
        try:
            answer = producers.recall(format.known(tip.producers), first.producer)
        except HeadwaterError as error:
            unit.finish(error)
            return True
        if answer is None:
            return False
        offset, ticks = answer.offset, answer.ticks
        for rows in unit.rows:
            rows.offset, rows.ticks, rows.answered = offset, ticks, True
            offset, ticks = offset + rows.count, ticks + rows.count
        unit.finish()
        return True

    def _built(self, units: list[Unit], tip: Tip) -> tuple[ObjectHead, list[bytes]]:
        """Return the object that holds all units, behind the tip; every row learns where it will be."""
        place = self._place
        rows = list(chained.from_iterable(unit.rows for unit in units))
        offset, ticks = tip.end, max(place.clock.ticks(), tip.ticks + 1)
        batches: list[bytes] = []
        blobs: dict[str, str] = {}
        for run in mergeable(rows, place.limits):
            batches.append(encode(run, offset, ticks, zstd=place.zstd))
            if run[0].spooled is not None:
                blobs[str(offset)] = run[0].spooled.name
            for each in run:
                each.offset, each.ticks = offset, ticks
                offset, ticks = offset + each.count, ticks + each.count
        head = ObjectHead(
            log=place.uuid.hex(),
            base=tip.end,
            end=offset,
            nonce=place.clock.random_bytes(NONCE_BYTES).hex(),
            previous=tip.nonce,
            writer=self._writer,
            previous_ticks=tip.ticks,
            ticks=ticks - 1,
            size=sum(map(len, batches)),
            blobs=blobs,
            producers=self._told(units, tip),
        )
        return head, batches

    def _told(self, units: Iterable[Unit], tip: Tip) -> list[ProducerRecord]:
        """Return what the log remembers of its producers behind this object."""
        if not any(unit.rows[0].producer is not None for unit in units):
            return tip.producers
        known = format.known(tip.producers)
        for unit in units:
            first = unit.rows[0]
            if first.producer is not None:
                answer = ProducerAnswer(first.producer.seq, first.offset, first.ticks, first.count)
                producers.note(known, first.producer, answer, self._place.limits)
        while len(known) > self._place.limits.object_producers_max:
            del known[next(iter(known))]
        return format.told(known)

    def _put(self, head: ObjectHead, data: bytes) -> bool:
        """Put an object at its place, durably; False if it is not in the log: another one was first."""
        knowledge = self._chain.knowledge
        ours = self._created(head, data)
        if knowledge.stands(head.base):
            return ours
        # So much time has passed since the end was looked for that this place was freed: whatever is there now is in
        # no log. But ours may have been there before, if this program slept since, or an answer was lost.
        landed = packed_in(self._place, knowledge.meta(), head.base, head.nonce)
        if ours:
            self._place.store.delete([self._place.events_at(head.base)])
        return landed

    def _created(self, head: ObjectHead, data: bytes) -> bool:
        """Put an object; False if another one is there."""
        store, key = self._place.store, self._place.events_at(head.base)
        backoff = Backoff(self._place.clock, FIRST_PAUSE_S, PAUSE_S_MAX, REFUSED_S_MAX)
        while store.create(key, data) is None:
            stored = store.get(key)
            if stored is not None:
                return self._chain.decode(key, stored.data).nonce == head.nonce  # if so, the answer was lost
            if not self._chain.knowledge.stands(head.base):
                return False
            if not backoff.pause():
                raise Unavailable(
                    f"{self._place}: {store.url} refuses to create an object, although none has its key",
                    hint="try again",
                    code="store_unavailable",
                )
        return True

    def _put_last(self) -> bool:
        tip = self._tip()
        head = ObjectHead(
            log=self._place.uuid.hex(),
            base=tip.end,
            end=tip.end,
            nonce=self._place.clock.random_bytes(NONCE_BYTES).hex(),
            previous=tip.nonce,
            writer=self._writer,
            previous_ticks=tip.ticks,
            ticks=tip.ticks,
            closed=True,
        )
        return self._put(head, format.encode(head, []))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._place} was closed")


def _check(group: list[Rows]) -> None:
    for rows in group:
        if rows.expected is not None:
            raise Unsupported(
                "a bucket does not support expected_version",
                hint="append to a directory or a server, or leave out expected_version",
            )
    if any(rows.producer is not None for rows in group[1:]):
        raise Invalid("only the first append of a transaction may name a producer")


def _finish(units: Iterable[Unit], error: BaseException | None) -> None:
    for unit in units:
        if not unit.done:
            unit.finish(error)

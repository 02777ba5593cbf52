"""Runs functions: each event is passed to the code, and its appends are one transaction with the event's ack.

A `FunctionWorker` is a member of the function's consumer: its leases share the partitions among processes, its cursor
is the function's position, and it counts failures, delivers events again and dead-letters them
(consumers/log_consumer.py). A `Shift` is one membership: any failure that it cannot recover from, such as a partition
that was taken over or a full disk, ends it, and what was in hand comes again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial

from headwater.backoff import delay_s
from headwater.consumers.log_consumer import LogConsumer
from headwater.consumers.log_consumers import log_consumers
from headwater.errors import Closed, Fenced, HeadwaterError, NotFound, TooLarge, Unavailable
from headwater.event import Event
from headwater.requests import Consume
from headwater.store import Store
from headwater.transaction import Transaction
from headwater.views.app import Function
from headwater.views.context import Context
from headwater.views.function_counts import FunctionTally

IDLE_S = 1.0  # how often a function that has nothing to do looks up, to write its counts
TOPIC_LOOK_S = 0.2  # how often to look whether a missing topic has been made
PAUSE_S, PAUSE_MAX_S = 0.1, 10.0  # between retries
GONE = ("topic_not_found", "topic_deleted", "consumer_not_found")  # not made yet, deleted, or forgotten: it may come

_log = logging.getLogger("headwater")


class FunctionWorker:
    """Runs a function in one thread; a `ViewWorker` of a runner."""

    def __init__(self, hw: Store, function: Function) -> None:
        self.name = function.name
        self._hw = hw
        self._function = function
        self._tally = FunctionTally(hw, function)
        self._stopping = threading.Event()
        self._consumer: LogConsumer | None = None
        self._trouble: HeadwaterError | None = None
        self._tries = 0  # since something last worked
        self._apart = 0  # so many events are next finished by a transaction each: one of them spoils what it shares

    def run(self) -> None:
        """Call the function for each event, until `stop`. What keeps it from that is tried again, ever more slowly."""
        self._tally.write()
        while not self._stopping.is_set():
            try:
                self._work()
            except Fenced:
                pass  # another member has the partition, or will have: what was in hand is not ours any more
            except BatchAbortedError as error:
                self._apart = error.events
            except HeadwaterError as error:
                if error.code in GONE:
                    self._trouble = None
                    self._stopping.wait(TOPIC_LOOK_S)
                else:
                    self._rest(error)
            except Exception as error:  # noqa: BLE001  # a thread that ended would leave the function undone, silently
                self._rest(Unavailable(f"{type(error).__name__}: {error}"))
        self._tally.write()
        self._tally.close()

    def stop(self) -> None:
        """End `run` as soon as the function returns; what it does until then counts."""
        self._stopping.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.stop()

    def settled(self) -> bool:
        """Return whether all present events were handled or dead-lettered, durably. True while there is no topic.

        Raises Unavailable if something keeps it from going on.
        """
        trouble, consumer = self._trouble, self._consumer
        if trouble is not None:
            raise Unavailable(
                f"function {self.name!r} cannot continue: {trouble.message}", hint=trouble.hint, code="function_stuck"
            ) from trouble
        try:
            if consumer is None:
                return self._function.topic not in self._hw.topics()
            if any(consumer.lag().values()):
                return False
            consumer.flush()
            return not any(consumer.lag().values())
        except (Closed, Fenced, NotFound):
            return False  # it begins another shift just now

    def _work(self) -> None:
        """Run one shift."""
        function = self._function
        request = Consume(
            function.consumer,
            function.topic,
            start=function.start,
            type=function.type,
            match=function.match,
            timeout=IDLE_S,
            failures_max=function.tries,
        )
        consumer = log_consumers(self._hw.consumption).join(request)
        shift = Shift(self._hw, function, consumer, self._tally, self._apart)
        self._apart = 0
        try:
            self._consumer = consumer
            while not self._stopping.is_set() and not consumer.over:
                event = next(consumer, None)
                if event is None:
                    self._tally.write_if_due()
                else:
                    shift.handle(event)
                self._trouble, self._tries = None, 0
        finally:
            self._consumer = None
            with contextlib.suppress(HeadwaterError):  # its leases end by themselves
                consumer.close()

    def _rest(self, error: HeadwaterError) -> None:
        """Wait before the next try."""
        if self._trouble is None or self._trouble.message != error.message:
            _log.warning("function %r cannot continue; retrying: %s", self.name, error)
        self._trouble = error
        self._tries += 1
        self._stopping.wait(delay_s(self._tries, PAUSE_S, PAUSE_MAX_S))


class BatchAbortedError(Exception):
    """One of several events made their common transaction fail: they must be processed one by one."""

    def __init__(self, events: int) -> None:
        super().__init__(events)
        self.events = events


class Shift:
    """One time of being a member. Events that share a transaction are `_pending`; all of them are of one partition."""

    def __init__(self, hw: Store, function: Function, consumer: LogConsumer, tally: FunctionTally, apart: int) -> None:
        """Begin a shift whose first `apart` events get a transaction each."""
        self._hw = hw
        self._function = function
        self._consumer = consumer
        self._tally = tally
        self._apart = apart
        self._pending: list[Event] = []
        self._transaction: Transaction | None = None
        self._broken: Exception | None = None  # what kept earlier events from being committed meanwhile
        self._skipped = 0
        consumer.on_aside = tally.set_aside

    def handle(self, event: Event) -> None:
        """Call the function for an event, and finish it, or leave it to be finished with the next ones."""
        context = Context(self._hw, self._consumer.failures(event) + 1, partial(self._commit_earlier, event))
        failure: BaseException | None = None
        try:
            self._function.act(context, event)
        except BaseException as error:  # noqa: BLE001  # also SystemExit: it is the code's, and not ours to obey
            failure = error
        appended = context.end()
        if self._broken is not None:  # the code may have caught it; but what it did depends on what is not there
            raise self._broken
        if failure is not None:
            self._commit(before=event)
            self._fail(event, failure)
        else:
            self._finish(event, appended, alone=context.alone)
        self._tally.missed(self._consumer.skipped - self._skipped)
        self._skipped = self._consumer.skipped
        self._tally.write_if_due()

    def _finish(self, event: Event, appended: Transaction | None, *, alone: bool) -> None:
        if appended is None and not self._pending:
            self._consumer.ack(event)
            self._tally.handled(1, 0)
            return
        if appended is not None:
            try:
                self._take(appended)
            except TooLarge:
                self._commit(before=event)  # together they are too much, each alone is not
                self._take(appended)
        self._pending.append(event)
        self._apart -= 1
        if alone or self._apart >= 0 or len(self._pending) >= self._function.batch or not self._consumer.ready:
            self._commit()

    def _take(self, appended: Transaction) -> None:
        if self._transaction is None:
            self._transaction = appended
        else:
            self._transaction.absorb(appended)

    def _commit_earlier(self, event: Event) -> None:
        """Commit what waits, while the function runs for an event."""
        try:
            self._commit(before=event)
        except Exception as error:
            self._broken = error
            raise

    def _commit(self, before: Event | None = None) -> None:
        """Commit what waits. If that cannot be, as because of a conflict, its only event has failed.

        Of several, or with another one in hand that must not be finished `before` it, the shift ends, and they come
        again one by one. Raises what ends the shift; then nothing was committed, or the next one finds that it was.
        """
        events, transaction = self._pending, self._transaction
        if not events:
            return
        self._pending, self._transaction = [], None
        assert transaction is not None
        try:
            transaction.ack(*events, consumer=self._consumer)
            transaction.commit()
        except (Fenced, Unavailable, Closed):
            raise
        except HeadwaterError as error:
            if len(events) > 1 or before is not None:
                raise BatchAbortedError(len(events)) from error
            self._fail(events[0], error)
        else:
            self._tally.handled(len(events), transaction.appended)

    def _fail(self, event: Event, error: BaseException) -> None:
        self._tally.failed(event, error)
        self._consumer.fail(event, error)
        self._tally.write()

"""One consumer against a plain model: acks, failures, seeks, closings and crashes, in any order."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.consumers.log_consumer import LogConsumer
from headwater.disk.disk import Clock
from headwater.errors import Fenced
from headwater.event import Event
from headwater.limits import Limits
from headwater.opening import open_directory
from tests.log.unsynced import UnsyncedDisk

PARTITIONS = 2
LEASE_MS = 60_000
LIMITS = Limits(lease_ms=LEASE_MS, ack_ms=3_600_000, retry_ms=0, failures_max=3)  # stored when told, and only then


class Jumping(Clock):
    """Real time, and more when a test says so."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return Clock.monotonic() + self.ahead_s


class Model:
    """What must hold for one partition: all from `stored` on is handed out, unless it was acked and remembered."""

    def __init__(self) -> None:
        self.end = 0
        self.stored = 0  # the lowest cursor that a crash may leave
        self.acked: set[int] = set()
        self.seen: dict[int, Event] = {}
        self.next = 0  # what comes next under this lease
        self.buried: set[int] = set()  # set aside since the last seek, without being handed out

    @property
    def cursor(self) -> int:
        return next(offset for offset in range(self.end + 1) if offset not in self.acked)


class OneConsumer(RuleBasedStateMachine):
    """A consumer of two partitions, always with one member."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="consumer-"))
        self.clock = Jumping()
        self.models = [Model() for _ in range(PARTITIONS)]
        self.dead = 0
        self.sought = False  # from outside: acks may have come too late
        self.known_dead: set[int] = set()

    @initialize()
    def begin(self) -> None:
        self.open()
        self.hw.create("t", partitions=PARTITIONS)
        self.join()

    def open(self) -> None:
        self.hw = open_directory(self.path / "data", disk=UnsyncedDisk(), clock=self.clock, limits=LIMITS)

    def join(self) -> None:
        self.consumer: LogConsumer = self.hw.consumer("c", "t", timeout=0)
        assert self.consumer.partitions == list(range(PARTITIONS))
        for model in self.models:
            model.seen = {}

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 6))
    def append(self, partition: int, count: int) -> None:
        self.hw.append_many("t", [b"x"] * count, partition=partition)
        self.models[partition].end += count

    @rule(count=st.integers(1, 8))
    def read(self, count: int) -> None:
        for _ in range(count):
            event = next(self.consumer, None)
            self.bury()
            if event is None:
                for model in self.models:  # nothing that is not acked was left out
                    assert set(range(model.cursor, model.end)) <= set(model.seen) | model.acked
                return
            model = self.models[event.partition]
            assert event.offset not in model.acked, "it was acked under this lease"
            if event.offset not in model.seen:
                expected = next(offset for offset in range(model.next, model.end) if offset not in model.buried)
                assert event.offset == expected, "in order, without a gap"
                model.next = event.offset + 1
            model.seen[event.offset] = event

    def bury(self) -> None:
        """What was in hand at three crashes is set aside before it is handed out once more."""
        if "t.dead" in self.hw.topics():
            for event in self.hw.read("t.dead"):
                model, offset = self.models[int(event.meta["dead_partition"])], int(event.meta["dead_offset"])
                if event.meta["dead_error"] != "no" and event.offset not in self.known_dead:
                    self.known_dead.add(event.offset)
                    model.buried.add(offset)
                    model.acked.add(offset)
                    self.stored_all()

    def some(self, data: st.DataObject) -> Event | None:
        seen = [event for model in self.models for event in model.seen.values()]
        return data.draw(st.sampled_from(seen)) if seen else None

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        event = self.some(data)
        if event is not None:
            self.consumer.ack(event)
            self.models[event.partition].acked.add(event.offset)

    @rule(data=st.data())
    def ack_to(self, data: st.DataObject) -> None:
        event = self.some(data)
        if event is not None:
            self.consumer.ack_to(event)
            model = self.models[event.partition]
            model.acked |= {offset for offset in model.seen if offset <= event.offset}

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        event = self.some(data)
        if event is not None and self.consumer.fail(event, "no"):
            model = self.models[event.partition]
            if event.offset not in model.acked:
                self.dead += 1
                model.acked.add(event.offset)
                self.stored_all()

    @rule()
    def flush(self) -> None:
        with contextlib.suppress(*[Fenced] if self.sought else []):
            self.consumer.flush()
        self.sought = False
        self.stored_all()

    @rule(partition=st.integers(0, PARTITIONS - 1), data=st.data())
    def seek(self, partition: int, data: st.DataObject) -> None:
        model = self.models[partition]
        offset = data.draw(st.integers(0, model.end))
        if data.draw(st.booleans()):
            self.consumer.seek(offset, partition=partition)
        else:
            self.hw.seek("c", "t", offset, partition=partition)
            self.sought = True
            self.consumer._member.tend(claim=True)
        self.moved(model, offset)

    @rule()
    def close(self) -> None:
        self.consumer.close()
        self.stored_all()
        self.again()

    @rule()
    def crash(self) -> None:
        """The process is gone: its thread does nothing more, its leases expire, its memory is lost."""
        self.consumer._member.closed = True
        self.consumer._member._wake.set()
        self.consumer._member._thread.join()
        self.hw._members.clear()
        self.clock.ahead_s += LEASE_MS / 1000 + 1
        self.again()

    def again(self) -> None:
        """Another member takes over: what was stored is not handed out again, what was not acked is."""
        self.hw.close()
        self.open()
        for info in self.hw.consumers("t"):
            model = self.models[info.partition]
            assert model.stored <= info.cursor <= model.cursor
            self.moved(model, info.cursor)
        self.join()

    def moved(self, model: Model, cursor: int) -> None:
        model.acked = set(range(cursor))
        model.seen = {}
        model.buried = set()
        model.stored = model.next = cursor

    def stored_all(self) -> None:
        for model in self.models:
            model.stored = model.cursor

    @invariant()
    @precondition(lambda self: hasattr(self, "consumer"))
    def the_lag_is_what_is_not_acked(self) -> None:
        for partition, lag in self.consumer.lag().items():
            model = self.models[partition]
            assert lag == model.end - model.cursor

    def teardown(self) -> None:
        if hasattr(self, "hw"):
            self.consumer.close()
            dead: Any = self.hw.describe("t.dead").events if "t.dead" in self.hw.topics() else 0
            assert dead >= self.dead
            self.hw.close()
        shutil.rmtree(self.path)


TestOneConsumer = OneConsumer.TestCase
TestOneConsumer.settings = settings(max_examples=40, stateful_step_count=40)

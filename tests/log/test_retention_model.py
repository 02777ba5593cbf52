"""Retention against a plain model: which segments stay, where the log begins, and what is read from there on."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.errors import NotFound
from headwater.event import time_of
from headwater.format.names import file_of
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.test_retention import SetClock
from tests.log.unsynced import UnsyncedDisk

LIMITS = Limits(blob_bytes_min=300, pack_bytes=2000, pack_events=20)
MINUTE = 60_000
engines = st.integers(0, 1)
nothing = st.just(0)
retentions = st.fixed_dictionaries(
    {},
    optional={
        "retention_bytes": nothing | st.integers(1, 6000),
        "retention_segments": nothing | st.integers(1, 5),
        "retention_age_ms": nothing | st.integers(1, 10).map(lambda minutes: minutes * MINUTE),
        "retention_consumers": st.booleans(),
        "retention_bytes_hard": st.integers(1, 9000),
        "overflow": st.sampled_from(["delete", "refuse"]),
    },
)


class Model:
    """The events that were ever appended, with their ticks, and the first offsets of the segments that are left."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bytes]] = []
        self.bases = [0]
        self.kept: dict[str, Any] = {"retention_bytes_hard": 9000}
        self.cursor: int | None = None

    def retain(self, sizes: list[int], now: int, before: int, before_ticks: int, command: bool) -> list[int]:
        """The segments that go, by the rules of the documentation, one after the other from the oldest."""
        kept, gone = self.kept.get, list[int]()
        age = kept("retention_age_ms", 0) * 10_000
        bases, sizes = list(self.bases), list(sizes)
        while True:
            active = len(bases) == 1
            end = len(self.events) if active else bases[1]
            last_ticks = self.events[end - 1][0] if end else now
            too_old = bool(age) and last_ticks < now - age
            unwanted = (
                0 < kept("retention_bytes", 0) < sum(sizes)
                or 0 < kept("retention_segments", 0) < len(bases)
                or too_old
                or end <= before
                or last_ticks < before_ticks
            )
            unread = kept("retention_consumers", False) and self.cursor is not None and self.cursor < end
            over = sum(sizes) > kept("retention_bytes_hard", 0) > 0
            refuse = kept("overflow", "delete") == "refuse"
            if active:
                if not (command and too_old and not unread and end > bases[0]):
                    return gone
            elif over and not refuse:
                pass
            elif unread or not (unwanted or (over and kept("retention_consumers", False))):
                return gone
            gone.append(bases.pop(0))
            sizes.pop(0)
            if not bases:
                bases, sizes = [end], [64]
                self.bases = bases
                return gone
            self.bases = bases


class RetentionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.clock = SetClock()
        self.model = Model()
        self.engines = [self.open(), self.open()]
        self.engines[0].create("t", retention_bytes_hard=9000)
        self.cursors = [engine._topics.live("t").logs[0].cursor(0) for engine in self.engines]

    def open(self) -> Store:
        engine = open_directory(self.path / "data", limits=LIMITS, disk=UnsyncedDisk(), clock=self.clock)
        engine._keeper.slowest = lambda _topic, _partition: self.model.cursor
        return engine

    def teardown(self) -> None:
        assert not self.engines[0].check().damaged
        for engine in self.engines:
            engine.close()
        shutil.rmtree(self.path)

    @rule(engine=engines, sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4), minutes=st.integers(0, 4))
    def append(self, engine: int, sizes: list[int], minutes: int) -> None:
        self.clock.pass_ms(minutes * MINUTE)
        for size in sizes:
            data = (b"%d " % len(self.model.events)).ljust(size, b".")
            ref = self.engines[engine].append("t", data)
            assert ref.offset == len(self.model.events)
            self.model.events.append((ref.ticks, data))

    @rule(engine=engines)
    def roll(self, engine: int) -> None:
        if self.engines[engine]._topics.live("t").logs[0].roll(tell=False):
            self.model.bases.append(len(self.model.events))

    @rule(engine=engines)
    def seal(self, engine: int) -> None:
        self.roll(engine)
        self.engines[engine].seal("t")

    @rule(data=st.data())
    def move_consumer(self, data: st.DataObject) -> None:
        self.model.cursor = data.draw(st.none() | st.integers(0, len(self.model.events)))

    @rule(engine=engines, changes=retentions, dry_run=st.booleans())
    def retain(self, engine: int, changes: dict[str, Any], dry_run: bool) -> None:
        known, bases = dict(self.model.kept), list(self.model.bases)
        self.model.kept |= changes
        expected = self.model.retain(self.sizes(), self.clock.now, 0, 0, True)
        deleted = self.engines[engine].retain("t", **changes, dry_run=dry_run)
        assert [each.first for each in deleted] == expected
        if dry_run:
            self.model.kept, self.model.bases = known, bases

    @rule(engine=engines)
    def retain_after_a_roll(self, engine: int) -> None:
        self.model.retain(self.sizes(), self.clock.now, 0, 0, False)
        self.engines[engine]._keeper.rolled(self.engines[engine]._topics.live("t").logs[0].place)

    @rule(engine=engines, data=st.data())
    def retain_before(self, engine: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.model.events)))
        by_time = bool(self.model.events) and data.draw(st.booleans())
        ticks = self.model.events[min(offset, len(self.model.events) - 1)][0] if by_time else 0
        ticks -= ticks % 10  # a datetime tells microseconds
        expected = self.model.retain(self.sizes(), self.clock.now, 0 if by_time else offset, ticks, True)
        deleted = self.engines[engine].retain("t", before=time_of(ticks) if by_time else offset)
        assert [each.first for each in deleted] == expected

    @rule(engine=engines)
    def reopen(self, engine: int) -> None:
        self.engines[engine].close()
        self.engines[engine] = self.open()
        self.cursors[engine] = self.engines[engine]._topics.live("t").logs[0].cursor(self.model.bases[0])

    @rule(engine=engines)
    def go_on_reading(self, engine: int) -> None:
        """A cursor in the midst of the log reads on, or is told where the log begins now."""
        cursor, start, end = self.cursors[engine], self.model.bases[0], len(self.model.events)
        at, gone = cursor.offset, None
        try:
            for batch in cursor.batches(end):
                assert batch.base_offset <= at < batch.end_offset
                at = batch.end_offset
        except NotFound as error:
            gone = error
        if gone is None:
            assert at == end
        else:
            assert (gone.code, gone.oldest) == ("offset_gone", start)
            assert cursor.offset < start
            self.cursors[engine] = self.engines[engine]._topics.live("t").logs[0].cursor(start)

    @rule(engine=engines, data=st.data(), reverse=st.booleans())
    def read_from(self, engine: int, data: st.DataObject, reverse: bool) -> None:
        at, start, end = data.draw(st.integers(0, len(self.model.events))), self.model.bases[0], len(self.model.events)
        events = self.engines[engine].read("t", start=at, reverse=reverse)
        if at < start:
            with pytest.raises(NotFound) as error:
                list(events)
            assert (error.value.code, error.value.oldest) == ("offset_gone", start)
        else:
            wanted = [(offset, *self.model.events[offset]) for offset in range(at, end)]
            found = [(event.offset, event.ticks, event.data) for event in events]
            assert found == (wanted[::-1] if reverse else wanted)

    @invariant()
    def the_segments_of_the_model_are_there(self) -> None:
        path = self.path / "data/topics/t/0"
        assert sorted(name for name in os.listdir(path) if name.endswith(".log")) == [
            file_of(base, "log") for base in self.model.bases
        ]
        for engine in self.engines:
            [told] = engine.describe("t").partitions
            assert (told.start, told.end) == (self.model.bases[0], len(self.model.events))

    def sizes(self) -> list[int]:
        """Bytes of each segment, the oldest first, as the disk tells them."""
        path, sizes = self.path / "data/topics/t/0", dict.fromkeys(self.model.bases, 0)
        for directory, _, names in os.walk(path):
            for name in names:
                stem = (Path(directory).name if directory.endswith(".blobs") else name).partition(".")[0]
                if stem.isdecimal():
                    sizes[int(stem)] += os.path.getsize(os.path.join(directory, name))
        active = self.model.bases[-1]
        reserved = (
            os.path.getsize(path / file_of(active, "log"))
            - self.engines[0]._topics.live("t").logs[0].state().visible_position
        )
        return [size - reserved if base == active else size for base, size in sizes.items()]


RetentionMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestRetentionMachine = RetentionMachine.TestCase

"""Rules of the state machine for topics, appends, reads and keeping; each compares the engine with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
)

from headwater.consumers.log_consumer import LogConsumer
from headwater.errors import Conflict, Fenced, NotFound
from headwater.event import Event, Ref
from headwater.format.names import file_of, partition_of
from headwater.store import Store
from tests.engine.model import (
    Handle,
    Log,
    Model,
    Request,
    Row,
    Step,
    Topic,
    copy_of,
)
from tests.engine.stage import Stage, segments_of

PARTITIONS = {"a": 1, "b": 2}
FILTERS: dict[str, dict[str, Any]] = {"all": {}, "placed": {"type": "placed"}}  # of the consumers, by name
KEYS = [b"k", b"l", b"m"]
TYPES = ["", "placed", "paid"]

engines = st.integers(0, 1)
picks = st.just(0) | st.integers(0, 20)  # things meet more often where most of them are done
durabilities = st.sampled_from(["fsync", "os"])
shapes = st.tuples(st.sampled_from(["bytes", "json"]), st.sampled_from(TYPES), st.sampled_from([None, *KEYS]))
versions = st.sampled_from([None, None, "right", "none", "wrong"])
Shape = tuple[str, str, bytes | None]


@dataclass
class Member:
    """A live member of a consumer, and what it holds."""

    consumer: LogConsumer
    engine: int
    handles: dict[int, Handle] = field(default_factory=dict)
    moved: bool = False  # somebody moved the consumer since it last stored its acks: some may have been lost

    @property
    def filters(self) -> dict[str, Any]:
        return FILTERS[self.consumer.name]


def row_of(event: Event) -> Row:
    assert event.data is not None
    return Row(event.data, event.content, event.type, event.key)


class LogRules(RuleBasedStateMachine):
    """What rules are made of, and the rules of topics, appends, reads and keeping."""

    def __init__(self) -> None:
        super().__init__()
        self.stage: Stage
        self.model: Model = {}
        self.step = Step({}, {})
        self.done_at = 0  # operations of the disk after which the last step was done
        self.members: list[Member] = []
        self.number = 0

    @contextmanager
    def doing(self) -> Iterator[Step]:
        """An operation in which a crash may come later; the model is changed inside."""
        self.stage.begin()
        self.step = Step(copy_of(self.model), {}, ghosts=self.step.ghosts)
        try:
            yield self.step
        finally:
            self.step.after = copy_of(self.model)
            self.done_at = self.stage.operations()

    def topic_of(self, pick: int) -> str:
        return sorted(self.model)[pick % len(self.model)]

    def log_of(self, pick: int) -> tuple[str, int, Log]:
        places = [(name, n, log) for name in sorted(self.model) for n, log in enumerate(self.model[name].logs)]
        return places[pick % len(places)]

    def row(self, shape: Shape, size: int = 0) -> Row:
        """An event that differs from all others."""
        self.number += 1
        content, type, key = shape
        data = b'{"n":%d,"i":%d}' % (self.number % 5, self.number) if content == "json" else b"%d " % self.number
        return Row(data.ljust(size, b" "), "json" if content == "json" else "bytes", type, key)

    def appended(self, topic: str, refs: Sequence[Ref], rows: Sequence[Row]) -> None:
        """Each partition's share of a call came together."""
        logs = self.model[topic].logs
        for number, log in enumerate(logs):
            mine = [(ref, row) for ref, row in zip(refs, rows, strict=True) if ref.partition == number]
            assert [ref.offset for ref, _ in mine] == list(range(log.end, log.end + len(mine)))
            durable = any(ref.durability == "fsync" for ref, _ in mine)
            self.model[topic].sure |= durable
            log.append([row for _, row in mine], [ref.ticks for ref, _ in mine], durable=durable)
        for ref, row in zip(refs, rows, strict=True):
            assert len(logs) == 1 or row.key is None or ref.partition == partition_of(row.key, len(logs))

    def expect(self, topic: str, key: bytes | None, mode: str | None) -> tuple[Any, int | None, bool]:
        """The version to expect, the one that there is, and whether they are the same."""
        logs = self.model[topic].logs
        if mode is None or key is None:
            return None, None, True
        actual = logs[partition_of(key, len(logs))].version(key)
        if mode == "wrong":
            return (0 if actual is None else actual + 1), actual, False
        if mode == "right":
            return ("none" if actual is None else actual), actual, True
        return "none", actual, actual is None

    def cursors(self, topic: str, name: str) -> list[int]:
        """The stored cursors, as an engine tells them, with ends and lags."""
        logs = self.model[topic].logs
        found = [info for info in self.stage.engines[0].consumers(topic) if info.name == name]
        assert [(info.partition, info.end) for info in found] == [(n, log.end) for n, log in enumerate(logs)]
        assert [info.lag for info in found] == [info.end - info.cursor for info in found]
        return [info.cursor for info in found]

    # Topics

    @precondition(lambda self: len(self.model) < len(PARTITIONS))
    @rule(engine=engines, name=st.sampled_from(sorted(PARTITIONS)))
    def create(self, engine: int, name: str) -> None:
        with self.doing():
            options: Any = {"retention_consumers": name == "b"}
            new = self.stage.engines[engine].create(name, partitions=PARTITIONS[name], **options)
            assert new == (name not in self.model)
            if new:
                self.model[name] = Topic([Log() for _ in range(PARTITIONS[name])])
            self.model[name].sure = True

    @precondition(lambda self: self.model)
    @rule(engine=engines, pick=picks, sure=st.sampled_from([False, False, True]))
    def delete(self, engine: int, pick: int, sure: bool) -> None:
        if not sure:
            return  # it would be done too often
        topic = self.topic_of(pick)
        with self.doing():
            self.stage.engines[engine].delete(topic)
            del self.model[topic]
        for member in [member for member in self.members if member.consumer.topic == topic]:
            self.members.remove(member)
            member.consumer.close()

    # Appending

    @precondition(lambda self: self.model)
    @rule(
        engine=engines,
        pick=picks,
        shape=shapes,
        durability=durabilities,
        mode=versions,
        size=st.sampled_from([0, 0, 100, 400]),
    )
    def append(self, engine: int, pick: int, shape: Shape, durability: Any, mode: str | None, size: int) -> None:
        topic, row = self.topic_of(pick), self.row(shape, size)
        expected, actual, holds = self.expect(topic, row.key, mode)
        options: Any = {"content": row.content, "type": row.type, "key": row.key, "expected_version": expected}
        append = partial(self.stage.engines[engine].append, topic, row.data, durability=durability, **options)
        with self.doing():
            if holds:
                self.appended(topic, [append()], [row])
            else:
                with pytest.raises(Conflict) as caught:
                    append()
                assert (caught.value.code, caught.value.version) == ("version_conflict", actual)

    @precondition(lambda self: self.model)
    @rule(engine=engines, pick=picks, drawn=st.lists(shapes, min_size=1, max_size=6), durability=durabilities)
    def append_many(self, engine: int, pick: int, drawn: list[Shape], durability: Any) -> None:
        topic = self.topic_of(pick)
        rows = [self.row((drawn[0][0], type, key)) for _, type, key in drawn]
        with self.doing():
            refs = self.stage.engines[engine].append_many(
                topic,
                [row.data for row in rows],
                content=rows[0].content,
                types=[row.type for row in rows],
                keys=[row.key for row in rows],
                durability=durability,
            )
            self.appended(topic, refs, rows)

    @precondition(lambda self: self.model)
    @rule(
        engine=engines,
        pick=picks,
        id=st.sampled_from("xyz"),
        epoch=st.sampled_from([0, 0, 0, 1]),
        drawn=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1, 1, 1, 2])), min_size=1, max_size=4),
        durability=durabilities,
    )
    def produce(
        self, engine: int, pick: int, id: str, epoch: int, drawn: list[tuple[int, int]], durability: Any
    ) -> None:
        for seq, size in drawn:
            self.produce_one(engine, pick, (id, epoch, seq), size, durability)

    def produce_one(self, engine: int, pick: int, producer: tuple[str, int, int], size: int, durability: Any) -> None:
        topic, number, log = self.log_of(pick)
        rows = [self.row(("bytes", "", None)) for _ in range(size)]
        first = log.answer(*producer, size)
        with self.doing():
            if isinstance(first, str):
                with pytest.raises((Conflict, Fenced)) as caught:
                    self.request(engine, topic, number, rows, producer, durability)
                assert caught.value.code == first
                return
            refs = self.request(engine, topic, number, rows, producer, durability)
            if first is None:
                log.requests.append(Request(*producer, log.end, size))
                self.appended(topic, refs, rows)
            else:
                self.check_answer(log, first, refs)

    def request(
        self, engine: int, topic: str, number: int, rows: list[Row], producer: tuple[str, int, int], durability: Any
    ) -> Sequence[Ref]:
        data = [row.data for row in rows]
        return self.stage.engines[engine].append_many(
            topic, data, partition=number, producer=producer, durability=durability
        )

    def check_answer(self, log: Log, first: Request, refs: Sequence[Ref]) -> None:
        """A retry got the first answer. If it asked for a sync, it got one."""
        there = range(first.offset, first.offset + first.size)
        assert [(ref.offset, ref.ticks) for ref in refs] == [(offset, log.events[offset].ticks) for offset in there]
        if refs[0].durability == "fsync":
            log.durable = max(log.durable, there.stop)

    def check_producers(self, hw: Store, topic: str, number: int, log: Log) -> None:
        for request in log.requests:
            first = log.answer(request.id, request.epoch, request.seq, request.size)
            if isinstance(first, Request):
                producer = request.id, request.epoch, request.seq
                refs = hw.append_many(topic, [b"again"] * request.size, partition=number, producer=producer)
                self.check_answer(log, first, refs)

    # Reading

    @precondition(lambda self: self.model)
    @rule(
        engine=engines,
        pick=picks,
        type=st.sampled_from([None, None, *TYPES]),
        key=st.sampled_from([None, *KEYS]),
        above=st.sampled_from([None, None, 2]),
        reverse=st.booleans(),
        data=st.data(),
    )
    def read(
        self, engine: int, pick: int, type: Any, key: Any, above: int | None, reverse: bool, data: st.DataObject
    ) -> None:
        topic, number, log = self.log_of(pick)
        hw = self.stage.engines[engine]
        lo, hi = (data.draw(st.integers(log.start, log.end + 1)) for _ in range(2))
        filters: dict[str, Any] = {"type": type, "key": key}
        match: dict[str, Any] = {} if above is None else {"match": {"n": {"$gt": above}}}
        place: Any = {"partition": number, "start": lo}
        wanted = [(o, log.events[o].row) for o in log.there(**filters, above=above) if lo <= o]
        bounded = [each for each in wanted if each[0] < hi]
        events = hw.read(topic, **place, end=hi, reverse=reverse, **filters, **match)
        found = [(event.offset, row_of(event)) for event in events]
        assert found == (bounded[::-1] if reverse else bounded)
        followed = hw.follow(topic, **place, timeout=0, **filters, **match)
        assert [(event.offset, row_of(event)) for event in followed] == wanted
        if log.start:
            with pytest.raises(NotFound) as caught:
                next(hw.read(topic, partition=number, start=log.start - 1))
            assert (caught.value.code, caught.value.oldest) == ("offset_gone", log.start)

    @precondition(lambda self: len(self.model) < len(PARTITIONS))
    @rule(engine=engines, name=st.sampled_from(sorted(PARTITIONS)))
    def look_for_a_topic(self, engine: int, name: str) -> None:
        hw = self.stage.engines[engine]
        calls: list[Callable[..., Any]] = [hw.read, hw.follow, hw.describe, hw.consumers, hw.seal, hw.sync]
        if name not in self.model:
            for call in calls:
                with pytest.raises(NotFound):
                    call(name)
            with pytest.raises(NotFound):
                hw.version(name, b"k")

    # Keeping

    @precondition(lambda self: self.model)
    @rule(engine=engines, pick=picks, before=st.integers(0, 60))
    def retain(self, engine: int, pick: int, before: int) -> None:
        topic, number, log = self.log_of(pick)
        cursors = [self.cursors(topic, name)[number] for name in self.model[topic].consumers]
        slowest = min(cursors, default=log.end) if topic == "b" else log.end
        bases = segments_of(self.stage, topic, number)
        with self.doing() as step:
            # A crash in its midst may have deleted some of them.
            step.before[topic].logs[number].starts |= {base for base in bases if base >= log.start}
            deleted = self.stage.engines[engine].retain(topic, before=before, partition=number)
            kept = max(base for base in bases if base <= max(log.start, min(before, slowest)))
            assert [each.first for each in deleted] == [base for base in bases if base < kept]
            log.start, log.starts = kept, {kept}
            step.before[topic].logs[number].starts -= {base for base in bases if base > kept}

    @precondition(lambda self: self.model)
    @rule(engine=engines, pick=picks, what=st.sampled_from(["seal", "sync", "reindex", "lose indexes"]))
    def tidy(self, engine: int, pick: int, what: str) -> None:
        topic, hw = self.topic_of(pick), self.stage.engines[engine]
        with self.doing():
            if what == "reindex":
                hw.reindex(topic)
            elif what == "lose indexes":
                for number in range(len(self.model[topic].logs)):
                    self.lose_indexes(topic, number)
            else:
                hw.seal(topic) if what == "seal" else hw.sync(topic)
                for log in self.model[topic].logs:
                    log.durable = log.end

    def lose_indexes(self, topic: str, number: int) -> None:
        for base in segments_of(self.stage, topic, number):
            index = self.stage.path / "topics" / topic / str(number) / file_of(base, "index")
            if index.exists():
                self.stage.disk.unlink(index)

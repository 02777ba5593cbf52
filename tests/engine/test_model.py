"""Two engines on one directory against a plain model, over everything that programs do, and crashes between.

Each rule does something and compares the answer with the model's. A crash goes back into the last operation, or to
behind it: whatever a kill or a power loss leaves there is opened, checked, and gone on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.engine.consumer import Consumer
from headwater.engine.engine import Engine
from headwater.errors import Conflict, Fenced, Invalid, NotFound
from headwater.event import Durability, Event, Ref
from headwater.format.names import file_of, partition_of
from tests.crash.machine import Loss
from tests.engine.model import (
    Cursor,
    Found,
    FoundLog,
    Handle,
    Log,
    Model,
    Move,
    Refused,
    Request,
    Row,
    Step,
    Topic,
    ascending,
    copy_of,
    survived,
)
from tests.engine.stage import Stage, segments_of

PARTITIONS = {"a": 1, "b": 2}
FILTERS: dict[str, dict[str, Any]] = {"all": {}, "placed": {"type": "placed"}}  # of the consumers, by name
KEYS = [None, b"k", b"l", b"m"]
TYPES = ["", "placed", "paid"]

engines = st.integers(0, 1)
picks = st.integers(0, 20)
durabilities = st.sampled_from(["fsync", "os"])
shapes = st.tuples(st.sampled_from(["bytes", "json"]), st.sampled_from(TYPES), st.sampled_from(KEYS))
versions = st.sampled_from([None, None, "right", "none", "wrong"])
losses = st.builds(
    Loss,
    st.sampled_from(["dropped", "random", "kept"]),
    st.sampled_from(["dropped", "ordered", "adversarial", "kept"]),
    st.integers(0, 1000),
)
cuts = st.integers(0, 100)  # percent of the last operation
Shape = tuple[str, str, bytes | None]


@dataclass
class Member:
    """A live member of a consumer, and what it holds."""

    consumer: Consumer
    engine: int
    handles: dict[int, Handle] = field(default_factory=dict)
    moved: bool = False  # somebody moved the consumer since it last stored its acks: some may have been lost

    @property
    def filters(self) -> dict[str, Any]:
        return FILTERS[self.consumer.name]


def row_of(event: Event) -> Row:
    assert event.data is not None
    return Row(event.data, event.content, event.type, event.key)


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.model: Model = {}
        self.step = Step({}, {})
        self.done_at = 0  # operations of the disk after which the last step was done
        self.members: list[Member] = []
        self.number = 0

    def teardown(self) -> None:
        try:
            self.check_everything()
        finally:
            self.stage.close()

    # What rules are made of

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

    # Topics

    @initialize(
        events=st.lists(st.tuples(picks, st.lists(shapes, min_size=1, max_size=6)), max_size=4),
        joined=st.lists(st.tuples(engines, picks, st.sampled_from(sorted(FILTERS))), max_size=2),
    )
    def begin(self, events: list[tuple[int, list[Shape]]], joined: list[tuple[int, int, str]]) -> None:
        for name in PARTITIONS:
            self.create(0, name)
        for pick, drawn in events:
            self.append_many(0, pick, drawn, "fsync")
        for engine, pick, name in joined:
            self.join(engine, pick, name, "earliest")

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
        with self.doing():
            try:
                ref = self.stage.engines[engine].append(
                    topic,
                    row.data,
                    content=row.content,
                    type=row.type,
                    key=row.key,
                    durability=durability,
                    expected_version=expected,
                )
            except Conflict as error:
                assert not holds, "a version was as expected, and the append was refused"
                assert (error.code, error.version) == ("version_conflict", actual)
            else:
                assert holds, "a version was not as expected, and the append was not refused"
                self.appended(topic, [ref], [row])

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
        seq=st.integers(0, 6),
        count=st.sampled_from([1, 1, 2]),
        durability=durabilities,
    )
    def produce(self, engine: int, pick: int, id: str, epoch: int, seq: int, count: int, durability: Any) -> None:
        topic, number, log = self.log_of(pick)
        rows = [self.row(("bytes", "", None)) for _ in range(count)]
        with self.doing():
            try:
                first = log.answer(id, epoch, seq, count)
            except Refused as refused:
                with pytest.raises((Conflict, Fenced)) as caught:
                    self.request(engine, topic, number, rows, (id, epoch, seq), durability)
                assert caught.value.code == str(refused)
                return
            refs = self.request(engine, topic, number, rows, (id, epoch, seq), durability)
            if first is None:
                log.requests.append(Request(id, epoch, seq, log.end, count))
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
        there = range(first.offset, first.offset + first.count)
        assert [(ref.offset, ref.ticks) for ref in refs] == [(offset, log.events[offset].ticks) for offset in there]
        if refs[0].durability == "fsync":
            log.durable = max(log.durable, there.stop)

    @precondition(lambda self: self.model)
    @rule(
        engine=engines,
        drawn=st.lists(st.tuples(picks, shapes, versions), max_size=4),
        acks=st.integers(0, 3),
        pick=picks,
        commit=st.sampled_from([True, True, True, False]),
        durability=durabilities,
    )
    def transact(
        self,
        engine: int,
        drawn: list[tuple[int, Shape, str | None]],
        acks: int,
        pick: int,
        commit: bool,
        durability: Durability,
    ) -> None:
        member = self.member_of(pick) if self.members and acks else None
        if member is not None and not any(handle.open() for handle in member.handles.values()):
            self.take_some(member, acks)
        engine = engine if member is None else member.engine
        rows = [(self.topic_of(where), self.row(shape)) for where, shape, _ in drawn]
        conditions = [self.expect(topic, row.key, mode) for (topic, row), (_, _, mode) in zip(rows, drawn, strict=True)]
        holds = all(each[2] for each in conditions)
        with self.doing() as step:
            tx = self.stage.engines[engine].transaction(durability=durability)
            for (topic, row), (expected, _, _) in zip(rows, conditions, strict=True):
                options: Any = {"type": row.type, "key": row.key, "content": row.content}
                tx.append(topic, row.data, **options, expected_version=expected)
            moves = [] if member is None else self.ack_in(tx, member, acks)
            if not commit:
                tx.discard()
                return
            try:
                refs = tx.commit()
            except Conflict as error:
                assert not holds
                assert error.version in [actual for _, actual, same in conditions if not same]
                return
            assert holds, "a transaction did not keep to an expected version"
            for topic in {topic for topic, _ in rows}:
                mine = [n for n, (name, _) in enumerate(rows) if name == topic]
                self.appended(topic, [refs[n] for n in mine], [rows[n][1] for n in mine])
            step.parts = sorted({(ref.topic, ref.partition) for ref in refs})
            step.moves = moves
            if member is not None:
                self.moved(member, moves)

    def ack_in(self, tx: Any, member: Member, count: int) -> list[Move]:
        """Ack the next events that a member has in its hands, up to so many of each partition."""
        moves = []
        for number, handle in sorted(member.handles.items()):
            taken = handle.open()[:count]
            log = self.model[member.consumer.topic].logs[number]
            if not handle.stale and taken and taken[0] == handle.cursor(log, member.filters)[1]:
                tx.ack(*(handle.handed[offset] for offset in taken), consumer=member.consumer)
                moves.append(Move(member.consumer.name, member.consumer.topic, number, taken[-1] + 1))
        return moves

    def moved(self, member: Member, moves: list[Move]) -> None:
        """A transaction acked all that was handed out up to its cursors, durably."""
        for move in moves:
            handle = member.handles[move.partition]
            handle.acked |= {offset for offset in handle.handed if offset < move.cursor}
            handle.failed -= handle.acked
            self.model[move.topic].consumers[move.consumer][move.partition].durable = move.cursor
        self.note(member)

    # Reading

    @precondition(lambda self: self.model)
    @rule(
        engine=engines,
        pick=picks,
        type=st.sampled_from([None, None, *TYPES]),
        key=st.sampled_from(KEYS),
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
        match = {} if above is None else {"match": {"n": {"$gt": above}}}
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

    # Consumers

    def member_of(self, pick: int) -> Member:
        return self.members[pick % len(self.members)]

    def stored(self, member: Member) -> list[Cursor]:
        return self.model[member.consumer.topic].consumers[member.consumer.name]

    def cursors(self, topic: str, name: str) -> list[int]:
        """The stored cursors, as an engine tells them, with ends and lags."""
        logs = self.model[topic].logs
        found = [info for info in self.stage.engines[0].consumers(topic) if info.name == name]
        assert [(info.partition, info.end) for info in found] == [(n, log.end) for n, log in enumerate(logs)]
        assert [info.lag for info in found] == [info.end - info.cursor for info in found]
        return [info.cursor for info in found]

    def note(self, member: Member) -> None:
        """Take down how far a member may have come, and what it holds since."""
        topic, name = member.consumer.topic, member.consumer.name
        logs, stored, cursors = self.model[topic].logs, self.stored(member), self.cursors(topic, name)
        fences = member.consumer.fences
        for number in sorted(member.handles):
            handle = member.handles[number]
            if not handle.stale:
                stored[number].highest = handle.cursor(logs[number], member.filters)[1]
            if fences.get(number) != handle.fence:
                del member.handles[number]
                if not handle.stale:  # given up, which is durable
                    self.settle(member, number, handle, cursors[number])
        for number, fence in fences.items():
            if number not in member.handles:
                assert stored[number].durable <= cursors[number] <= max(stored[number].highest, logs[number].end)
                assert not any(
                    number in other.handles and not other.handles[number].stale for other in self.fellows(member)
                )
                member.handles[number] = Handle(fence, cursors[number], cursors[number])

    def fellows(self, member: Member) -> list[Member]:
        """The other members of the same consumer."""
        mine = member.consumer.topic, member.consumer.name
        return [o for o in self.members if o is not member and (o.consumer.topic, o.consumer.name) == mine]

    def settle(self, member: Member, number: int, handle: Handle, cursor: int) -> None:
        """The cursor of a partition was stored durably."""
        lo, hi = handle.cursor(self.model[member.consumer.topic].logs[number], member.filters)
        assert lo <= cursor <= hi, f"the cursor is {cursor}, not between {lo} and {hi}"
        stored = self.stored(member)[number]
        stored.durable, stored.highest = cursor, hi

    @precondition(lambda self: self.model and len(self.members) < 4)
    @rule(
        engine=engines, pick=picks, name=st.sampled_from(sorted(FILTERS)), start=st.sampled_from(["earliest", "latest"])
    )
    def join(self, engine: int, pick: int, name: str, start: Any) -> None:
        topic = self.topic_of(pick)
        logs = self.model[topic].logs
        with self.doing():
            consumer = self.stage.engines[engine].consumer(name, topic, start=start, timeout=0, **FILTERS[name])
            if name not in self.model[topic].consumers:
                starts = [log.start if start == "earliest" else log.end for log in logs]
                self.model[topic].consumers[name] = [Cursor(at, at) for at in starts]
                for log, at in zip(logs, starts, strict=True):
                    log.durable = max(log.durable, at)
            self.model[topic].sure_consumers.add(name)
            member = Member(consumer, engine)
            self.note(member)
            self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(
        pick=picks,
        count=st.integers(1, 6),
        pause_s=st.sampled_from([0, 0, 2]),
        fresh=st.lists(shapes, max_size=5),
        durability=durabilities,
    )
    def take(self, pick: int, count: int, pause_s: int, fresh: list[Shape], durability: Any) -> None:
        member = self.member_of(pick)
        if fresh:
            self.append_many(member.engine, sorted(self.model).index(member.consumer.topic), fresh, durability)
        self.take_some(member, count, pause_s)

    def take_some(self, member: Member, count: int, pause_s: int = 0) -> None:
        self.stage.clock.now_s += pause_s  # then it looks for partitions to claim, or to give up
        with self.doing():
            for _ in range(count):
                event = next(member.consumer, None)
                self.note(member)
                if event is None:
                    self.nothing_is_left(member)
                    break
                self.handed(member, event)
            self.note(member)

    def handed(self, member: Member, event: Event) -> None:
        log = self.model[member.consumer.topic].logs[event.partition]
        assert (event.ticks, row_of(event)) == log.events[event.offset][:2]
        handle = member.handles[event.partition]
        if not handle.stale:
            assert event.offset in handle.next(log, member.filters)
            handle.failed.discard(event.offset)
            handle.handed[event.offset] = event
            handle.position = max(handle.position, event.offset + 1)

    def nothing_is_left(self, member: Member) -> None:
        if not self.fellows(member) and not any(handle.stale for handle in member.handles.values()):
            for number, handle in member.handles.items():
                log = self.model[member.consumer.topic].logs[number]
                assert not handle.next(log, member.filters), "a consumer left something out"

    @precondition(lambda self: self.members)
    @rule(pick=picks, which=st.lists(picks, min_size=1, max_size=4), to=st.booleans(), more=st.integers(0, 4))
    def ack(self, pick: int, which: list[int], to: bool, more: int) -> None:
        member = self.member_of(pick)
        if more:
            self.take_some(member, more)
        fresh = [handle for handle in member.handles.values() if not handle.stale]
        places = [(handle, offset) for handle in fresh for offset in sorted(handle.handed)]
        with self.doing():
            chosen = [places[each % len(places)] for each in which] if places else []
            for handle, offset in chosen:
                if to:
                    member.consumer.ack_to(handle.handed[offset])
                    handle.acked |= {each for each in handle.handed if each <= offset}
                else:
                    member.consumer.ack(handle.handed[offset])
                    handle.acked.add(offset)
                handle.failed -= handle.acked
            self.note(member)

    @precondition(lambda self: self.members)
    @rule(pick=picks, which=picks, for_good=st.booleans())
    def fail(self, pick: int, which: int, for_good: bool) -> None:
        member = self.member_of(pick)
        fresh = [handle for handle in member.handles.values() if not handle.stale]
        places = [(handle, offset) for handle in fresh for offset in handle.open() if offset not in handle.failed]
        if not places:
            return
        handle, offset = places[which % len(places)]
        event = handle.handed[offset]
        with self.doing() as step:
            if not for_good:
                assert not member.consumer.fail(event, "it may work later")
                handle.failed.add(offset)
                return
            assert any(member.consumer.fail(event, "it never works") for _ in range(60)), "it was never set aside"
            self.set_aside(step, member, handle, event)

    def set_aside(self, step: Step, member: Member, handle: Handle, event: Event) -> None:
        """The event is in the topic of dead ones, and acked: at once, if it was the next to be acked."""
        topic, dead = event.topic, f"{event.topic}.dead"
        first = handle.cursor(self.model[topic].logs[event.partition], member.filters)[1] == event.offset
        log = self.model.setdefault(dead, Topic([Log()])).logs[0]
        [told] = self.stage.engines[0].read(dead, start=log.end)
        assert told.meta["dead_offset"] == str(event.offset)
        assert row_of(told) == row_of(event)
        log.append([row_of(told)], [told.ticks], durable=True)
        handle.acked.add(event.offset)
        handle.failed.discard(event.offset)
        if first and not event.blob and len(event.data or b"") <= 300:
            step.parts = [(dead, 0)]
            step.moves = [Move(member.consumer.name, topic, event.partition, event.offset + 1)]
        cursors = self.cursors(topic, member.consumer.name)
        self.settle(member, event.partition, handle, cursors[event.partition])

    @precondition(lambda self: self.members)
    @rule(pick=picks)
    def flush(self, pick: int) -> None:
        member = self.member_of(pick)
        with self.doing():
            self.flushed(member, member.consumer.flush)

    @precondition(lambda self: self.members)
    @rule(pick=picks)
    def drain(self, pick: int) -> None:
        member = self.member_of(pick)
        if member.moved:
            return

        def handle(event: Event) -> None:
            self.note(member)
            self.handed(member, event)
            member.handles[event.partition].acked.add(event.offset)

        with self.doing():
            member.consumer.drain(handle)
            self.note(member)
            self.nothing_is_left(member)
            self.flushed(member, lambda: None)

    def flushed(self, member: Member, call: Callable[[], object]) -> None:
        """All acks were stored durably, but of partitions that others hold now."""
        try:
            call()
        except Fenced:
            assert member.moved
        member.moved = any(handle.stale for handle in member.handles.values())
        cursors = self.cursors(member.consumer.topic, member.consumer.name)
        for number, handle in member.handles.items():
            if not handle.stale:
                self.settle(member, number, handle, cursors[number])

    @precondition(lambda self: self.members)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        member = self.member_of(pick)
        with self.doing():
            self.flushed(member, member.consumer.close)
            self.members.remove(member)

    @precondition(lambda self: any(topic.consumers for topic in self.model.values()))
    @rule(
        engine=engines, pick=picks, at=st.integers(0, 30) | st.sampled_from(["earliest", "latest"]), own=st.booleans()
    )
    def seek(self, engine: int, pick: int, at: Any, own: bool) -> None:
        places = [
            (topic, name, number)
            for topic in sorted(self.model)
            for name in sorted(self.model[topic].consumers)
            for number in range(len(self.model[topic].logs))
        ]
        topic, name, number = places[pick % len(places)]
        log = self.model[topic].logs[number]
        named = {"earliest": log.start, "latest": log.end}
        offset = named[at] if isinstance(at, str) else max(log.start, at)
        holders = [
            member
            for member in self.members
            if (member.consumer.topic, member.consumer.name) == (topic, name) and number in member.handles
        ]
        owner = next((member for member in holders if not member.handles[number].stale), None)
        with self.doing():
            if own and owner is not None:
                seek: Callable[[], dict[int, int]] = lambda: owner.consumer.seek(at, number)
            else:
                seek = lambda: self.stage.engines[engine].seek(name, topic, at, partition=number)
            if offset > log.end:
                with pytest.raises(Invalid):
                    seek()
                return
            assert seek() == {number: offset}
            self.model[topic].consumers[name][number] = Cursor(offset, offset)
            log.durable = max(log.durable, offset)
            for member in holders:
                member.handles[number].stale = member.moved = True
            if own and owner is not None:
                self.note(owner)

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

    @rule(engine=engines)
    def reopen(self, engine: int) -> None:
        with self.doing():
            self.stage.engines[engine].close()
            self.stage.engines[engine] = self.stage.open()
            for member in [member for member in self.members if member.engine == engine]:
                self.members.remove(member)
                self.flushed(member, lambda: None)

    # Crashes

    @rule(percent=cuts, loss=st.none() | losses)
    def crash(self, percent: int, loss: Loss | None) -> None:
        """Killed if there is no loss."""
        cut = self.stage.operations() * percent // 100
        if loss is None:
            self.stage.kill(cut)
        else:
            self.stage.boot(self.stage.lose_power(cut, loss))
        self.go_on(done=cut >= self.done_at, powerless=loss is not None)

    def go_on(self, *, done: bool, powerless: bool) -> None:
        self.members.clear()
        self.model = survived(self.step, self.found(), done=done, powerless=powerless)
        gone = {name: topic for name, topic in self.step.before.items() if name not in self.model and not done}
        ghosts = {} if powerless else self.step.ghosts | gone
        self.step, self.done_at = Step(copy_of(self.model), copy_of(self.model), ghosts=ghosts), 0
        self.stage.begin()
        self.check_everything()

    def found(self) -> Found:
        """What is there, once it is settled."""
        hw = self.stage.engines[0]
        found = Found({}, {})
        for name in hw.topics():
            hw.sync(name)
            logs = [
                (each.start, list(hw.read(name, partition=each.partition))) for each in hw.describe(name).partitions
            ]
            for start, events in logs:
                assert [event.offset for event in events] == list(range(start, start + len(events)))
            found.topics[name] = [FoundLog(at, [(event.ticks, row_of(event)) for event in es]) for at, es in logs]
            for info in hw.consumers(name):
                found.cursors.setdefault((name, info.name), []).append(info.cursor)
        return found

    # What always holds

    @invariant()
    def both_engines_tell_what_the_model_tells(self) -> None:
        for hw in self.stage.engines:
            assert hw.topics() == sorted(self.model)
            for name, topic in self.model.items():
                told = [(each.start, each.end) for each in hw.describe(name).partitions]
                assert told == [(log.start, log.end) for log in topic.logs]
                for key in KEYS[1:]:
                    log = topic.logs[partition_of(key, len(topic.logs))] if len(topic.logs) > 1 else topic.logs[0]
                    assert hw.version(name, key) == log.version(key)

    def check_everything(self) -> None:
        """All events through both engines, all cursors, all answers to producers; and no damage."""
        for hw in self.stage.engines:
            for name, topic in self.model.items():
                for number, log in enumerate(topic.logs):
                    there = [(o, log.events[o].ticks, log.events[o].row) for o in range(log.start, log.end)]
                    assert ascending(ticks for _, ticks, _ in there)
                    events = [(e.offset, e.ticks, row_of(e)) for e in hw.read(name, partition=number)]
                    assert events == there
                    self.check_producers(hw, name, number, log)
                infos = {info.name for info in hw.consumers(name)}
                assert infos == set(topic.consumers)
                for consumer, cursors in topic.consumers.items():
                    for cursor, stored in zip(self.cursors(name, consumer), cursors, strict=True):
                        assert stored.durable <= cursor <= stored.highest
            findings = [found for found in hw.check().findings if found.damage]
            assert all(found.path.endswith(".index") for found in findings)  # which is not synced, and made again

    def check_producers(self, hw: Engine, topic: str, number: int, log: Log) -> None:
        for request in log.requests:
            try:
                first = log.answer(request.id, request.epoch, request.seq, request.count)
            except Refused:
                continue
            if first is not None:
                producer = request.id, request.epoch, request.seq
                refs = hw.append_many(topic, [b"again"] * request.count, partition=number, producer=producer)
                self.check_answer(log, first, refs)


EngineMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, suppress_health_check=list(HealthCheck), print_blob=False
)
TestEngineMachine = EngineMachine.TestCase

"""Rules of the state machine for consumers and transactions; each compares the engine with the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
)

from headwater.errors import Conflict, Fenced, Invalid
from headwater.event import Durability, Event
from tests.engine.log_rules import (
    FILTERS,
    PARTITIONS,
    LogRules,
    Member,
    Shape,
    durabilities,
    engines,
    picks,
    row_of,
    shapes,
    versions,
)
from tests.engine.model import (
    Cursor,
    Handle,
    Log,
    Move,
    Step,
    Topic,
)
from tests.engine.stage import Stage
from tests.opened import join


class ConsumerRules(LogRules):
    """The rules of consumers, and of transactions, which may ack."""

    @initialize(
        events=st.lists(st.tuples(picks, st.lists(shapes, min_size=1, max_size=6)), max_size=4),
        joined=st.lists(st.tuples(engines, picks, st.sampled_from(sorted(FILTERS))), max_size=2),
        segment_bytes=st.sampled_from([400, 4000]),
    )
    def begin(
        self, events: list[tuple[int, list[Shape]]], joined: list[tuple[int, int, str]], segment_bytes: int
    ) -> None:
        self.stage = Stage(segment_bytes)
        for name in PARTITIONS:
            self.create(0, name)
        for pick, drawn in events:
            self.append_many(0, pick, drawn, "fsync")
        for engine, pick, name in joined:
            self.join(engine, pick, name, "earliest")

    @rule(engine=engines)
    def reopen(self, engine: int) -> None:
        with self.doing():
            self.stage.engines[engine].close()
            self.stage.engines[engine] = self.stage.open()
            for member in [member for member in self.members if member.engine == engine]:
                self.members.remove(member)
                self.flushed(member, lambda: None)

    # What rules are made of

    def member_of(self, pick: int) -> Member:
        return self.members[pick % len(self.members)]

    def stored(self, member: Member) -> list[Cursor]:
        return self.model[member.consumer.topic].consumers[member.consumer.name]

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

    # Taking

    @precondition(lambda self: self.model and len(self.members) < 4)
    @rule(
        engine=engines, pick=picks, name=st.sampled_from(sorted(FILTERS)), start=st.sampled_from(["earliest", "latest"])
    )
    def join(self, engine: int, pick: int, name: str, start: Any) -> None:
        topic = self.topic_of(pick)
        logs = self.model[topic].logs
        with self.doing():
            consumer = join(self.stage.engines[engine], name, topic, start=start, timeout=0, **FILTERS[name])
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
                left = handle.next(log, member.filters) - set(range(log.start)) | handle.failed
                assert not left, f"a consumer left {left} out"

    # Answering

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
            seek: Callable[[], dict[int, int]] = partial(
                self.stage.engines[engine].seek, name, topic, at, partition=number
            )
            if own and owner is not None:
                seek = partial(owner.consumer.seek, at, number)
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

    # Transactions

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
            if not holds:
                with pytest.raises(Conflict) as caught:
                    tx.commit()
                assert caught.value.version in [actual for _, actual, same in conditions if not same]
                return
            refs = tx.commit()
            for topic in {topic for topic, _ in rows}:
                mine = [n for n, (name, _) in enumerate(rows) if name == topic]
                self.appended(topic, [refs[n] for n in mine], [rows[n][1] for n in mine])
            step.parts = sorted({(ref.topic, ref.partition) for ref in refs})
            step.moves = moves
            if member is not None:
                self.moved(member, moves)

    @precondition(lambda self: self.model)
    @rule(
        turns=st.lists(
            st.tuples(engines, st.sampled_from(["append", "expect", "request", "transact"]), shapes),
            min_size=3,
            max_size=8,
        )
    )
    def take_turns(self, turns: list[tuple[int, str, Shape]]) -> None:
        """Both engines at one log: what one of them remembers must not be out of date."""
        for engine, what, shape in turns:
            if what == "request":
                self.produce_one(engine, 0, ("x", 2, self.number), 1, "os")
            elif what == "transact":
                self.transact(engine, [(0, shape, None), (1, shape, None)], 0, 0, True, "os")
            else:
                mode = "right" if what == "expect" else None
                self.append(engine, 0, (shape[0], shape[1], b"k" if mode else shape[2]), "os", mode, 0)
        topic, number, log = self.log_of(0)
        for hw in self.stage.engines:
            self.check_producers(hw, topic, number, log)

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

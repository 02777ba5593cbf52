"""The engine as plain lists and dicts: what it must tell after every operation, and what a crash may leave of it.

Nothing here knows of files. An event's offset is its index in the list of its log; what retention took stays in the
list, below `start`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from headwater.event import Content, Event

ANSWERS_MAX = 2  # answers that are remembered for each producer
PRODUCERS_MAX = 2


class Row(NamedTuple):
    """One event as a program gives it."""

    data: bytes
    content: Content
    type: str
    key: bytes | None

    def wanted(self, type: str | None = None, key: bytes | None = None, above: int | None = None) -> bool:
        """Whether filters let it pass; `above` stands for the match `{"n": {"$gt": above}}`."""
        if above is not None and (self.content != "json" or not msgspec.json.decode(self.data)["n"] > above):
            return False
        return (type is None or type == self.type) and (key is None or key == self.key)


class Stored(NamedTuple):
    """An event in its log. `group` is the offset of the first event that came with it: all of them, or none."""

    ticks: int
    row: Row
    group: int


class Request(NamedTuple):
    """A producer's request that was committed."""

    id: str
    epoch: int
    seq: int
    offset: int
    size: int  # in events


class Refused(Exception):  # it is an answer
    """What an append is refused with: the code of the error."""


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.events: list[Stored] = []
        self.start = 0
        self.starts = {0}  # where it may begin after a power loss: several, if a process died while it deleted
        self.durable = 0  # events below are there after any crash
        self.requests: list[Request] = []

    @property
    def end(self) -> int:
        return len(self.events)

    def copy(self) -> Log:
        log = Log()
        log.events, log.requests, log.starts = list(self.events), list(self.requests), set(self.starts)
        log.start, log.durable = self.start, self.durable
        return log

    def there(self, **filters: Any) -> list[int]:
        """The offsets of the events that can be read and pass the filters."""
        return [offset for offset in range(self.start, self.end) if self.events[offset].row.wanted(**filters)]

    def append(self, rows: Sequence[Row], ticks: Sequence[int], *, durable: bool) -> None:
        group = self.end
        self.events += [Stored(tick, row, group) for tick, row in zip(ticks, rows, strict=True)]
        if durable:
            self.durable = self.end

    def version(self, key: bytes) -> int | None:
        return max(self.there(key=key), default=None)

    def answer(self, id: str, epoch: int, seq: int, size: int) -> Request | str | None:
        """What a producer's request was told before; the code of an error that it gets; None if it is new."""
        known: dict[str, list[Request]] = {}
        for request in self.requests:
            requests = known.pop(request.id, [])
            known[request.id] = [*requests, request][-ANSWERS_MAX:]
            if len(known) > PRODUCERS_MAX:
                del known[next(iter(known))]
        if id not in known:
            return None
        if epoch < known[id][-1].epoch:
            return "old_epoch"
        for request in known[id]:
            if request.seq == seq:
                if request.size != size:
                    return "seq_reused"
                return request
        if seq < known[id][-1].seq:
            return "seq_forgotten"
        return None

    def cut(self, start: int, end: int) -> Log:
        """The log as a crash left it."""
        log = self.copy()
        log.events, log.start = log.events[:end], start
        log.requests = [each for each in log.requests if each.offset < end]
        log.durable = end
        return log


@dataclass
class Cursor:
    """A stored cursor: no crash leaves a lower one than `durable`, or a higher one than `highest`."""

    durable: int
    highest: int


@dataclass
class Topic:
    """What was being made when its maker was killed is there, and not `sure` until somebody builds on it."""

    logs: list[Log]
    consumers: dict[str, list[Cursor]] = field(default_factory=dict)
    sure: bool = True
    sure_consumers: set[str] = field(default_factory=set)

    def copy(self) -> Topic:
        cursors = {name: [Cursor(c.durable, c.highest) for c in each] for name, each in self.consumers.items()}
        return Topic([log.copy() for log in self.logs], cursors, self.sure, set(self.sure_consumers))


Model = dict[str, Topic]


@dataclass
class Handle:
    """What a member of a consumer knows of a partition that it holds."""

    fence: int
    start: int
    position: int  # all below was handed out, or passed over
    handed: dict[int, Event] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    stale: bool = False  # somebody moved the consumer: what was handed out counts no more

    def open(self) -> list[int]:
        """What was handed out, and is not acked."""
        return [offset for offset in sorted(self.handed) if offset not in self.acked]

    def cursor(self, log: Log, filters: Mapping[str, Any]) -> tuple[int, int]:
        """The lowest and the highest that its cursor may be: between them is only what it does not want."""
        wanted = sorted({*log.there(**filters), *self.handed})
        highest = next((o for o in wanted if o >= self.start and o not in self.acked), log.end)
        lowest = max((o + 1 for o in self.acked if o < highest), default=self.start)
        return lowest, highest

    def next(self, log: Log, filters: Mapping[str, Any]) -> set[int]:
        """Which event may be handed out next; empty if there is none. What retention took may have been read before."""
        if self.failed:
            return {min(self.failed)}
        there = [o for o in log.there(**filters) if o >= self.position][:1]
        gone = [o for o in range(self.position, log.start) if log.events[o].row.wanted(**filters)]
        return {*there, *gone}


class Move(NamedTuple):
    """A cursor that a transaction moves."""

    consumer: str
    topic: str
    partition: int
    cursor: int


@dataclass
class Step:
    """The last operation: the model before and after it, and what of it is one."""

    before: Model
    after: Model
    parts: list[tuple[str, int]] = field(default_factory=list)  # the logs of a transaction
    moves: list[Move] = field(default_factory=list)
    # Topics that a process was deleting when it was killed: a power loss may bring them back.
    ghosts: Model = field(default_factory=dict)


class FoundLog(NamedTuple):
    start: int
    events: list[tuple[int, Row]]  # ticks and row

    @property
    def end(self) -> int:
        return self.start + len(self.events)


@dataclass
class Found:
    """What is there after a crash."""

    topics: dict[str, list[FoundLog]]
    cursors: dict[tuple[str, str], list[int]]  # by topic and consumer


def copy_of(model: Model) -> Model:
    return {name: topic.copy() for name, topic in model.items()}


def survived(step: Step, found: Found, *, done: bool, powerless: bool) -> Model:
    """Check what a crash in the last operation left, or after it if that was done; returns the model of it."""
    before = step.after if done else step.before
    if powerless:
        before = {name: topic for name, topic in step.ghosts.items() if name not in step.after} | before
    kept = {name for name in set(before) & set(step.after) if before[name].sure or not powerless}
    assert kept <= set(found.topics), "a topic is gone"
    assert set(found.topics) <= set(before) | set(step.after), "a topic is there that was deleted, or never made"
    _check_transaction(step, found, done=done)
    model: Model = {}
    for name, logs in found.topics.items():
        old, new = before.get(name), step.after.get(name) or before[name]
        assert len(logs) == len(new.logs)
        model[name] = Topic(
            [
                _survived(log, None if old is None else old.logs[number], new.logs[number], powerless)
                for number, log in enumerate(logs)
            ]
        )
    for (topic, name), cursors in found.cursors.items():
        ranges = [t.consumers[name] for t in (before.get(topic), step.after.get(topic)) if t and name in t.consumers]
        assert ranges, f"consumer {name!r} of {topic!r} was never made"
        for number, cursor in enumerate(cursors):
            allowed = [(each[number].durable, each[number].highest) for each in ranges]
            where = f"consumer {name!r} of {topic!r}, partition {number}"
            assert any(lo <= cursor <= hi for lo, hi in allowed), f"{where}: cursor {cursor}, not in {allowed}"
            assert cursor <= found.topics[topic][number].end, f"{where}: cursor {cursor} is beyond the end"
        model[topic].consumers[name] = [Cursor(cursor, cursor) for cursor in cursors]
    for name in kept:
        old = before[name]
        made = set(old.consumers) & set(step.after[name].consumers)
        consumers = made & old.sure_consumers if powerless else made
        assert consumers <= set(model[name].consumers), f"a consumer of {name!r} is gone"
        # After a power loss, all that is there is on the disk.
        model[name].sure_consumers = set(model[name].consumers) if powerless else old.sure_consumers
        model[name].sure = powerless or old.sure
    for name in set(model) - kept:
        model[name].sure = powerless
        model[name].sure_consumers = set(model[name].consumers) if powerless else set()
    return model


def _survived(found: FoundLog, old: Log | None, new: Log, powerless: bool) -> Log:
    required = 0 if old is None else old.durable if powerless else old.end
    starts = new.starts | (old.starts if old else set())
    assert found.start in starts, f"begins at {found.start}, not at one of {starts}"
    assert found.end >= required, f"{required} events were acknowledged, and {found.end} are there"
    expected = [(event.ticks, event.row) for event in new.events]
    assert found.events == expected[found.start : found.end], "other events than were appended"
    assert found.end == new.end or new.events[found.end].group == found.end, "a part of what came together"
    log = new.cut(found.start, found.end)
    log.starts = {found.start} if powerless else starts
    return log


def _check_transaction(step: Step, found: Found, *, done: bool) -> None:
    there = [
        topic in found.topics and found.topics[topic][partition].end == step.after[topic].logs[partition].end
        for topic, partition in step.parts
    ]
    there += [found.cursors[move.topic, move.consumer][move.partition] >= move.cursor for move in step.moves]
    assert len(set(there)) <= 1, f"a transaction is there in part: {there}"
    assert all(there) or not done, "a transaction is gone"


def ascending(ticks: Iterable[int]) -> bool:
    return all(one < other for one, other in pairwise(ticks))

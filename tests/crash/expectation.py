"""What must be there after a crash: folded from the marks that a workload left in a trace.

A workload says what it begins (`Begin`) and what it was told (`Done`). Events of one call to one partition are a group:
there as a whole or not at all. A transaction has a group for each of its logs: all of them are there, or none. At any
moment at most one call is under way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

from headwater.event import Durability
from tests.crash.recording import Op

Verb = Literal["open", "create", "delete", "append", "transact", "retry", "sync", "retain"]
Request = tuple[str, int, int]  # of a producer: its id, epoch and seq


class Begin(NamedTuple):
    verb: Verb
    topic: str = ""
    partitions: int = 1
    groups: tuple[tuple[int, tuple[bytes, ...]], ...] = ()  # what goes to which partition
    starts: tuple[tuple[int, ...], ...] = ()  # where each partition may begin while segments go; at last, where it must
    topics: tuple[str, ...] = ()  # of a transaction: that of each group
    request: Request | None = None


class Acknowledged(NamedTuple):
    partition: int
    offset: int
    ticks: int


class Done(NamedTuple):
    verb: Verb
    topic: str = ""
    refs: tuple[tuple[Acknowledged, ...], ...] = ()  # one for each event of each group
    durability: Durability = "fsync"
    topics: tuple[str, ...] = ()  # of a transaction: that of each group


class Unfinished(NamedTuple):
    """The transaction under way was committed, and a log could not take its part: whoever opens it next finishes it."""


class Failed(NamedTuple):
    """The call raised: what it was to do must never be seen."""

    verb: Verb
    topic: str = ""


class Settled(NamedTuple):
    """A log was opened after a crash and synced: so many events are there, and stay."""

    topic: str
    partition: int
    events: int


class Group(NamedTuple):
    data: tuple[bytes, ...]
    ticks: tuple[int, ...] | None  # None while it was not acknowledged
    request: Request | None = None


class Contents(NamedTuple):
    """What a reader finds in a partition: its oldest offset, and offset, ticks and data of each event."""

    start: int
    events: list[tuple[int, int, bytes]]

    @property
    def end(self) -> int:
        return self.start + len(self.events)


class ExpectedLog:
    """One partition: the groups that were acknowledged, in order, and those that may be there besides.

    Retention takes away groups at the beginning, which are remembered here all the same: `starts` tells where the log
    may begin. There are several while it deletes, and after it died at that: a power loss may bring back the last one.
    """

    def __init__(self) -> None:
        self.starts = {0}
        self.groups: list[Group] = []
        self.pending: list[Group] = []
        self.durable = 0  # events that a power loss must leave
        self.requests: dict[Request, tuple[bytes, ...]] = {}  # all that producers ever asked, in order

    def events(self) -> int:
        return sum(len(group.data) for group in self.groups)

    def check(self, contents: Contents, required: int) -> None:
        """At least the events up to the offset `required` must be there, from one of the `starts` on."""
        start, seen = contents
        assert start in self.starts, f"the log begins at {start}, and not at one of {sorted(self.starts)}"
        assert [offset for offset, _, _ in seen] == list(range(start, contents.end)), "offsets are not contiguous"
        ticks = [each for _, each, _ in seen]
        assert all(one < other for one, other in pairwise(ticks)), "ticks do not increase"
        at = 0
        for group in [*self.groups, *self.pending]:
            if at + len(group.data) <= start:
                at += len(group.data)
                continue
            if at == contents.end:
                break
            there = seen[at - start : at - start + len(group.data)]
            assert len(there) == len(group.data), f"only {len(there)} of {len(group.data)} events of a batch at {at}"
            assert tuple(data for _, _, data in there) == group.data, f"other data at offset {at}"
            if group.ticks is not None:
                assert tuple(each for _, each, _ in there) == group.ticks, f"other ids at offset {at}"
            at += len(group.data)
        assert at == contents.end, f"events from offset {at} on were never appended"
        assert contents.end >= required, f"{required} events were acknowledged, and {contents.end} are there"

    def settle(self, events: int) -> None:
        """After a crash, exactly so many of the events are there."""
        there: list[Group] = []
        for group in [*self.groups, *self.pending]:
            if sum(len(each.data) for each in there) < events:
                there.append(group)
        self.groups, self.pending, self.durable = there, [], events


class ExpectedTopic:
    def __init__(self, partitions: int) -> None:
        self.logs = [ExpectedLog() for _ in range(partitions)]
        self.certain = False  # it may be missing while it is being made or deleted


class Expectation:
    """What a reader may and must find."""

    def __init__(self) -> None:
        self.opened = False
        self.topics: dict[str, ExpectedTopic] = {}
        self.acknowledged = 0  # how many marks told of something that is done
        self.together: list[tuple[str, int, int]] = []  # the logs of a transaction under way, and their ends before it

    def fold(self, op: Op) -> None:
        """Take in one operation of the trace."""
        note = op.note
        if isinstance(note, Begin):
            self._begin(note)
        elif isinstance(note, Done):
            self.acknowledged += 1
            self._done(note)
        elif isinstance(note, Failed):
            self.acknowledged += 1
            self.together = []
            for topic in self.topics.values():
                for log in topic.logs:
                    log.pending = []
        elif isinstance(note, Unfinished):
            self.acknowledged += 1
            self._finish()
        elif isinstance(note, Settled):
            self.acknowledged += 1
            self.together = []
            self.topics[note.topic].logs[note.partition].settle(note.events)

    def check_together(self, ends: dict[tuple[str, int], int]) -> None:
        """`ends` are the ends of the logs that could be read: a transaction under way is in all of them, or in none."""
        there = {ends[topic, number] > end for topic, number, end in self.together if (topic, number) in ends}
        assert len(there) < 2, "a part of a transaction"

    def _begin(self, note: Begin) -> None:
        self.together = []
        if note.verb in ("create", "append") and note.topic not in self.topics:
            self.topics[note.topic] = ExpectedTopic(note.partitions)
        if note.verb == "append":
            for partition, data in note.groups:
                log = self.topics[note.topic].logs[partition]
                log.pending.append(Group(data, None, note.request))
                if note.request is not None:
                    log.requests[note.request] = data
        elif note.verb == "transact":
            for topic, (partition, data) in zip(note.topics, note.groups, strict=True):
                log = self.topics[topic].logs[partition]
                self.together.append((topic, partition, log.events()))
                log.pending.append(Group(data, None))
        elif note.verb == "retain":
            for log, starts in zip(self.topics[note.topic].logs, note.starts, strict=True):
                log.starts |= set(starts)
        elif note.verb == "delete":
            self.topics[note.topic].certain = False

    def _done(self, note: Done) -> None:
        match note.verb:
            case "open":
                self.opened = True
            case "create":
                self.topics[note.topic].certain = True
            case "delete":
                del self.topics[note.topic]
            case "append":
                self.topics[note.topic].certain = True
                for refs in note.refs:
                    self._append(self.topics[note.topic].logs[refs[0].partition], refs, note.durability)
            case "retain":
                for log in self.topics[note.topic].logs:
                    log.starts = {max(log.starts)}
            case "transact":
                self.together = []
                for topic, refs in zip(note.topics, note.refs, strict=True):
                    self._append(self.topics[topic].logs[refs[0].partition], refs, note.durability)
            case "retry":
                self._retry(note)
            case "sync":
                for log in self.topics[note.topic].logs:
                    log.durable = log.events()

    def _retry(self, note: Done) -> None:
        """What was asked again is as durable as that, whatever it was the first time."""
        for refs in note.refs if note.durability == "fsync" else ():
            log = self.topics[note.topic].logs[refs[0].partition]
            log.durable = max(log.durable, refs[-1].offset + 1)

    def _append(self, log: ExpectedLog, refs: tuple[Acknowledged, ...], durability: Durability) -> None:
        count = log.events()
        assert [ref.offset for ref in refs] == list(range(count, count + len(refs))), "acknowledged at wrong offsets"
        [pending] = log.pending
        log.groups.append(pending._replace(ticks=tuple(ref.ticks for ref in refs)))
        log.pending = []
        if durability == "fsync":
            log.durable = log.events()

    def _finish(self) -> None:
        for topic, partition, _ in self.together:
            log = self.topics[topic].logs[partition]
            log.groups += log.pending
            log.pending, log.durable = [], log.events()
        self.together = []


def expectation_of(trace: list[Op]) -> Expectation:
    """What holds at the end of a trace."""
    expected = Expectation()
    for op in trace:
        expected.fold(op)
    return expected

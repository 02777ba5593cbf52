"""Appends that are checked and encoded, and wait to be committed: alone, or many together with one sync.

A server's requests arrive one by one and are committed as a group by one thread; `append_many` does so at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headwater.engine.log import Log
from headwater.engine.topics import OpenTopic, Topics
from headwater.errors import HeadwaterError, Invalid, NotFound
from headwater.event import Content, Ref, Refs, Run
from headwater.format.batch import KEY
from headwater.format.column import I64, Column
from headwater.format.producers import Producer
from headwater.storage.rows import Rows

Guard = tuple[int | None, Producer | None]
"""The version that is expected of the key, and the producer."""


class Waiting:
    """One append to one log. `where` says which events of its call it holds; None means all."""

    __slots__ = ("log", "opened", "rows", "where")

    def __init__(self, opened: OpenTopic[Any], log: Log, rows: Rows, where: I64 | None = None) -> None:
        self.opened = opened
        self.log = log
        self.rows = rows
        self.where = where

    @property
    def error(self) -> BaseException | None:
        """Why it was not committed; None if it was."""
        return self.rows.error

    @property
    def offset(self) -> int:
        """Where it is, once committed: of many events, the first."""
        return self.rows.offset

    def ref(self) -> Ref:
        """Where its (first) event is, once committed; raises what kept it from being."""
        rows, place = self.rows, self.log.place
        if rows.error is not None:
            raise rows.error
        return Ref(place.topic, place.partition, rows.offset, rows.ticks, self.log.node, "fsync" if rows.sync else "os")

    def run(self) -> Run:
        """The same for all its events."""
        rows = self.rows
        if rows.error is not None:
            raise rows.error
        return Run(self.log.place.partition, self.log.node, rows.offset, rows.ticks, rows.count)


def many(
    opened: OpenTopic[Any],
    content: Content,
    columns: dict[int, Column | None],
    count: int,
    *,
    sync: bool,
    partition: int | None,
    keys: Sequence[bytes | None] | None,
    only_key: bytes | None,
    guard: Guard,
) -> list[Waiting]:
    """One append for each partition that the events go to. `only_key` is the key of all, if a version is expected."""

    def rows_of(columns: dict[int, Column | None], count: int) -> Rows:
        rows = Rows.many(content, sync, columns, count)
        rows.key = only_key
        rows.guard(*guard)
        return rows

    if len(opened.logs) == 1 or partition is not None or keys is None:
        return [Waiting(opened, opened.choose(None, partition, guard[1]), rows_of(columns, count))]
    waiting = []
    for log, where in opened.spread(keys, guard[1]):
        some = {kind: None if column is None else column.pick(where) for kind, column in columns.items()}
        waiting.append(Waiting(opened, log, rows_of(some, len(where)), where))
    return waiting


def refs(topic: str, waiting: Sequence[Waiting]) -> Refs:
    """Where the events of one call are, in its order; raises what kept one of its parts from being committed."""
    runs = [each.run() for each in waiting]
    several = len(waiting) > 1 and any(each.where is not None for each in waiting)
    places = [each.where.tolist() for each in waiting if each.where is not None] if several else None
    return Refs(topic, "fsync" if waiting[0].rows.sync else "os", runs, places)


def only_key(keys: Iterable[bytes | None] | None) -> bytes | None:
    """The key that all events share."""
    distinct = set(keys or ())
    if len(distinct) > 1:
        raise Invalid(
            "a version is expected of events with several keys", hint="append them apart, or in a transaction"
        )
    return distinct.pop() if distinct else None


def keys_of(columns: dict[int, Column | None], count: int) -> Sequence[bytes | None] | None:
    """The keys in a column; None if there is none."""
    column = columns.get(KEY)
    return None if column is None else column.values(0, count)


def commit(topics: Topics[Any], waiting: Sequence[Waiting]) -> None:
    """Commit appends of many requests, those of one log with one sync. Each has its place then, or its `error`.

    What waited for a topic that was deleted meanwhile goes to the one that has its name now, if there is one.
    """
    late = []
    for log, group in _by_log(waiting):
        log.append_all([each.rows for each in group])
        late += [each for each in group if isinstance(each.rows.error, NotFound)]
    for each in late:
        _move(topics, each)
    for log, group in _by_log([each for each in late if each.rows.error is None]):
        log.append_all([each.rows for each in group])


def _by_log(waiting: Sequence[Waiting]) -> list[tuple[Log, list[Waiting]]]:
    first = waiting[0].log if waiting else None
    if first is None or all(each.log is first for each in waiting):
        return [] if first is None else [(first, list(waiting))]
    groups: dict[int, tuple[Log, list[Waiting]]] = {}
    for each in waiting:
        groups.setdefault(id(each.log), (each.log, []))[1].append(each)
    return list(groups.values())


def _move(topics: Topics[Any], waiting: Waiting) -> None:
    """Have an append go to the topic that took the name of a deleted one; it keeps its error if that cannot be."""
    topics.forget(waiting.opened)
    try:
        opened = topics.get(waiting.opened.topic.name)
    except HeadwaterError as error:
        waiting.rows.error = error
        return
    if opened is not waiting.opened and len(opened.logs) == len(waiting.opened.logs):
        waiting.opened, waiting.log = opened, opened.logs[waiting.log.place.partition]
        waiting.rows.error = None

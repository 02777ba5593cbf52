"""Appends that are checked and encoded, and wait to be committed: alone, or many together with one sync.

A server's requests arrive one by one and are committed as a group by one thread; `append_many` does so at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.errors import HeadwaterError, NotFound
from headwater.event import Ref, Refs, Run
from headwater.format import given
from headwater.format.batch import KEY
from headwater.format.column import I64, Column
from headwater.log.log import Log
from headwater.log.open_topics import OpenTopic, OpenTopics
from headwater.log.rows import Rows
from headwater.requests import AppendMany


class PendingAppend:
    """One append to one log. `where` says which events of its call it holds; None means all."""

    __slots__ = ("log", "opened", "rows", "where")

    def __init__(self, opened: OpenTopic[Any], log: Log, rows: Rows, where: I64 | None = None) -> None:
        self.opened = opened
        self.log = log
        self.rows = rows
        self.where = where

    @property
    def error(self) -> BaseException | None:
        """Return why it was not committed; None if it was."""
        return self.rows.error

    @property
    def offset(self) -> int:
        """Return where it is, once committed: of many events, the first."""
        return self.rows.offset

    def ref(self) -> Ref:
        """Return where its (first) event is, once committed; raises what kept it from being."""
        rows, place = self.rows, self.log.place
        if rows.error is not None:
            raise rows.error
        return Ref(place.topic, place.partition, rows.offset, rows.ticks, self.log.node, "fsync" if rows.sync else "os")

    def run(self) -> Run:
        """Return where all its events are, once committed; raises what kept them from being."""
        rows = self.rows
        if rows.error is not None:
            raise rows.error
        return Run(self.log.place.partition, self.log.node, rows.offset, rows.ticks, rows.count)


def many(opened: OpenTopic[Any], request: AppendMany, *, sync: bool) -> list[PendingAppend]:
    """Return one append for each partition that the events go to; raises TooLarge by the limits of the topic."""
    given.check_columns(request.columns, opened.logs[0].place.limits)
    keys = request.columns.get(KEY) if len(opened.logs) > 1 and request.partition is None else None
    if keys is None:
        log = opened.choose(None, request.partition, request.producer)
        return [PendingAppend(opened, log, _rows(request, request.columns, request.count, sync))]
    waiting = []
    for log, where in opened.spread(keys, request.producer):
        some = {kind: None if column is None else column.pick(where) for kind, column in request.columns.items()}
        waiting.append(PendingAppend(opened, log, _rows(request, some, len(where), sync), where))
    return waiting


def _rows(request: AppendMany, columns: dict[int, Column | None], count: int, sync: bool) -> Rows:
    rows = Rows.many(request.content, sync, columns, count)
    rows.key = request.key
    rows.guard(request.expected, request.producer)
    return rows


def refs(topic: str, waiting: Sequence[PendingAppend]) -> Refs:
    """Return where the events of one call are, in its order; raises what kept one of its parts from being committed."""
    runs = [each.run() for each in waiting]
    several = len(waiting) > 1 and any(each.where is not None for each in waiting)
    places = [each.where.tolist() for each in waiting if each.where is not None] if several else None
    return Refs(topic, "fsync" if waiting[0].rows.sync else "os", runs, places)


def commit(topics: OpenTopics[Any], waiting: Sequence[PendingAppend]) -> None:
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


def _by_log(waiting: Sequence[PendingAppend]) -> list[tuple[Log, list[PendingAppend]]]:
    first = waiting[0].log if waiting else None
    if first is None or all(each.log is first for each in waiting):
        return [] if first is None else [(first, list(waiting))]
    groups: dict[int, tuple[Log, list[PendingAppend]]] = {}
    for each in waiting:
        groups.setdefault(id(each.log), (each.log, []))[1].append(each)
    return list(groups.values())


def _move(topics: OpenTopics[Any], waiting: PendingAppend) -> None:
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

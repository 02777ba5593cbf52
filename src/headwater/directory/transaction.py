"""Committing a transaction in a directory: appends to several topics and partitions, and acks, all or nothing.

In one partition it is one batch, as cheap as any. Over several, the journal commits it (journal.py): locks in one
order, one entry with the final bytes, then each log is written and made visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import FileIO
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, cast

from headwater.directory.cursor_file import Cursors
from headwater.directory.failures import unjournaled
from headwater.directory.group import WriterTurns
from headwater.directory.journal import Journal, JournalFile, relative_path
from headwater.directory.local_log import LocalLog
from headwater.directory.log_writer import LogWriter, PreparedWrite
from headwater.errors import Conflict, Fenced, HeadwaterError, Invalid, Unavailable
from headwater.event import Event, Ref
from headwater.format.cursors import CursorSlot
from headwater.format.journal import Entry, JournalMove
from headwater.format.producers import Producer
from headwater.log.log_committer import LogCommitter, TransactionPart
from headwater.log.rows import Rows, one_batch
from headwater.transaction import Acks, Requests

if TYPE_CHECKING:
    from headwater.directory.cursor_file import CursorMove
    from headwater.directory.directory import Directory


class AckingConsumer(Protocol):
    """A consumer whose acks a transaction can take along."""

    def moves(self, events: Iterable[Event]) -> list[CursorMove]:
        """Return how the acks of these events move its cursors; raises Fenced, Invalid."""

    def moved(self, moves: Iterable[CursorMove]) -> None:
        """Take note that a transaction has moved its cursors."""


class DirectoryCommitter(LogCommitter[LocalLog]):
    """Commits a transaction in a directory: over any topics and partitions, and with acks."""

    def __init__(self, backend: Directory, journal: Journal, *, sync: bool, producer: Producer | None = None) -> None:
        super().__init__(backend, sync=sync, producer=producer)
        self._journal = journal

    def holder(self, event: Event, consumer: object) -> object:
        return consumer if consumer is not None else self._backend.holder(event)

    def commit(self, requests: Requests, acks: Acks) -> list[Ref]:
        parts = self._parts(requests)
        by_log = self._by_log(parts)
        journaled = False
        try:
            moves = {(each := cast(AckingConsumer, key)): each.moves(events) for key, events in acks.items()}
            journaled = _commit(by_log, [move for each in moves.values() for move in each], self._journal)
        except (Conflict, Fenced, Invalid):
            # In a retry, versions have moved on and events are acked. Its producer shows whether it is one.
            if self._producer is None or not _recalled(by_log):
                raise
        else:
            for consumer, moved in moves.items():
                consumer.moved(moved)
        return self._refs(parts, journaled=journaled)

    def recall(self, requests: Requests) -> list[Ref] | None:
        """Return the answer to its producer's request, if that was committed before; None if it was not."""
        parts = self._parts(requests)
        if self._producer is None or not _recalled(self._by_log(parts)):
            return None
        return self._refs(parts, journaled=False)

    def _by_log(self, parts: list[TransactionPart[LocalLog]]) -> dict[LocalLog, list[Rows]]:
        """Return what each log gets. A producer's stamp is on the first of it, behind which the rest stands."""
        by_log: dict[LocalLog, list[Rows]] = {}
        for log, rows, _, _ in parts:
            if rows.expected is not None:
                log.learn_keys(rows)
            by_log.setdefault(log, []).append(rows)
        if self._producer is not None:
            for group in by_log.values():
                group[0].guard(group[0].expected, self._producer)
        return by_log


def _recalled(by_log: dict[LocalLog, list[Rows]]) -> bool:
    """Return whether the transaction was committed before; then all its rows learn where they are."""
    for log, group in by_log.items():
        with log.transacting() as writer:
            if not writer.recall(group[0]):
                return False
        for before, rows in pairwise(group):
            rows.offset, rows.ticks = before.offset + before.count, before.ticks + before.count
    return bool(by_log)


def _commit(by_log: dict[LocalLog, list[Rows]], moves: list[CursorMove], journal: Journal) -> bool:
    """Commit what each log and consumer gets; whether the journal was needed for it."""
    if not by_log and not moves:
        return False
    # Every process that holds several logs takes them in this order.
    logs = sorted(by_log, key=lambda log: (log.place.topic, log.place.partition))
    journaled = len(logs) > 1 or bool(moves) or not one_batch(by_log[logs[0]], logs[0].place.limits)
    turns = WriterTurns()
    cursors = _HeldCursors()
    file = None
    try:
        file = journal.take() if journaled else None
        _commit_held(logs, by_log, moves, journal, file, turns, cursors)
    finally:  # whatever interrupts this: the process that locks the logs and the cursors next finishes or forgets it
        any(cursors.locks)
        any(turns.locks)
        turns.leave()
        if file is not None:
            journal.give_back(file)
    return journaled


def _commit_held(
    logs: list[LocalLog],
    by_log: dict[LocalLog, list[Rows]],
    moves: list[CursorMove],
    journal: Journal,
    file: JournalFile | None,
    turns: WriterTurns,
    cursors: _HeldCursors,
) -> None:
    """Lock the logs, then the cursors, write the entry and apply it. The caller unlocks, whatever this raises."""
    journaled = file is not None
    parts: list[tuple[LogWriter, PreparedWrite]] = []
    try:
        for log in logs:
            writer = turns.take(log.transacting())
            parts.append((writer, writer.prepare(by_log[log], journaled=journaled)))
        cursors.take(moves)
        if file is not None:
            _write(journal, file, parts, cursors)
    except BaseException as error:
        if file is not None and file.committed:
            raise  # an interrupt, too late: the process that locks the logs next finishes it
        # An entry that could be neither written nor made void may yet be found: nothing may be appended before that.
        doubtful = file is not None and file.unfinished
        for writer, prepared in parts:
            writer.drop(prepared, freeze=doubtful)
        if doubtful and isinstance(error, Exception):
            raise Unavailable(
                f"it is not known whether the transaction is committed: {error}",
                hint="do not repeat it; fix the disk, reopen the log, and check",
                code="transaction_in_doubt",
            ) from error
        raise
    _apply(parts, journaled=journaled)
    cursors.put()
    if file is not None:
        file.unfinished = False


class _HeldCursors:
    """The consumers' files that a transaction changes: held, in the order of their paths, behind all logs.

    `locks` unlocks them as it is iterated, in C, as that of `WriterTurns`.
    """

    def __init__(self) -> None:
        self._files: list[FileIO] = []
        self._slots: list[tuple[Cursors, int, CursorSlot]] = []
        self._held: list[Cursors] = []
        self.locks = map(FileIO.close, self._files)

    def take(self, moves: list[CursorMove]) -> None:
        """Lock the files that are moved; raises Fenced if one of them is another's now."""
        by_path = {move.cursors.path: move.cursors for move in moves}
        for path in sorted(by_path):
            cursors = by_path[path]
            cursors.hold(self._files)
            for move in moves:
                if move.cursors.path == path:
                    stored = cursors.owned(move.partition, move.owner, move.fence)
                    cursor = max(stored.cursor, move.cursor)
                    self._slots.append((cursors, move.partition, cursors.next(move.partition, cursor=cursor)))
        self._held = list(by_path.values())

    def begin(self) -> list[JournalMove]:
        """Return what the journal is to tell; from now on, the process that finds the files free looks there."""
        for cursors in self._held:
            cursors.set_busy(True)
        return [
            JournalMove(relative_path(c), c.id.hex(), partition, slot.encode().hex())
            for c, partition, slot in self._slots
        ]

    def put(self) -> None:
        """Store the new cursors; the journal has made them durable."""
        for cursors, partition, slot in self._slots:
            cursors.put(partition, slot, journaled=True)
        for cursors in self._held:
            cursors.set_busy(False)


def _write(
    journal: Journal, file: JournalFile, parts: list[tuple[LogWriter, PreparedWrite]], cursors: _HeldCursors
) -> None:
    try:
        entry = Entry([writer.share(prepared) for writer, prepared in parts], cursors.begin())
        journal.write(file, entry, [prepared.data for _, prepared in parts])
    except OSError as error:
        raise unjournaled(error) from error


def _apply(parts: list[tuple[LogWriter, PreparedWrite]], *, journaled: bool) -> None:
    """Write and show every part, also when one of them fails: by now it is committed."""
    refused: HeadwaterError | None = None
    for writer, prepared in parts:
        try:
            writer.apply(prepared, journaled=journaled)
        except HeadwaterError as error:
            refused = error
    if refused is not None:
        if not journaled:
            raise refused
        raise Unavailable(
            f"the transaction is committed, but one log does not have its events yet: {refused.message}",
            hint="do not repeat it; fix the disk: the next append to the log, or reopening it, completes it",
            code="transaction_unfinished",
        ) from refused

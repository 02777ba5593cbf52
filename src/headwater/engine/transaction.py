"""Transactions: appends to several topics and partitions, and acks, all or nothing.

In one partition it is one batch, as cheap as any. Over several, the journal commits it (see `storage.journal`): locks
in one order, one entry with the final bytes, then each log is written and made visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headwater.errors import Closed, Conflict, Fenced, HeadwaterError, Invalid, TooLarge, Unavailable
from headwater.event import Content, Durability, Event, Ref
from headwater.format import given
from headwater.format.cursors import CursorSlot
from headwater.format.given import Data, Meta
from headwater.format.journal import Entry, Move
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.storage.cursors import Cursors
from headwater.storage.failures import unjournaled
from headwater.storage.journal import Journal, JournalFile, relative_path
from headwater.storage.log import LocalLog
from headwater.storage.rows import Rows, one_batch
from headwater.storage.writer import Prepared, Writer

if TYPE_CHECKING:
    from headwater.engine.consumer import Consumer
    from headwater.engine.engine import Engine
    from headwater.engine.leases import Move as CursorMove
    from headwater.engine.topics import OpenTopic


class Transaction:
    """What is to be done at once. Nothing is seen or kept of it before `commit`; for one thread."""

    def __init__(self, engine: Engine, journal: Journal, *, sync: bool, producer: Producer | None = None) -> None:
        self._engine = engine
        self._journal = journal
        self._sync = sync
        self._producer = producer
        self._topics: dict[str, OpenTopic] = {}
        self._appends: list[tuple[LocalLog, Rows]] = []
        self._acks: dict[Consumer, list[Event]] = {}
        self._size = self._count = 0
        self._over = False
        self.refs: list[Ref] = []  # where the events are, in the order of the appends, once it is committed

    def append(
        self,
        topic: str,
        data: Data,
        *,
        type: str = "",
        key: bytes | str | None = None,
        meta: Meta | None = None,
        content: Content | None = None,
        partition: int | None = None,
        expected_version: given.Version | None = None,
    ) -> None:
        """Append one event with the rest. `expected_version` is the key's before the transaction.

        Raises TooLarge for data that would need a file of its own, and when the transaction outgrows its limit.
        """
        self._check()
        limits = self._engine.limits
        if content is not None:
            given.check_content(content)
        encoded, content = given.encode_data(data, content)
        encoded_key = given.encode_key(key, limits)
        log = self._opened(topic).choose(encoded_key, partition, self._producer)
        given.check_size(len(encoded), log.place.limits)
        check_data(len(encoded), limits)
        rows = Rows.one(
            content,
            self._sync,
            encoded,
            given.encode_type(type) if type else b"",
            encoded_key,
            given.encode_meta(meta, limits),
        )
        if expected_version is not None:
            rows.guard(given.check_version(expected_version, encoded_key), None)
            log.learn_keys(rows)
        self._add(log, rows)

    def append_many(
        self,
        topic: str,
        data: Sequence[Data],
        *,
        types: Sequence[str] | str = "",
        keys: Sequence[bytes | str | None] | None = None,
        metas: Sequence[Meta | None] | None = None,
        content: Content | None = None,
        partition: int | None = None,
    ) -> None:
        """Append many events of a topic with the rest, as `Engine.append_many` does; their `refs` are by partition."""
        self._check()
        given.check_content(content)
        if not len(data):
            return
        opened = self._opened(topic)
        content, columns, encoded_keys = given.encode_many(
            data, content, types, keys, metas, opened.logs[0].place.limits
        )
        if opened.only is not None or partition is not None or encoded_keys is None:
            self._add(
                opened.choose(None, partition, self._producer), Rows.many(content, self._sync, columns, len(data))
            )
            return
        for log, where in opened.spread(encoded_keys, self._producer):
            some = {kind: None if column is None else column.pick(where) for kind, column in columns.items()}
            self._add(log, Rows.many(content, self._sync, some, len(where)))

    def ack(self, *events: Event, consumer: Consumer | None = None) -> None:
        """Take events as handled with the rest; `consumer` is who handed them out, if that is not clear.

        Raises Invalid if no consumer of this engine holds one. `commit` raises Fenced if it was taken over.
        """
        self._check()
        for event in events:
            self._acks.setdefault(consumer or self._engine.holder(event), []).append(event)

    def absorb(self, other: Transaction) -> None:
        """Do with the rest what another one, which is over then, was to do.

        Raises TooLarge if both together outgrow the limits; then neither has changed.
        """
        self._check()
        other._check()
        self._grow(other._size, other._count)
        self._topics |= other._topics
        self._appends += other._appends
        for consumer, events in other._acks.items():
            self._acks.setdefault(consumer, []).extend(events)
        other.discard()

    @property
    def appended(self) -> int:
        """How many events it appends."""
        return self._count

    def commit(self) -> list[Ref]:
        """Do it all; durable when it returns. Raises Conflict if an expected version does not hold: nothing is done.

        If its producer's request was committed before, it does nothing, and returns the first answer.
        """
        self._check()
        self._over = True
        by_log = self._by_log()
        journaled = False
        try:
            moves = {consumer: consumer.moves(events) for consumer, events in self._acks.items()}
            journaled = _commit(by_log, [move for each in moves.values() for move in each], self._journal)
        except (Conflict, Fenced, Invalid):
            # Of a retry, versions have gone on and events are acked. What it brings tells whether it is one.
            if self._producer is None or not _recalled(by_log):
                raise
        else:
            for consumer, moved in moves.items():
                consumer.moved(moved)
        return self._settled(journaled=journaled)

    def recall(self) -> list[Ref] | None:
        """The answer to its producer's request, if that was committed before; None if not: it can be committed yet."""
        self._check()
        if self._producer is None or not _recalled(self._by_log()):
            return None
        self._over = True
        return self._settled(journaled=False)

    def discard(self) -> None:
        """Do nothing of it."""
        self._over = True
        self._appends, self._acks = [], {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._over:
            self.commit()

    def _by_log(self) -> dict[LocalLog, list[Rows]]:
        """What each log gets. A producer's stamp is on the first of it, behind which the rest stands."""
        by_log: dict[LocalLog, list[Rows]] = {}
        for log, rows in self._appends:
            by_log.setdefault(log, []).append(rows)
        if self._producer is not None:
            for group in by_log.values():
                group[0].guard(group[0].expected, self._producer)
        return by_log

    def _settled(self, *, journaled: bool) -> list[Ref]:
        durability: Durability = "fsync" if self._sync or journaled else "os"
        self.refs = [
            Ref(log.place.topic, log.place.partition, rows.offset + n, rows.ticks + n, log.node, durability)
            for log, rows in self._appends
            for n in range(rows.count)
        ]
        return self.refs

    def _opened(self, topic: str) -> OpenTopic:
        opened = self._topics.get(topic)
        if opened is None:
            opened = self._topics[topic] = self._engine.topic_for(topic)
        return opened

    def _add(self, log: LocalLog, rows: Rows) -> None:
        self._grow(rows.size + len(rows.key or b"") + len(rows.meta or b""), rows.count)
        self._appends.append((log, rows))

    def _grow(self, size: int, count: int) -> None:
        size, count = self._size + size, self._count + count
        check_growth(size, count, self._engine.limits)
        self._size, self._count = size, count

    def _check(self) -> None:
        if self._over:
            raise Closed("the transaction is over", hint="begin another: hw.transaction()")
        self._engine.check_open()


def check_data(size: int, limits: Limits) -> None:
    """Raise TooLarge for data of one event that would need a file of its own."""
    if size > limits.blob_bytes_min:
        raise TooLarge(
            f"data has {size} bytes, and in a transaction may have {limits.blob_bytes_min}",
            hint="append it first, and let the transaction tell where it is",
            limit="blob_bytes_min",
            maximum=limits.blob_bytes_min,
        )


def check_growth(size: int, count: int, limits: Limits) -> None:
    """Raise TooLarge for more bytes of data, keys and meta, or more events, than one transaction may have."""
    if size > limits.transaction_bytes_max:
        raise _too_large("bytes", "transaction_bytes_max", limits.transaction_bytes_max)
    if count > limits.transaction_events_max:
        raise _too_large("events", "transaction_events_max", limits.transaction_events_max)


def _too_large(unit: str, limit: str, maximum: int) -> TooLarge:
    return TooLarge(f"a transaction may have {maximum} {unit}", hint="make several of it", limit=limit, maximum=maximum)


def _recalled(by_log: dict[LocalLog, list[Rows]]) -> bool:
    """Whether the transaction was committed before; then all its rows learn where they are."""
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
    # Everybody who holds several logs takes them in this order.
    logs = sorted(by_log, key=lambda log: (log.place.topic, log.place.partition))
    journaled = len(logs) > 1 or bool(moves) or not one_batch(by_log[logs[0]], logs[0].place.limits)
    with ExitStack() as stack:
        file = stack.enter_context(journal.taken()) if journaled else None
        parts: list[tuple[Writer, Prepared]] = []
        try:
            for log in logs:
                writer = stack.enter_context(log.transacting())
                stack.callback(writer.leave)  # whatever interrupts this: whoever locks it next finishes or forgets it
                parts.append((writer, writer.prepare(by_log[log], journaled=journaled)))
            turns = _Turns(moves, stack)
            if file is not None:
                _write(journal, file, parts, turns)
        except BaseException as error:
            if file is not None and file.committed:
                raise  # an interrupt, too late: whoever locks the logs next finishes it
            # An entry that could be neither written nor made void may yet be found: nobody must append before that.
            doubtful = file is not None and file.unfinished
            for writer, prepared in parts:
                writer.drop(prepared, freeze=doubtful)
            if doubtful and isinstance(error, Exception):
                raise Unavailable(
                    f"whether the transaction is committed is not known: {error}",
                    hint="do not repeat it; see to the disk, open the log again, and look",
                    code="transaction_in_doubt",
                ) from error
            raise
        _apply(parts, journaled=journaled)
        turns.put()
        if file is not None:
            file.unfinished = False
    return journaled


class _Turns:
    """The consumers' files that a transaction changes: held, in the order of their paths, behind all logs."""

    def __init__(self, moves: list[CursorMove], stack: ExitStack) -> None:
        self._slots: list[tuple[Cursors, int, CursorSlot]] = []
        by_path = {move.cursors.path: move.cursors for move in moves}
        for path in sorted(by_path):
            cursors = by_path[path]
            stack.enter_context(cursors.held())
            for move in moves:
                if move.cursors.path == path:
                    stored = cursors.owned(move.partition, move.owner, move.fence)
                    cursor = max(stored.cursor, move.cursor)
                    self._slots.append((cursors, move.partition, cursors.next(move.partition, cursor=cursor)))
        self._held = list(by_path.values())

    def begin(self) -> list[Move]:
        """What the journal is to tell; from now on, whoever finds the files free looks there."""
        for cursors in self._held:
            cursors.set_busy(True)
        return [
            Move(relative_path(c), c.id.hex(), partition, slot.encode().hex()) for c, partition, slot in self._slots
        ]

    def put(self) -> None:
        """Store the new cursors; the journal has made them durable."""
        for cursors, partition, slot in self._slots:
            cursors.put(partition, slot, journaled=True)
        for cursors in self._held:
            cursors.set_busy(False)


def _write(journal: Journal, file: JournalFile, parts: list[tuple[Writer, Prepared]], turns: _Turns) -> None:
    try:
        entry = Entry([writer.share(prepared) for writer, prepared in parts], turns.begin())
        journal.write(file, entry, [prepared.data for _, prepared in parts])
    except OSError as error:
        raise unjournaled(error) from error


def _apply(parts: list[tuple[Writer, Prepared]], *, journaled: bool) -> None:
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
            f"the transaction is committed, and a log could not take its part yet: {refused.message}",
            hint="do not repeat it; see to the disk and open the log again, which finishes it",
            code="transaction_unfinished",
        ) from refused

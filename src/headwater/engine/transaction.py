"""Transactions: appends to several topics and partitions, and acks, all or nothing.

In one partition it is one batch, as cheap as any. Over several, the journal commits it (see `storage.journal`): locks
in one order, one entry with the final bytes, then each log is written and made visible.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headwater.engine import appending
from headwater.engine.appending import Data, Meta
from headwater.errors import Closed, HeadwaterError, TooLarge, Unavailable
from headwater.event import Content, Durability, Ref
from headwater.format.journal import Entry
from headwater.storage.journal import Journal, JournalFile, failed
from headwater.storage.log import LocalLog
from headwater.storage.rows import Rows, one_batch
from headwater.storage.writer import Prepared, Writer

if TYPE_CHECKING:
    from headwater.engine.engine import Engine


class Transaction:
    """What is to be done at once. Nothing is seen or kept of it before `commit`; for one thread."""

    def __init__(self, engine: Engine, journal: Journal, *, sync: bool) -> None:
        self._engine = engine
        self._journal = journal
        self._sync = sync
        self._appends: list[tuple[LocalLog, Rows]] = []
        self._size = 0
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
        expected_version: appending.Version | None = None,
    ) -> None:
        """Append one event with the rest. `expected_version` is the key's before the transaction.

        Raises TooLarge for data that would need a file of its own, and when the transaction outgrows its limit.
        """
        self._check()
        limits = self._engine.limits
        appending.check_content(content)
        encoded, content = appending.encode_data(data, content)
        encoded_key = appending.encode_key(key, limits)
        log = self._engine.log_for(topic, encoded_key, partition)
        appending.check_size(len(encoded), log.place.limits)
        if len(encoded) > limits.blob_bytes_min:
            raise TooLarge(
                f"data has {len(encoded)} bytes, and in a transaction may have {limits.blob_bytes_min}",
                hint="append it first, and let the transaction tell where it is",
                limit="blob_bytes_min",
                maximum=limits.blob_bytes_min,
            )
        rows = Rows.one(
            content,
            self._sync,
            encoded,
            appending.encode_type(type),
            encoded_key,
            appending.encode_meta(meta, limits),
        )
        rows.guard(appending.check_version(expected_version, encoded_key), None)
        size = self._size + rows.size + len(rows.key or b"") + len(rows.meta or b"")
        if size > limits.transaction_bytes_max:
            raise _too_large("bytes", "transaction_bytes_max", limits.transaction_bytes_max)
        if len(self._appends) >= limits.transaction_events_max:
            raise _too_large("events", "transaction_events_max", limits.transaction_events_max)
        self._size = size
        self._appends.append((log, rows))

    def commit(self) -> list[Ref]:
        """Do it all; durable when it returns. Raises Conflict if an expected version does not hold: nothing is done."""
        self._check()
        self._over = True
        by_log: dict[LocalLog, list[Rows]] = {}
        for log, rows in self._appends:
            by_log.setdefault(log, []).append(rows)
        journaled = _commit(by_log, self._journal) if by_log else False
        durability: Durability = "fsync" if self._sync or journaled else "os"
        self.refs = [
            Ref(log.place.topic, log.place.partition, rows.offset, rows.ticks, log.node, durability)
            for log, rows in self._appends
        ]
        return self.refs

    def discard(self) -> None:
        """Do nothing of it."""
        self._over = True
        self._appends = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif not self._over:
            self.commit()

    def _check(self) -> None:
        if self._over:
            raise Closed("the transaction is over", hint="begin another: hw.transaction()")
        self._engine.check_open()


def _too_large(unit: str, limit: str, maximum: int) -> TooLarge:
    return TooLarge(f"a transaction may have {maximum} {unit}", hint="make several of it", limit=limit, maximum=maximum)


def _commit(by_log: dict[LocalLog, list[Rows]], journal: Journal) -> bool:
    """Commit what each log gets; whether the journal was needed for it."""
    # Everybody who holds several logs takes them in this order.
    logs = sorted(by_log, key=lambda log: (log.place.topic, log.place.partition))
    journaled = len(logs) > 1 or not one_batch(by_log[logs[0]], logs[0].place.limits)
    with ExitStack() as stack:
        file = stack.enter_context(journal.taken()) if journaled else None
        parts: list[tuple[Writer, Prepared]] = []
        try:
            for log in logs:
                writer = stack.enter_context(log.transacting())
                stack.callback(writer.leave)  # whatever interrupts this: whoever locks it next finishes or forgets it
                parts.append((writer, writer.prepare(by_log[log], journaled=journaled)))
            if file is not None:
                _write(journal, file, parts)
        except BaseException:
            # An entry that could be neither written nor made void may yet be found: nobody must append before that.
            doubtful = file is not None and file.unfinished
            for writer, prepared in parts:
                writer.drop(prepared, freeze=doubtful)
            raise
        _apply(parts, journaled=journaled)
        if file is not None:
            file.unfinished = False
    return journaled


def _write(journal: Journal, file: JournalFile, parts: list[tuple[Writer, Prepared]]) -> None:
    entry = Entry([writer.share(prepared) for writer, prepared in parts], [])
    try:
        journal.write(file, entry, [prepared.data for _, prepared in parts])
    except OSError as error:
        raise failed(error) from error


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

"""From a topic to a file: groups of batches go through the writer of a format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol

from headwater.disk.disk import Disk
from headwater.errors import Invalid
from headwater.format.batch import BLOB, DATA
from headwater.format.events import EventBatch
from headwater.format.puro_blocks import PuroVariant
from headwater.transfer import files, jsonl, puro, tables
from headwater.transfer.files import Format, Target

if TYPE_CHECKING:
    from headwater.transfer.chunks import TransferLog

Progress = Callable[[int, int | None], None]
"""Called with how much is done, and all of it, if that is known: events of an export, bytes of an import."""

GROUP_EVENTS = 65_536  # what is written together: a record batch of Arrow, a row group of Parquet
GROUP_BYTES = 16 * 1024 * 1024


class ExportWriter(Protocol):
    """Writes events in one format. `close` ends the file, also after a failure."""

    def write(self, group: list[EventBatch]) -> None: ...

    def close(self) -> None: ...


def export(
    log: TransferLog,
    disk: Disk,
    topics: Sequence[str],
    target: Target,
    format: str | None,
    puro_variant: PuroVariant | None,
    progress: Progress | None,
    filters: dict[str, Any],
) -> int:
    """Write the events of topics, one topic after the other, each partition after partition; returns how many."""
    chosen = files.format_of(target, format)
    if puro_variant is not None and chosen != "puro":
        raise Invalid(f"the format {chosen} has no variants", hint="give a variant for the format puro only")
    if len(topics) != 1 and chosen not in ("jsonl", "puro"):
        raise Invalid(f"a file of {chosen} holds one topic, not {len(topics)}", hint="export each to a file of its own")
    reads = [(topic, log.read_batches(topic, **filters)) for topic in topics]  # a wrong filter makes no file
    total = None if filters else sum(log.describe(topic).events for topic in topics)
    done = 0
    with files.written(disk, target) as out, _closing(_writer(chosen, out, topics, puro_variant)) as writer:
        for _, batches in reads:
            for group in _grouped(batches):
                writer.write(group)
                done += sum(map(len, group))
                if progress is not None:
                    progress(done, total)
    return done


def _writer(format: Format, out: IO[bytes], topics: Sequence[str], puro_variant: PuroVariant | None) -> ExportWriter:
    if format == "jsonl":
        return jsonl.LineWriter(out)
    if format == "puro":
        return puro.MessageWriter(out, puro_variant or "messages")
    return tables.TableWriter(out, format, topics[0])


@contextlib.contextmanager
def _closing(writer: ExportWriter) -> Iterator[ExportWriter]:
    """End the file. After a failure, which is what counts then, whatever the writer says to that is left unsaid."""
    try:
        yield writer
    except BaseException:
        with contextlib.suppress(OSError, ValueError):
            writer.close()
        raise
    writer.close()


def _grouped(batches: Iterator[EventBatch]) -> Iterator[list[EventBatch]]:
    """Batches together, up to a number of events and bytes, so that memory is bounded and a call has enough to do."""
    group: list[EventBatch] = []
    events = size = 0
    for batch in batches:
        more = _bytes_of(batch)
        if group and (events + len(batch) > GROUP_EVENTS or size + more > GROUP_BYTES):
            yield group
            group, events, size = [], 0, 0
        group.append(batch)
        events += len(batch)
        size += more
    if group:
        yield group


def _bytes_of(batch: EventBatch) -> int:
    stored = batch.piece.batch
    if stored.flags & BLOB:
        return stored.blob_reference()[0]
    column = stored.column(DATA)
    return 0 if column is None else column.bytes_of()

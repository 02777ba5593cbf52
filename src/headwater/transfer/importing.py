"""From a file to topics: chunks of a format's reader are appended, synced once at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headwater.disk.disk import Disk
from headwater.errors import HeadwaterError, Invalid
from headwater.format.contents import CODES
from headwater.limits import Limits
from headwater.transfer import files, jsonl, puro, tables
from headwater.transfer.chunks import ImportChunk, ImportOptions, ImportTarget
from headwater.transfer.exporting import Progress
from headwater.transfer.files import Format, Input, Target

if TYPE_CHECKING:
    from headwater.transfer.chunks import TransferLog

APPEND_EVENTS = 65_536  # what one append takes at most, besides the limits
APPEND_BYTES = 4 * 1024 * 1024


def import_file(
    disk: Disk,
    limits: Limits,
    source: Target,
    format: str | None,
    wanted: ImportOptions,
    sink: ImportSink,
    progress: Progress | None,
    report: puro.Report | None,
) -> int:
    """Append all events of a file, and make them durable; returns how many.

    Also when it fails, what was appended before is made durable, and the error says how many those are.
    """
    chosen = files.format_of(source, format)
    with files.read(disk, source) as input:
        try:
            for chunk in _reader(chosen, input, wanted, limits, report):
                sink.append(chunk)
                if progress is not None:
                    progress(input.position, input.size)
        except HeadwaterError as error:
            sink.sync()
            raise _counted(error, sink) from error
    sink.sync()
    return sink.imported


def _reader(
    format: Format, input: Input, wanted: ImportOptions, limits: Limits, report: puro.Report | None
) -> Iterator[ImportChunk]:
    if format == "jsonl":
        # JSON writes a byte of text as up to six; the rest is for the other fields.
        return jsonl.read(input, wanted, 7 * max(limits.data_bytes_max, limits.blob_bytes_in_memory))
    if format == "puro":
        return puro.read(input, wanted, report)
    return tables.read_parquet(input, wanted) if format == "parquet" else tables.read_arrow(input, wanted)


class ImportSink:
    """Where the events of one import go. `imported` counts those that were appended, in the order of the file."""

    def __init__(
        self,
        log: TransferLog,
        limits: Limits,
        topic: str | None,
        only: str | None,
        partition: int | None,
        skip: int,
    ) -> None:
        self._log = log
        self._limits = limits
        self._topic = topic
        self._only = only
        self._partition = partition
        self._skip = skip
        self._topics: dict[str, None] = {}  # that were appended to, in order
        self.skipped = 0
        self.imported = 0

    def append(self, chunk: ImportChunk) -> None:
        """Append the wanted events of a chunk, in order."""
        for named, content, run in chunk.runs():
            if self._only is not None and named != self._only:
                continue
            skipped = min(self._skip - self.skipped, len(run))
            self.skipped += skipped
            if skipped == len(run):
                continue
            topic = self._topic if self._topic is not None else named
            if topic is None:
                raise Invalid("the file does not name the topic of its events", hint="give the topic to import to")
            place = ImportTarget(self._log, topic, content, self._partition)
            self._append_run(place, run.part(skipped, len(run)) if skipped else run)

    def sync(self) -> None:
        """Make durable what was appended."""
        for topic in self._topics:
            self._log.sync(topic)

    def _append_run(self, place: ImportTarget, run: ImportChunk) -> None:
        """Append in batches; a huge event alone, so that it gets a blob."""
        sizes = run.sizes()
        ends = np.cumsum(sizes)
        huge = np.flatnonzero(sizes > self._limits.blob_bytes_min)
        events_max = min(APPEND_EVENTS, self._limits.batch_events_max, self._limits.pack_events)
        bytes_max = min(APPEND_BYTES, self._limits.batch_bytes_max)
        at = 0
        while at < len(run):
            after = huge[np.searchsorted(huge, at) :]
            until = int(after[0]) if len(after) else len(run)
            if until == at:
                run.part(at, at + 1).append_alone(place)
                self._count(place, 1)
                at += 1
                continue
            fit = int(np.searchsorted(ends, ends[at] - sizes[at] + bytes_max, "right"))
            end = min(until, at + events_max, max(fit, at + 1))
            self._append_batch(place, run if end - at == len(run) else run.part(at, end))
            at = end

    def _append_batch(self, place: ImportTarget, batch: ImportChunk) -> None:
        """Append together. If that is refused, as a whole, then in halves: all before the one at fault go in."""
        if len(batch) == 1 or batch.fits():
            try:
                batch.append(place)
            except Invalid as error:
                if len(batch) == 1 and error.code not in CODES:
                    raise
                if len(batch) == 1:  # which says why, or takes it as it was stored
                    batch.append_alone(place)
                    self._count(place, 1)
                    return
            else:
                self._count(place, len(batch))
                return
        half = len(batch) // 2
        self._append_batch(place, batch.part(0, half))
        self._append_batch(place, batch.part(half, len(batch)))

    def _count(self, place: ImportTarget, count: int) -> None:
        self._topics[place.topic] = None
        self.imported += count


def _counted(error: HeadwaterError, sink: ImportSink) -> HeadwaterError:
    """Return the error, with how many events are imported, and how to go on after them."""
    done = sink.skipped + sink.imported
    message = error.message
    if done:
        events = f"{sink.imported:,} event{'' if sink.imported == 1 else 's'}"
        message += f" (after {events}, which are imported; skip {done} to continue)"
    facts = {**error.facts, "imported": sink.imported, "skip": done}
    return type(error)(message, hint=error.hint, code=error.code, **facts)

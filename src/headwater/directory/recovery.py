"""Bringing a log back after a crash, a power loss or a failed sync (docs/FORMAT.md, "Recovery").

Everything here runs under the log's lock, except `scan`, which only reads.
"""

from __future__ import annotations

import contextlib
import logging

import msgspec

from headwater.directory import journal, losses
from headwater.directory.boundaries import Boundaries
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.directory.tail import Tail
from headwater.errors import Corrupt, HeadwaterError
from headwater.event import time_of
from headwater.format.batch import corrupt
from headwater.format.names import offset_of
from headwater.format.segment import HEADER_BYTES, SegmentHeader
from headwater.format.tail import FROZEN_BY_SYNC, FROZEN_BY_WRITE, OPEN, TailSlot
from headwater.info import Report

log = logging.getLogger("headwater")

REPORTS_MAX = 100  # recoveries that are remembered in the report of a log


_decode_report = msgspec.json.Decoder(Report).decode


class LogEnd(msgspec.Struct, frozen=True):
    """Where the valid events of a log end."""

    segment: int
    offset: int
    position: int
    last_ticks: int
    producers_position: int  # where the last batch with a producer ends in the segment; 0 if none has one
    size: int  # of the segment's file; more than `position` if there is a torn tail


def scan(place: LogDirectory, known: TailSlot | None) -> LogEnd:
    """Find the end of the valid batches, from the last position that is sure. Raises Corrupt; changes nothing."""
    bases = place.segments()
    if not bases:
        hint = "its files were removed; restore them from a backup"
        raise Corrupt(f"{place} has no segments", hint=hint, path=str(place.path))
    base = bases[-1]
    if known is not None and known.segment > base:
        raise losses.missing(place, known.segment, known.visible_offset)
    # An older segment was synced as a whole before the next was made, and may have been packed since: what the tail of
    # a roll that was cut short, or one that the disk kept from earlier, says of it is of no use.
    offset, position, last_ticks, producers = base, HEADER_BYTES, 0, 0
    frozen = False
    if known is not None and known.segment == base:
        if known.boot_id == place.clock.boot_id():
            offset, position, last_ticks = known.visible_offset, known.visible_position, known.last_ticks
            frozen = known.state == FROZEN_BY_WRITE  # what follows was refused: whole or not, it is cut
        else:
            offset, position = known.durable_offset, known.durable_position
        # What lies behind the start is read, and may be other batches than those that an old tail names.
        producers = min(known.producers_position, position)
    segment = SegmentFile(place, base)
    try:
        size = segment.size()
        if size < position:
            raise corrupt("the segment is shorter than its synced size", segment.path, size, position - size)
        last_ticks = last_ticks or _ticks_before(segment, position)
        window = segment.window(position, position if frozen else size)
        try:
            for batch in window.batches(position, offset):
                batch.validate()
                position, offset, last_ticks = batch.end_position, batch.end_offset, batch.last_ticks
                producers = position if batch.producer is not None else producers
        except Corrupt:
            if known is None and _goes_on(segment, position, offset):
                raise  # cutting here would lose what was written
        if not segment.data_end(position) > position:
            size = position  # what follows was reserved
        gap = losses.ending(place, segment, offset)
        if gap is not None:
            raise gap
    finally:
        segment.close()
    return LogEnd(base, offset, position, last_ticks, producers, size)


def _goes_on(segment: SegmentFile, position: int, offset: int) -> bool:
    """Return whether a sound batch follows on a damaged one, so that this is not what a crash tore."""
    stop = segment.data_end(position)
    window = segment.window(position, stop)
    boundaries = Boundaries(segment, window, stop, None)
    while (found := boundaries.behind(position, offset)) is not None and found.position < stop:
        position, offset = found
        with contextlib.suppress(HeadwaterError):
            next(window.batches(position, offset)).validate()
            return True
    return False


def recover(place: LogDirectory, tail: Tail, *, believe: bool = True) -> TailSlot:
    """Cut what is torn, sync what is whole, publish it and return the new state. The caller holds the lock.

    Without `believe`, the positions in the tail count for nothing: the last segment was rewritten.
    """
    newest = tail.newest()
    counter, generation = (newest.counter + 1, newest.generation + 1) if newest is not None else (1, 1)
    known = journal.redo(place, newest) if believe else None
    # A reboot empties the cache, and what the tail then says may be older than events that were acknowledged since.
    frozen = known is not None and known.state == FROZEN_BY_SYNC and known.boot_id == place.clock.boot_id()
    found = _rewrite(place, known) if known is not None and frozen else scan(place, known)
    torn = found.size > found.position
    visible = known.visible_offset if known is not None else found.offset
    disk = place.disk
    fd = disk.open_write(place.segment(found.segment))
    try:
        kept = _keep(place, fd, found) if torn else ""
        # Before the cut: a crash between the two must not leave bytes cut and not reported.
        if torn or visible > found.offset:
            _report(place, found, kept, max(visible, found.offset))
        if torn:
            disk.truncate(fd, found.position)
        _sync(place, tail, fd, found)
    finally:
        disk.close(fd)
    disk.sync_directory(place.path)  # the process that made the segment may have died before its name was durable
    _sweep(place, found)
    slot = TailSlot(
        counter,
        place.clock.boot_id(),
        found.segment,
        found.offset,
        found.position,
        found.offset,
        found.position,
        found.last_ticks,
        generation,
        OPEN,
        found.offset,
        found.producers_position,
    )
    tail.heal()
    tail.publish(slot)
    if not tail.sound():  # the other slot is damaged, and each opening would recover again
        slot = slot.then(OPEN)
        tail.publish(slot)
    if known is None:
        _sync_first(place)
    return slot


def reports(place: LogDirectory) -> list[Report]:
    """Return what recoveries of this log gave up, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        lines = place.disk.read_file(place.path / "recovered.jsonl").splitlines()
        return [_decode_report(line) for line in lines]
    return []


def write_segment(place: LogDirectory, header: SegmentHeader) -> int:
    """Make a new, empty segment, durable before it is used; returns its open file."""
    path = place.segment(header.base_offset)
    place.disk.replace(path, header.encode())
    return place.disk.open_write(path)


def _sync(place: LogDirectory, tail: Tail, fd: int, found: LogEnd) -> None:
    """Sync what was found. If that fails, the cache may say what the disk does not: the next recovery must copy it."""
    try:
        place.disk.fdatasync(fd)
    except OSError:
        known = tail.newest()
        start = found.segment, HEADER_BYTES  # of the segment: all that is surely durable
        end = found.offset, found.position
        tail.publish(
            TailSlot(
                known.counter + 1 if known is not None else 1,
                place.clock.boot_id(),
                found.segment,
                *end,
                *start,
                found.last_ticks,
                known.generation + 1 if known is not None else 1,
                FROZEN_BY_SYNC,
                0,
                found.producers_position,
            )
        )
        raise


def _sync_first(place: LogDirectory) -> None:
    """Make durable what the first events will rest on: the tail, and the name of the topic."""
    fd = place.disk.open_write(place.tail)
    try:
        place.disk.fdatasync(fd)  # an old tail says what may be cut after a power loss; none at all does not
    finally:
        place.disk.close(fd)
    place.disk.sync_directory(place.path.parent.parent)  # the process that made the topic may have died before this


def _ticks_before(segment: SegmentFile, position: int) -> int:
    """Return the ticks of the last event before a position of a segment."""
    if position == HEADER_BYTES:
        return segment.header.previous_ticks
    positions = segment.map(position).positions
    at = int(positions[-1])
    return segment.window(at, position).batch(at).last_ticks


def _rewrite(place: LogDirectory, frozen: TailSlot) -> LogEnd:
    """Copy what was visible into a new file: after a failed sync the old one cannot be believed."""
    disk = place.disk
    segment = SegmentFile(place, frozen.segment)
    try:
        window = segment.window(0, frozen.visible_position)
        position, offset = HEADER_BYTES, segment.base
        last_ticks, producers = segment.header.previous_ticks, 0
        try:
            for batch in window.batches(position, offset):
                batch.validate()
                position, offset, last_ticks = batch.end_position, batch.end_offset, batch.last_ticks
                producers = position if batch.producer is not None else producers
        except Corrupt:
            if position < frozen.durable_position:
                raise
        disk.replace(place.segment(segment.base), bytes(window.buffer[:position]))
    finally:
        segment.close()
    return LogEnd(segment.base, offset, position, last_ticks, producers, position)


def _keep(place: LogDirectory, fd: int, found: LogEnd) -> str:
    torn = place.disk.pread(fd, found.size - found.position, found.position)
    return place.keep(found.segment, found.position, torn).name


def _report(place: LogDirectory, found: LogEnd, kept: str, visible: int) -> None:
    report = Report(
        time_of(place.clock.ticks()).isoformat(),
        found.segment,
        found.position,
        found.size - found.position,
        kept,
        (found.offset, visible),
    )
    lines = [msgspec.json.encode(each) for each in (*reports(place), report)][-REPORTS_MAX:]
    place.disk.replace(place.path / "recovered.jsonl", b"\n".join(lines) + b"\n")
    if visible > found.offset:
        log.warning(
            "%s lost its last events, offsets %d to %d, which were never synced",
            place,
            found.offset,
            visible - 1,
        )
    if kept:
        log.warning("%s had a torn tail of %d bytes, kept in %s", place, report.cut_bytes, kept)


def _sweep(place: LogDirectory, found: LogEnd) -> None:
    """Remove what a crash left unfinished: temporary files, blobs that no event names, spools without an owner."""
    disk = place.disk
    for name in disk.names(place.path):
        if name.endswith(".tmp"):
            _remove_unowned(place, name)
        if name.endswith(".producers") and offset_of(name, "producers") != found.segment:
            disk.unlink(place.path / name)
    blobs = place.blobs(found.segment)
    for name in disk.names(blobs):
        offset = offset_of(name, "blob")
        if offset is not None and offset >= found.offset:
            disk.unlink(blobs / name)
    for name in disk.names(place.spool):
        _remove_unowned(place, f"spool/{name}")


def _remove_unowned(place: LogDirectory, name: str) -> None:
    """Remove a file unless a living process holds its lock."""
    disk = place.disk
    try:
        fd = disk.open_write(place.path / name)
    except FileNotFoundError:
        return
    try:
        if disk.hold(fd):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(place.path / name)
    finally:
        disk.release(fd)

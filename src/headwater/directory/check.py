"""Verifying every checksum and invariant of a topic, or of all, without changing anything.

Reads whole segments, and continues behind damage, so that all of it is found at once. May run while others append: it
looks at what was visible when it began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headwater.directory import local_manifest, losses
from headwater.directory.blobs import StoredBlob
from headwater.directory.boundaries import Boundaries
from headwater.directory.log_directory import LogDirectory
from headwater.directory.producer_memory import read_snapshot
from headwater.directory.retention import orphans
from headwater.directory.sealer import build_index
from headwater.directory.segment import SegmentFile, read_header
from headwater.errors import Corrupt, HeadwaterError, NotFound
from headwater.format import tail as tail_format
from headwater.format.batch import BLOB, LOST, Batch
from headwater.format.index import Index
from headwater.format.losses import Ranges, merged
from headwater.format.names import file_of, offset_of, topic_of
from headwater.format.segment import HEADER_BYTES, SegmentWindow
from headwater.format.tail import TailSlot
from headwater.info import CheckReport, Counts, Finding, Progress, advancing

if TYPE_CHECKING:
    from headwater.directory.catalog import DirectoryCatalog
    from headwater.directory.journal import Journal


class Hole(msgspec.Struct, frozen=True):
    """A range of a segment that holds no valid batch, and the offsets that are missing there (possibly none)."""

    start: int
    end: int
    offsets: tuple[int, int]
    problem: str


class Walk(msgspec.Struct):
    """What a walk over a segment found: the ranges of sound batches, and the holes between them."""

    sound: list[tuple[int, int]]
    holes: list[Hole]
    end_offset: int
    last_ticks: int
    lost: Ranges = []


def check_topics(
    catalogue: DirectoryCatalog, journal: Journal, name: str | None, progress: Progress | None
) -> CheckReport:
    """Verify one topic of a directory, or all, and the journals that processes have left."""
    report = CheckReport()
    counts = Counts()
    topics, broken = catalogue.survey(name)
    report.findings += [settings_finding(error) for error in broken]
    places = list(catalogue.places(topics))
    advance = advancing(sum(_segment_bytes(place) for place in places), progress)
    for place in places:
        report.findings += check_log(place, counts, advance)
    if name is None:
        report.findings += _left_behind(journal)
    report.topics, report.partitions = len(topics), len(places)
    report.add(counts)
    return report


def check_log(place: LogDirectory, counts: Counts, progress: Callable[[int], None]) -> Iterator[Finding]:
    """Yield everything that is wrong with one log, or worth knowing. `progress` is called with the bytes read."""
    slot, findings = check_tail(place)
    yield from findings
    bases, gaps = losses.survey(place)
    if not bases:
        yield _finding(place, place.path, 0, 0, "the segments are missing")
    for gap in gaps:
        yield _finding(place, Path(gap.path), 0, 0, _reason(gap))
    previous_ticks: int | None = None
    for number, base in enumerate(bases):
        end = bases[number + 1] if number + 1 < len(bases) else None
        try:
            segment = SegmentFile(place, base)
        except NotFound:
            continue  # removed meanwhile
        except HeadwaterError as error:
            yield _finding(place, place.segment(base), 0, HEADER_BYTES, _reason(error))
            previous_ticks = None
            continue
        try:
            stop = readable_end(segment, slot, last=end is None)
            walked = walk(segment, stop, end if end is not None else _visible(slot, segment), counts, place)
            found = list(_check_segment(place, segment, walked, stop, previous_ticks, sealed=end is not None))
            if place.disk.inode(place.segment(base)) is None:
                continue  # retention deleted it meanwhile, and what is beside it
            yield from found
            previous_ticks = walked.last_ticks if not walked.holes else None
            counts.segments += 1
            progress(segment.size())
        finally:
            segment.close()
    if bases:
        yield from _check_producers(place, bases[0], bases[-1])
    yield from _check_note(place)
    yield from _kept(place)
    yield from _left(place, bases)


def _check_segment(
    place: LogDirectory, segment: SegmentFile, walked: Walk, stop: int, previous_ticks: int | None, *, sealed: bool
) -> Iterator[Finding]:
    """Yield what is wrong with one segment, its index and its blobs. `previous_ticks` are of the segment before it."""
    path = place.segment(segment.base)
    if previous_ticks is not None and segment.header.previous_ticks < previous_ticks:
        yield _finding(place, path, 40, 8, "ticks do not increase from one segment to the next")
    for hole in walked.holes:
        yield _finding(place, path, hole.start, hole.end - hole.start, hole.problem)
    yield from lost_findings(place, path, walked)
    if not sealed and segment.data_end(stop) > stop:
        torn = segment.data_end(stop) - stop
        yield _finding(place, path, stop, torn, "a torn tail; the next append removes it", False)
    yield from check_index(place, segment, sealed=sealed, sound=not walked.holes)
    yield from _orphans(place, segment.base, segment, stop)


def lost_findings(place: LogDirectory, path: Path | str, walked: Walk) -> Iterator[Finding]:
    """Yield what a repair has given up in a segment: worth knowing, and no damage any more."""
    for lo, hi in merged(walked.lost):
        problem = f"offsets {lo} to {hi - 1} are lost: they were damaged, and repair removed them"
        yield _finding(place, path, 0, 0, problem, damage=False)


def check_tail(place: LogDirectory) -> tuple[TailSlot | None, list[Finding]]:
    """Return the state in the tail, if it is of this boot, and what is wrong with it."""
    stored = b""
    for _ in range(100):  # a slot that is being written looks damaged for a moment
        try:
            stored = place.disk.read_file(place.tail)
        except FileNotFoundError:
            return None, [_finding(place, place.tail, 0, 0, "the tail is missing; it will be rebuilt", False)]
        except Corrupt as error:
            return None, [_finding(place, place.tail, 0, 0, f"{_reason(error)}; repair rebuilds it")]
        if tail_format.sound(stored):
            slot = tail_format.newest(stored)
            return (slot if slot is not None and slot.boot_id == place.clock.boot_id() else None), []
    return None, [_finding(place, place.tail, 0, len(stored), "the tail is damaged; repair rebuilds it")]


def readable_end(segment: SegmentFile, slot: TailSlot | None, *, last: bool) -> int:
    """Return where the batches of a segment end, as far as that is known.

    Behind those of the last, space may be reserved.
    """
    if slot is not None and segment.base == slot.segment and not segment.header.packed:
        return min(slot.visible_position, segment.size())
    return segment.data_end(HEADER_BYTES) if last else segment.size()


def walk(segment: SegmentFile, stop: int, end_offset: int | None, counts: Counts, place: LogDirectory) -> Walk:
    """Verify all batches up to position `stop`, going on behind damage. `end_offset`: where they should end."""
    found = Walk([], [], segment.base, segment.header.previous_ticks)
    window = segment.window(0, max(stop, HEADER_BYTES))
    boundaries = Boundaries(segment, window, stop, end_offset)
    position = HEADER_BYTES
    while position < stop:
        try:
            batch = _verified(window, position, found, place)
        except HeadwaterError as error:
            behind, next_offset = boundaries.behind(position, found.end_offset) or (
                stop,
                max(end_offset if end_offset is not None else found.end_offset, found.end_offset),
            )
            elsewhere = error.facts.get("path") or segment.path  # the file of a huge event, if that is what is damaged
            problem = _reason(error) if elsewhere == segment.path else f"{elsewhere}: {_reason(error)}"
            found.holes.append(Hole(position, behind, (found.end_offset, next_offset), problem))
            found.last_ticks += next_offset - found.end_offset  # as the lost batch of a repair will count them
            found.end_offset = next_offset
            position = behind
            continue
        if found.sound and found.sound[-1][1] == position:
            found.sound[-1] = (found.sound[-1][0], batch.end_position)
        else:
            found.sound.append((position, batch.end_position))
        position, found.end_offset, found.last_ticks = batch.end_position, batch.end_offset, batch.last_ticks
        counts.batches += 1
        counts.bytes += batch.size
        if batch.flags & LOST:
            counts.lost += batch.count
            found.lost.append((batch.base_offset, batch.end_offset))
        else:
            counts.events += batch.count
    if end_offset is not None and found.end_offset < end_offset:
        problem = f"offsets {found.end_offset} to {end_offset - 1} are missing at its end"
        found.holes.append(Hole(stop, stop, (found.end_offset, end_offset), problem))
        found.last_ticks += end_offset - found.end_offset
        found.end_offset = end_offset
    return found


def _verified(window: SegmentWindow, position: int, found: Walk, place: LogDirectory) -> Batch:
    """Return the batch at a position, with every column, blob and invariant checked."""
    batch = next(window.batches(position, found.end_offset))
    batch.validate()
    if batch.base_ticks <= found.last_ticks:
        raise Corrupt(f"the ticks of offset {batch.base_offset} do not increase")
    if batch.flags & BLOB:
        path = Path(batch.path).with_suffix(".blobs") / file_of(batch.base_offset, "blob")
        for _ in StoredBlob(place, path, batch.blob_reference()).chunks():
            pass
    return batch


def _visible(slot: TailSlot | None, segment: SegmentFile) -> int | None:
    return slot.visible_offset if slot is not None and slot.segment == segment.base else None


def check_index(place: LogDirectory, segment: SegmentFile, *, sealed: bool, sound: bool) -> Iterator[Finding]:
    """Yield what is wrong with the index of a segment, which should have one if it is `sealed`."""
    path = place.index(segment.base)
    try:
        index = Index.decode(place.disk.read_file(path))
    except FileNotFoundError:
        if sealed:
            yield _finding(place, path, 0, 0, "the index is missing; sealing rebuilds it", False)
        return
    except Corrupt as error:
        yield _finding(place, path, error.position, error.size, f"{_reason(error)}; repair rebuilds it")
        return
    if index.file_id != segment.header.file_id:
        yield _finding(place, path, 0, 0, "the index belongs to another file and is not used", False)
        return
    if index.keys is None:
        yield _finding(place, path, 0, 0, "an earlier version wrote the index, without keys; reindex adds them", False)
    if sound:
        built = build_index(segment)
        if index.keys is None:
            built = msgspec.structs.replace(built, keys=None)
        if index.encode() != built.encode():
            yield _finding(place, path, 0, 0, "the index does not match the segment; repair rebuilds it")


def _orphans(place: LogDirectory, base: int, segment: SegmentFile, stop: int) -> Iterator[Finding]:
    names = place.disk.names(place.blobs(base))
    if names:
        with contextlib.suppress(HeadwaterError):  # damage was found already
            window = segment.window(HEADER_BYTES, stop)
            named = {b.base_offset for b in window.batches(HEADER_BYTES, base) if b.flags & BLOB}
            for name in names:
                offset = offset_of(name, "blob")
                if offset is not None and offset not in named:
                    yield _finding(
                        place, place.blobs(base) / name, 0, 0, "no event refers to this blob; sealing removes it", False
                    )


def _check_producers(place: LogDirectory, oldest: int, active: int) -> Iterator[Finding]:
    """Yield the snapshot of producers that the active segment's header names, if it is damaged, and unused ones."""
    path = place.producers(active)
    found: list[Finding] = []
    try:
        told = read_header(place, active).producers
        if told:
            read_snapshot(place, active)
    except HeadwaterError as error:
        if error.facts.get("path") != str(path):
            return  # the damage of the header was found already; or it was removed meanwhile
        told = True
        found.append(
            _finding(
                place,
                path,
                error.position,
                error.size,
                f"{_reason(error)}; repair replaces it, and producers are forgotten",
            )
        )
    for name in sorted(place.disk.names(place.path)):
        base = offset_of(name, "producers")
        if base is not None and base >= oldest and (base != active or not told):
            problem = "an unused snapshot of producers; recovery removes it"
            found.append(_finding(place, place.path / name, 0, 0, problem, False))
    if place.segments()[-1:] == [active]:  # else a roll came in between, which makes a new one and removes this one
        yield from found


def _check_note(place: LogDirectory) -> Iterator[Finding]:
    try:
        local_manifest.read(place)
    except HeadwaterError:
        yield _finding(
            place, place.archived, 0, 0, "the local copy of the archive's manifest is damaged; archiving rebuilds it"
        )


def _kept(place: LogDirectory) -> Iterator[Finding]:
    for name in sorted(place.disk.names(place.path)):
        if ".cut-" in name:
            yield _finding(place, place.path / name, 0, 0, "bytes that were removed from the log and kept", False)


def _left(place: LogDirectory, bases: list[int]) -> Iterator[Finding]:
    for names in orphans(place, bases[0]).values() if bases else ():
        for name in names:
            if ".cut-" not in name:
                yield _finding(
                    place, place.path / name, 0, 0, "left over from a deleted segment; the next roll removes it", False
                )


def _reason(error: HeadwaterError) -> str:
    """Return what is wrong, without the place, which a finding names itself."""
    return str(error.facts.get("reason") or error.message)


def _finding(
    place: LogDirectory, path: Path | str, position: int, size: int, problem: str, damage: bool = True
) -> Finding:
    return Finding(place.topic, place.partition, str(path), position, size, problem, damage)


def _left_behind(journal: Journal) -> Iterator[Finding]:
    """Journals of processes that are gone, which opening the directory could not finish."""
    for path, count in journal.abandoned():
        what = f"{count} committed, kept until all their logs are intact" if count else "none committed"
        problem = f"transactions of a process that died: {what}"
        yield Finding("journal", -1, str(path), 0, 0, problem, damage=False)


def settings_finding(error: HeadwaterError) -> Finding:
    """Return what a check says of settings that cannot be read."""
    path, facts = str(error.path), error.facts
    name = topic_of(Path(path).parent.name) or Path(path).parent.name
    return Finding(name, -1, path, facts.get("position", 0), facts.get("size", 0), error.message)


def _segment_bytes(place: LogDirectory) -> int:
    sizes = (place.disk.file_size(place.segment(base)) for base in place.segments())
    return sum(sizes)

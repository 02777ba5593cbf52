"""Repairing a damaged log: what cannot be read is cut out, kept beside the log, and marked as lost.

`plan` only looks. `apply` runs under the log's lock. Offsets never move: where events were lost, a `lost` batch
stands for their offsets. What is rebuildable (tail, index) is simply rebuilt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headwater.directory import losses
from headwater.directory.check import Hole, Walk, check_log, check_tail, readable_end, settings_finding, walk
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.errors import Corrupt, NotFound, Unsupported
from headwater.format import producers
from headwater.format.batch import COUNT_MAX, encode_lost
from headwater.format.names import offset_of
from headwater.format.segment import HEADER_BYTES, SegmentHeader, SegmentWindow
from headwater.info import Counts, Finding

if TYPE_CHECKING:
    from headwater.directory.catalog import DirectoryCatalog


class Action(msgspec.Struct, frozen=True):
    """One thing that repair would do, or did. `kept` is where the bytes are that it cuts.

    What it cannot do is `manual`: it stays to be done by a person.
    """

    topic: str
    partition: int
    path: str
    what: str
    kept: str = ""
    done: bool = False
    manual: bool = False


class Mend(msgspec.Struct, frozen=True):
    """A segment that must be rewritten: its header, and what a walk over its batches found."""

    base: int
    header: SegmentHeader
    walk: Walk
    stop: int
    header_damaged: bool


def repair_topics(
    catalogue: DirectoryCatalog, name: str | None, mend: Callable[[LogDirectory], list[Action]]
) -> list[Action]:
    """Return what `mend` does to one topic of a directory, or to all, and what a person has to do."""
    topics, broken = catalogue.survey(name)
    what = "restore this file from a backup"
    actions = [Action(finding.topic, -1, finding.path, what, manual=True) for finding in map(settings_finding, broken)]
    for place in catalogue.places(topics):
        try:
            actions += mend(place)
        except (Corrupt, Unsupported) as error:  # one topic's damage must not keep another from being repaired
            what = f"{error.facts.get('reason') or error.message}: restore it from a backup, or delete the topic"
            path = str(error.facts.get("path") or place.path)
            actions.append(Action(place.topic, place.partition, path, what, manual=True))
    return actions


def plan(place: LogDirectory) -> list[Action]:
    """Return what repair would do, in order; nothing if the log is sound."""
    actions = [
        _action(place, place.segment(mend.base), what, kept)
        for mend in mends(place)
        for what, kept in _describe(place, mend)
    ]
    actions += fill_holes(place, apply=False)
    for finding in check_log(place, Counts(), lambda _: None):
        if _rebuildable(finding):
            actions.append(_action(place, Path(finding.path), "rebuild it from the segments"))
        elif _is_snapshot(finding):
            actions.append(_forget_producers(place, Path(finding.path), apply=False))
    return actions


def mends(place: LogDirectory) -> list[Mend]:
    """Return the segments that hold damage."""
    slot, _ = check_tail(place)
    bases, _ = losses.survey(place)
    found: list[Mend] = []
    last_ticks = 0
    for number, base in enumerate(bases):
        end = bases[number + 1] if number + 1 < len(bases) else None
        damaged = False
        try:
            segment = SegmentFile(place, base)
        except NotFound:
            continue  # it is missing; or retention deleted it meanwhile, which only `plan`, without a lock, meets
        except Corrupt:
            damaged = True
            segment = SegmentFile(place, base, header=_new_header(place, base, last_ticks))
        try:
            stop = readable_end(segment, slot, last=end is None)
            expected = end if end is not None else (slot.visible_offset if slot and slot.segment == base else None)
            walked = walk(segment, stop, expected, Counts(), place)
            if damaged or walked.holes:
                found.append(Mend(base, segment.header, walked, stop, damaged))
            last_ticks = walked.last_ticks
        finally:
            segment.close()
    return found


def apply(place: LogDirectory) -> list[Action]:
    """Mend all damaged segments. The caller holds the lock, and publishes a new state afterwards."""
    done = []
    for mend in mends(place):
        kept = _rewrite(place, mend)
        with contextlib.suppress(FileNotFoundError):
            place.disk.unlink(place.index(mend.base))
        done += [
            msgspec.structs.replace(_action(place, place.segment(mend.base), what, where), done=True)
            for what, where in zip((what for what, _ in _describe(place, mend)), kept, strict=True)
        ]
    done += fill_holes(place, apply=True)
    for finding in check_log(place, Counts(), lambda _: None):
        if _rebuildable(finding):
            place.make_room(Path(finding.path))
            if finding.path != str(place.tail):  # the tail is mapped by others, and healed in place
                with contextlib.suppress(FileNotFoundError):  # it was a directory
                    place.disk.unlink(Path(finding.path))
            done.append(_action(place, Path(finding.path), "rebuilt from the segments", done=True))
        elif _is_snapshot(finding):
            done.append(_forget_producers(place, Path(finding.path), apply=True))
    return done


def fill_holes(place: LogDirectory, *, apply: bool) -> list[Action]:
    """Accept that segments are missing: what is before the oldest is gone, and a lost active one is started over."""
    bases, gaps = losses.survey(place)
    if not bases:
        what = "restore the segments from a backup, or delete the topic"
        return [Action(place.topic, place.partition, str(place.path), what, manual=True)]
    actions: list[Action] = []
    for gap in gaps:
        start, end = gap.offsets
        lost = f"offsets {start} to {end - 1} are lost" if end > start else "its content is lost"
        if end == bases[0]:
            what = f"start the log at offset {end}; {lost}"
            if apply:
                place.mark(end)
                place.disk.sync_directory(place.path)
        else:
            what = f"start the segment over; {lost}"
            if apply:
                _restart_segment(place, [base for base in bases if base < start][-1], start, end)
        actions.append(_action(place, Path(gap.path), what, done=apply))
    return actions


def _restart_segment(place: LogDirectory, before: int, start: int, end: int) -> None:
    """Make the active segment, with a batch that stands for its lost events, behind the segment `before`."""
    segment = SegmentFile(place, before)
    try:
        last_ticks = walk(segment, segment.size(), start, Counts(), place).last_ticks
    finally:
        segment.close()
    file_id = int.from_bytes(place.clock.random_bytes(4), "little")
    there = place.disk.inode(place.producers(start)) is not None
    header = SegmentHeader(file_id, place.uuid, start, last_ticks, place.clock.ticks(), producers=there)
    lost = encode_lost(start, last_ticks + 1, end - start) if end > start else b""
    place.disk.replace(place.segment(start), header.encode() + lost)


def _rebuildable(finding: Finding) -> bool:
    return finding.damage and finding.path.endswith((".index", "/tail"))


def _is_snapshot(finding: Finding) -> bool:
    return finding.damage and finding.path.endswith(".producers")


def _forget_producers(place: LogDirectory, path: Path, *, apply: bool) -> Action:
    """Put an empty snapshot in the place of a lost one, whose bytes are kept if there are any."""
    base = offset_of(path.name, "producers")
    assert base is not None
    what = (
        f"replace it with an empty one: producers are forgotten as of offset {base}, "
        "and retries of their earlier requests are appended again"
    )
    there = place.disk.inode(path) is not None
    kept = place.beside(path) if there else None
    if apply:
        if kept is not None and place.disk.is_directory(path):
            place.disk.rename(path, kept)
        elif kept is not None:
            place.disk.replace(kept, place.disk.read_file(path))
        place.disk.replace(path, producers.encode(place.uuid, base, {}))
    return _action(place, path, what, str(kept or ""), apply)


def _rewrite(place: LogDirectory, mend: Mend) -> list[str]:
    """Rewrite a segment without its damage; returns where the cut bytes are kept."""
    segment = SegmentFile(place, mend.base, header=mend.header)
    kept: list[str] = []
    try:
        window = segment.window(0, max(segment.size(), HEADER_BYTES))
        file_id = int.from_bytes(place.clock.random_bytes(4), "little")
        parts: list[bytes] = [msgspec.structs.replace(mend.header, file_id=file_id).encode()]
        if mend.header_damaged:
            kept.append(_keep(place, mend.base, window, 0, HEADER_BYTES))
        ranges: list[tuple[int, int, Hole | None]] = [(start, end, None) for start, end in mend.walk.sound]
        ranges += [(hole.start, hole.end, hole) for hole in mend.walk.holes]
        last_ticks = mend.header.previous_ticks
        for start, end, hole in sorted(ranges, key=lambda part: (part[0], part[2] is not None)):
            if hole is None:
                parts.append(bytes(window.buffer[start:end]))
                last_ticks = _last_ticks(window, start, end)
            else:
                kept.append(_keep(place, mend.base, window, start, end))
                parts += _lost(*hole.offsets, last_ticks + 1)
                last_ticks += hole.offsets[1] - hole.offsets[0]
                _set_blobs_aside(place, mend.base, hole)
        if any(hole.offsets[0] < hole.offsets[1] for hole in mend.walk.holes):
            place.mark_lost()
        place.disk.replace(place.segment(mend.base), b"".join(parts))
    finally:
        segment.close()
    return kept


def _last_ticks(window: SegmentWindow, start: int, end: int) -> int:
    """Return the ticks of the last event in a range of sound batches."""
    last_ticks = 0
    while start < end:
        batch = window.batch(start)
        last_ticks, start = batch.last_ticks, batch.end_position
    return last_ticks


def _keep(place: LogDirectory, base: int, window: SegmentWindow, start: int, end: int) -> str:
    if start == end:
        return ""
    return str(place.keep(base, start, bytes(window.buffer[start:end])))


def _lost(offset: int, end: int, ticks: int) -> Iterator[bytes]:
    """Yield the batches that stand for lost offsets: one, unless there are more than a batch can count."""
    for lo in range(offset, end, COUNT_MAX):
        yield encode_lost(lo, ticks + lo - offset, min(end - lo, COUNT_MAX))


def _set_blobs_aside(place: LogDirectory, base: int, hole: Hole) -> None:
    """Rename the blobs of lost events, so that nothing removes them as orphans."""
    for name in place.disk.names(place.blobs(base)):
        offset = offset_of(name, "blob")
        if offset is not None and hole.offsets[0] <= offset < hole.offsets[1]:
            place.disk.rename(place.blobs(base) / name, place.blobs(base) / f"{name}.cut")


def _describe(place: LogDirectory, mend: Mend) -> list[tuple[str, str]]:
    """Return what is done to a segment, and where the cut bytes go."""
    steps = []
    if mend.header_damaged:
        steps.append(("rewrite its header", str(place.cut(mend.base, 0))))
    for hole in mend.walk.holes:
        lo, hi = hole.offsets
        lost = f"mark offsets {lo} to {hi - 1} as lost" if hi > lo else "no offset is lost"
        steps.append(
            (
                f"remove bytes {hole.start} to {hole.end} ({hole.problem}); {lost}",
                str(place.cut(mend.base, hole.start)) if hole.end > hole.start else "",
            )
        )
    return steps


def _new_header(place: LogDirectory, base: int, previous_ticks: int) -> SegmentHeader:
    there = place.disk.inode(place.producers(base)) is not None
    return SegmentHeader(0, place.uuid, base, previous_ticks, previous_ticks, producers=there)


def _action(place: LogDirectory, path: Path, what: str, kept: str = "", done: bool = False) -> Action:
    return Action(place.topic, place.partition, str(path), what, kept, done)

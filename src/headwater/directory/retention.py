"""Retention: deleting the oldest segments of a log, whole, when it outgrows what its topic keeps (docs/FORMAT.md).

`due` finds the segments to delete, `delete` removes them, and a `Keeper` does both for the logs of a directory, when
they roll and when a user calls `retain`. A segment is deleted under the lock of the log, so that
neither a repair nor a topic that is created again comes in between, and under the lock of its own file, so that no
sealer renames a packed one over it afterwards. Appends do not wait: the log's lock is held for the removal of one
name; the syncs come after it. Safe from any thread and process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import msgspec

from headwater.directory import local_manifest
from headwater.directory.failures import being_sealed, locked, unavailable
from headwater.directory.log_directory import LogDirectory
from headwater.directory.parts import LocalArchive
from headwater.directory.sealer import BUSY_POLL_S
from headwater.directory.segment import read_header
from headwater.directory.tail import Tail
from headwater.disk.disk import wait_for_lock
from headwater.errors import Corrupt, HeadwaterError, NotFound, Unavailable
from headwater.format import segment as segment_format
from headwater.format.history import HistoryManifest
from headwater.format.names import log_uuid, offset_of
from headwater.format.segment import HEADER_BYTES
from headwater.format.settings import Retention, TopicRecord, TopicSettings
from headwater.format.tail import OPEN, TailSlot
from headwater.info import DeletedSegment
from headwater.log.log import deleted
from headwater.log.topic_rules import TICKS_PER_MS, Rules, Slowest, bound_of, no_consumers, surplus, with_retention

if TYPE_CHECKING:
    from headwater.directory.catalog import DirectoryCatalog
    from headwater.directory.local_log import LocalLog

log = logging.getLogger("headwater")

Outcome = Literal["deleted", "gone", "busy"]  # by this call, by another process, or not because it is being sealed


class SegmentFiles(msgspec.Struct, frozen=True):
    """A segment and all its files."""

    base: int
    end: int
    bytes: int


def survey(place: LogDirectory, slot: TailSlot) -> list[SegmentFiles]:
    """Return the segments of a log, oldest first, the active one last. Space that it has reserved does not count.

    None if the slot is so old that what was active then is deleted.
    """
    sizes: dict[int, int] = {}
    active = place.segment(slot.segment).name
    for name, size in place.disk.sizes(place.path).items():
        base = _base_of(name)
        if base is not None:
            counted = min(size, slot.visible_position) if name == active else size
            if name.endswith(".blobs"):
                counted = sum(place.disk.sizes(place.path / name).values())
            sizes[base] = sizes.get(base, 0) + counted
    bases = [base for base in place.segments() if base <= slot.segment]
    ends = [*bases[1:], slot.visible_offset]
    return [SegmentFiles(base, ends[number], sizes.get(base, 0)) for number, base in enumerate(bases)]


def due(place: LogDirectory, slot: TailSlot, segments: list[SegmentFiles], rules: Rules) -> list[SegmentFiles]:
    """Return the finished segments that have to go, oldest first.

    All that is below the active segment is durable, because a roll syncs it: nothing else is ever deleted.
    """
    durable = min(slot.segment, slot.durable_offset)
    finished = [segment for segment in segments[:-1] if segment.end <= durable]
    total = sum(segment.bytes for segment in segments)
    return surplus(finished, total, len(segments), rules, place.clock.ticks(), partial(_last_ticks, place))


def outlived(place: LogDirectory, slot: TailSlot, rules: Rules) -> bool:
    """Return whether every event of the active segment is too old to be kept: it may go once it is finished."""
    age_ms = rules.settings.retention_age_ms
    old = age_ms and slot.last_ticks < place.clock.ticks() - age_ms * TICKS_PER_MS
    return bool(old and slot.visible_position > HEADER_BYTES and rules.free(slot.visible_offset))


def full(place: LogDirectory, slot: TailSlot, rules: Rules) -> Unavailable | None:
    """Return why no new segment may be begun; None if it may: what is due for deletion makes its space afterwards."""
    hard = rules.settings.retention_bytes_hard
    segments = survey(place, slot)
    total = sum(segment.bytes for segment in segments)
    if total <= hard or total - sum(segment.bytes for segment in due(place, slot, segments, rules)) <= hard:
        return None
    behind = rules.settings.retention_consumers and rules.passed is not None
    if rules.archived is not None and due(place, slot, segments, msgspec.structs.replace(rules, archived=None)):
        return Unavailable(
            f"{place} is full: it has {total} bytes of at most {hard}, and old segments are not archived yet",
            hint="is the archiver ('headwater archive') running, and can it reach the archive?",
            code="log_full",
            bytes=total,
            maximum=hard,
        )
    return Unavailable(
        f"{place} is full: it has {total} bytes; the limit is {hard}",
        hint="let the slowest consumer catch up, or change the retention: headwater retain"
        if behind
        else "delete old events, or change the retention: headwater retain",
        code="log_full",
        bytes=total,
        maximum=hard,
    )


def delete(place: LogDirectory, segments: list[SegmentFiles], *, wait: bool) -> list[DeletedSegment]:
    """Delete segments, the oldest first; each is gone durably before the next. Returns those that went by this call.

    One that is being sealed is waited for, up to a limit (Unavailable); without `wait`, it is left for the next time,
    and so are those behind it.
    """
    done: list[DeletedSegment] = []
    try:
        if segments:
            _mark(place, segments)
            # Another process may have deleted older ones just now: if a power loss brought one of them back, and not
            # the one that is deleted here, there would be a gap.
            place.disk.sync_directory(place.path)
        for segment in segments:
            outcome = _take_away(place, segment.base, place.limits.lock_wait_s if wait else 0.0)
            if outcome == "busy":
                break
            _remove_rest(place, segment.base)
            if outcome == "deleted":
                done.append(DeletedSegment(place.topic, place.partition, segment.base, segment.end, segment.bytes))
    except OSError as error:
        if place.disk.inode(place.path) is None:
            raise deleted(place) from error
        raise unavailable(place, "a segment cannot be deleted", error) from error
    return done


def _mark(place: LogDirectory, segments: list[SegmentFiles]) -> None:
    """Say where the log may begin once these are deleted; nothing if all of them are gone. The caller syncs that."""
    for segment in segments:
        try:
            fd = place.disk.open_read(place.segment(segment.base))
        except FileNotFoundError:
            continue  # another process has deleted it
        try:
            with _locked(place):
                _check_own(place, fd)
                place.mark(max(segment.end for segment in segments))
            return
        finally:
            place.disk.close(fd)


def orphans(place: LogDirectory, oldest: int) -> dict[int, list[str]]:
    """Return what a crash left of deleted segments: the names of files below the oldest segment, by the segment."""
    found: dict[int, list[str]] = {}
    for name in sorted(place.disk.names(place.path)):
        base = _base_of(name)
        if base is not None and base < oldest and not name.endswith(".log"):
            found.setdefault(base, []).append(name)
    # Looked up by its name: a directory that is read while a packed segment takes its place may not show either.
    return {base: names for base, names in found.items() if place.disk.inode(place.segment(base)) is None}


def sweep(place: LogDirectory) -> None:
    """Remove what a crash left of deleted segments."""
    bases = place.segments()
    try:
        left = orphans(place, bases[0]) if bases else {}
        if left:
            # The process that deleted a segment may have died before that was durable: if a power loss brought it
            # back, it would need its blobs.
            place.disk.sync_directory(place.path)
        for base in left:
            _remove_rest(place, base)
    except OSError as error:
        raise unavailable(place, "the files of a deleted segment cannot be removed", error) from error


def _take_away(place: LogDirectory, base: int, wait_s: float) -> Outcome:
    """Remove the file of a segment, waiting for a process that seals it; raises Unavailable if that takes too long."""
    deadline = place.clock.monotonic() + wait_s
    while (outcome := _try_to_take_away(place, base)) == "busy" and wait_s:
        if place.clock.monotonic() > deadline:
            raise being_sealed(place, base)
        place.clock.sleep(BUSY_POLL_S)
    return outcome


def _try_to_take_away(place: LogDirectory, base: int) -> Outcome:
    """Remove the file of a segment, durably."""
    disk, path = place.disk, place.segment(base)
    try:
        fd = disk.open_read(path)
    except FileNotFoundError:
        disk.sync_directory(
            place.path
        )  # the process that removed it may not have come to this, and the next one must not go first
        return "gone"
    with disk.guard(fd):  # closed last, and outside the log's lock: this is what gives the space back
        with _locked(place):
            if not disk.try_lock(fd) or disk.inode(path) != disk.inode(fd):
                return "busy"
            _check_own(place, fd)
            disk.unlink(path)
        disk.sync_directory(place.path)
    return "deleted"


def _locked(place: LogDirectory) -> FileIO:
    """Take the log's lock until the `with` of what is returned ends; raises NotFound if the topic was deleted."""
    disk = place.disk
    try:
        file = disk.guard(disk.open_write(place.lock))
    except FileNotFoundError as error:
        raise deleted(place) from error
    try:
        tail = Tail.open(place)
        contend = tail.contend if tail is not None and tail.writable else None
        if not wait_for_lock(disk.try_lock, file.fileno(), place.clock, place.limits.lock_wait_s, contend):
            raise locked(place)
        if disk.inode(place.lock) != disk.inode(file.fileno()):
            raise deleted(place)
    except BaseException:
        file.close()
        raise
    return file


def _check_own(place: LogDirectory, fd: int) -> None:
    """Raise NotFound if the file is of a topic that was made in this place since."""
    with contextlib.suppress(Corrupt):  # a damaged segment may go like any other, and a new one is not damaged
        if segment_format.decode(place.disk.pread(fd, HEADER_BYTES, 0)).log_uuid != place.uuid:
            raise deleted(place)


def _remove_rest(place: LogDirectory, base: int) -> None:
    """Remove the files beside a segment whose own file is gone. Not synced: what comes back is swept."""
    disk, blobs = place.disk, place.blobs(base)
    for name in disk.names(place.path):
        if _base_of(name) == base and name != blobs.name:
            _remove(place, base, place.path / name)
    for name in disk.names(blobs):
        _remove(place, base, blobs / name)
    if disk.inode(blobs) is not None:
        with _locked(place):
            if disk.inode(place.segment(base)) is None:
                disk.remove_tree(blobs)


def _remove(place: LogDirectory, base: int, path: Path) -> None:
    """Remove one file of a deleted segment: under the log's lock, or it might be of a topic made here since."""
    disk = place.disk
    if disk.is_directory(path):  # a person put it there, or repair moved it away
        with _locked(place):
            if disk.inode(place.segment(base)) is None:
                disk.remove_tree(path)
        return
    with contextlib.suppress(FileNotFoundError):  # another process sweeps too
        fd = disk.open_read(path)
        try:
            with _locked(place):
                if disk.inode(place.segment(base)) is None:
                    disk.unlink(path)
        finally:
            disk.close(fd)  # outside the lock: this is what gives the space back


def _last_ticks(place: LogDirectory, segment: SegmentFiles) -> int:
    """Return the ticks of the last event of a finished segment. If they are unknown, it counts as new."""
    try:
        return read_header(place, segment.end).previous_ticks
    except (Corrupt, NotFound):
        return place.clock.ticks()


def _base_of(name: str) -> int | None:
    """Return the first offset of the segment that a file belongs to.

    None for files of no segment and unfinished ones.
    """
    suffix = name.partition(".")[2]
    return None if name.endswith(".tmp") else offset_of(name, suffix)


class Keeper:
    """Keeps the logs of one directory within the bounds of their topics."""

    def __init__(
        self,
        catalogue: DirectoryCatalog,
        slowest: Slowest = no_consumers,
        archive: LocalArchive | None = None,
        follows: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keep what is not in the `archive`, if the directory has one.

        `follows` says that it is a replica, which keeps what its source keeps, whatever its topics' settings are.
        """
        self.slowest = slowest
        self._follows = follows
        self._catalogue = catalogue
        self._archive = archive
        self._kept: dict[bytes, int] = {}  # of each log, the segment that had to stay when it was looked at last

    def rolled(self, place: LogDirectory) -> None:
        """Delete what a log that rolled need not keep; what cannot be deleted now is left for the next roll."""
        try:
            tail = Tail.open(place)
            slot = tail.newest() if tail is not None else None
            if slot is None or slot.boot_id != place.clock.boot_id():
                return  # another process must recover it first
            rules = self._rules(place)
            if rules.bounded:
                segments = survey(place, slot)
                delete(place, self._archived(place, due(place, slot, segments, rules)), wait=False)
            sweep(place)
        except OSError as error:
            raise unavailable(place, "old segments cannot be deleted", error) from error

    def may_roll(self, place: LogDirectory, slot: TailSlot) -> None:
        """Raise Unavailable if the log has reached its hard bound, and its topic refuses what comes then."""
        refusal = None
        with contextlib.suppress(HeadwaterError, OSError):  # what cannot be read is no reason to refuse an append
            topic = self._catalogue.find(place.topic)
            if topic.settings.overflow == "refuse":
                rules = self._rules(place, topic)
                if self._archive is not None and self._archive.url() is not None:
                    # As far as the directory knows: no request over a network before an append.
                    known = local_manifest.read(place)
                    rules = msgspec.structs.replace(rules, archived=known.end if known is not None else 0)
                refusal = full(place, slot, rules)
        if refusal is not None:
            raise refusal

    def retain(
        self,
        logs: list[LocalLog],
        *,
        changes: Retention,
        before: int | datetime | None,
        dry_run: bool,
    ) -> list[DeletedSegment]:
        """Change what the topic of these logs keeps, if there are changes, and delete what it need not keep now."""
        name = logs[0].place.topic
        bounds = [bound_of(log, before, len(logs)) for log in logs]
        topic = self._catalogue.find(name)
        if changes and dry_run:
            topic = msgspec.structs.replace(topic, settings=with_retention(topic.settings, changes))
        elif changes:
            topic = self._catalogue.change(name, changes)
        found: list[DeletedSegment] = []
        for log, (offset, ticks) in zip(logs, bounds, strict=True):
            rules = msgspec.structs.replace(self._rules(log.place, topic), before=offset, before_ticks=ticks)
            found += self._apply(log, rules, dry_run)
        return found

    def _apply(self, log: LocalLog, rules: Rules, dry_run: bool) -> list[DeletedSegment]:
        place, slot = log.place, log.state()
        segments = survey(place, slot)
        chosen = due(place, slot, segments, rules)
        if len(chosen) == len(segments) - 1 and slot.state == OPEN and outlived(place, slot, rules):
            if dry_run:
                chosen.append(segments[-1])
            elif log.roll(tell=False):
                slot = log.state()
                chosen = due(place, slot, survey(place, slot), rules)
        chosen = self._archived(place, chosen)
        if dry_run:
            return [_deleted(place, segment) for segment in chosen]
        done = delete(place, chosen, wait=True)
        sweep(place)
        return done

    def _archived(self, place: LogDirectory, chosen: list[SegmentFiles]) -> list[SegmentFiles]:
        """Return those of the segments, up to the first that is not in the archive, which the store itself must say.

        All of them if the directory has no archive. Raises Unavailable if it is out of reach: then none may go.
        """
        if not chosen or self._archive is None or self._archive.url() is None:
            return chosen
        # The store is queried only if the directory knows of something: an archiver has left a copy of the manifest.
        known: HistoryManifest | None = local_manifest.read(place)
        if known is not None and local_manifest.holds(place, known, chosen[0].base, chosen[0].end):
            known = self._archive.covered(place, self._catalogue.find(place.topic))
        for number, segment in enumerate(chosen):
            if known is None or not local_manifest.holds(place, known, segment.base, segment.end):
                # An archiver may be a roll behind. If it is still the same one, no archiver runs.
                if self._kept.get(place.uuid) == segment.base:
                    log.warning("%s: the segment at offset %d is not in the archive, and is kept", place, segment.base)
                self._kept[place.uuid] = segment.base
                return chosen[:number]
        return chosen

    def _rules(self, place: LogDirectory, topic: TopicRecord | None = None) -> Rules:
        """Return what a log keeps; raises NotFound if its topic was deleted, also if another has its name now."""
        topic = topic or self._catalogue.find(place.topic)
        if log_uuid(UUID(topic.uuid), place.partition) != place.uuid:
            raise deleted(place)
        if self._follows():
            return Rules(TopicSettings())
        passed = self.slowest(topic, place.partition) if topic.settings.retention_consumers else None
        return Rules(topic.settings, passed)


def _deleted(place: LogDirectory, segment: SegmentFiles) -> DeletedSegment:
    return DeletedSegment(place.topic, place.partition, segment.base, segment.end, segment.bytes)

"""Verifying what an archive holds of one log: every object, byte by byte, and what is in it. Changes nothing there.

Each segment is fetched into a directory of the caller's, checked as a local one is, and removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from headwater.errors import Corrupt, HeadwaterError
from headwater.format.archive import ArchivedFile, ArchivedSegment, SegmentManifest, file_key, log_folder, manifest_key
from headwater.format.names import file_of
from headwater.format.segment import HEADER_BYTES
from headwater.storage.archive.archive import reaching
from headwater.storage.archive.restore import Fetch, fetch
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.check import Counts, Finding, check_index, lost_findings, walk
from headwater.storage.place import LogDirectory
from headwater.storage.segment import SegmentFile


def check(
    store: ObjectStore, place: LogDirectory, manifest: SegmentManifest, counts: Counts, advance: Callable[[int], None]
) -> Iterator[Finding]:
    """Everything that is wrong with an archived log, or worth knowing. Its segments are put into `place` meanwhile."""
    last_ticks = 0
    for segment in manifest.segments:
        yield from _check_segment(store, place, manifest, segment, last_ticks, counts, advance)
        last_ticks = segment.last_ticks
        counts.segments += 1
    yield from _strangers(store, place, manifest)


def _check_segment(
    store: ObjectStore,
    place: LogDirectory,
    manifest: SegmentManifest,
    segment: ArchivedSegment,
    last_ticks: int,
    counts: Counts,
    advance: Callable[[int], None],
) -> Iterator[Finding]:
    if segment.previous_ticks < last_ticks:
        where = f"{store.url}/{manifest_key(manifest.topic, manifest.uuid, manifest.partition)}"
        yield _finding(place, where, 0, 0, f"ticks do not grow from the segment before to segment {segment.base}")
    sound = True
    for file in segment.files:
        try:
            fetch(store, place, Fetch(manifest, file, place.path / file.name), advance)
        except Corrupt as error:
            sound = False
            yield _finding(place, str(error.path), error.position, error.size, str(error.reason))
    if sound:
        yield from _check_content(store, place, manifest, segment, counts)
    for file in segment.files:
        path = place.path / file.name
        if place.disk.inode(path) is not None:
            place.disk.unlink(path)


def _check_content(
    store: ObjectStore, place: LogDirectory, manifest: SegmentManifest, archived: ArchivedSegment, counts: Counts
) -> Iterator[Finding]:
    """What is wrong with a segment whose bytes are those that were archived."""
    log = archived.file(file_of(archived.base, "log"))
    assert log is not None
    where = f"{store.url}/{file_key(manifest, log)}"
    try:
        segment = SegmentFile(place, archived.base)
    except HeadwaterError as error:
        yield _finding(place, where, 0, HEADER_BYTES, str(error.facts.get("reason") or error.message))
        return
    try:
        walked = walk(segment, segment.size(), archived.end, counts, place)
        for hole in walked.holes:
            yield _finding(place, where, hole.start, hole.end - hole.start, hole.problem)
        yield from lost_findings(place, where, walked)
        told = archived.file_id, archived.previous_ticks, archived.end
        if (segment.header.file_id, segment.header.previous_ticks, walked.end_offset) != told:
            yield _finding(place, where, 0, HEADER_BYTES, "the segment is not the one that the manifest tells of")
        index = archived.file(file_of(archived.base, "index"))
        if index is not None:
            for found in check_index(place, segment, sealed=True, sound=not walked.holes):
                yield msgspec.structs.replace(found, path=f"{store.url}/{file_key(manifest, index)}")
    finally:
        segment.close()


def _strangers(store: ObjectStore, place: LogDirectory, manifest: SegmentManifest) -> Iterator[Finding]:
    """Objects that no manifest names: what an archiver that was stopped had put."""
    folder = f"{log_folder(manifest.topic, manifest.uuid, manifest.partition)}/"
    files = chain.from_iterable(segment.files for segment in manifest.segments)
    named = {file_key(manifest, file) for file in files}
    named.add(manifest_key(manifest.topic, manifest.uuid, manifest.partition))
    with reaching(store.url):
        for listed in store.list(folder):
            if listed.key not in named:
                problem = "no manifest names this object: an archiver was stopped before it was done"
                yield _finding(place, f"{store.url}/{listed.key}", 0, 0, problem, damage=False)


def missing(
    place: LogDirectory, store: ObjectStore, manifest: SegmentManifest | None, noted: SegmentManifest | None
) -> Iterator[Finding]:
    """What a log directory knows to be in its archive, and is not: it may have dropped that."""
    for segment in noted.segments if noted is not None else ():
        there = manifest.at(segment.base) if manifest is not None else None
        if there is None or not there.same_events(segment):
            problem = f"segment {segment.base} was archived, and the archive {store.url} does not have it any more"
            yield _finding(place, str(place.archived), 0, 0, problem)


def total_bytes(manifest: SegmentManifest) -> int:
    """How much has to be fetched to check a log."""
    files: Iterator[ArchivedFile] = chain.from_iterable(segment.files for segment in manifest.segments)
    return sum(file.bytes for file in files)


def _finding(
    place: LogDirectory, path: str | Path, position: int, size: int, problem: str, damage: bool = True
) -> Finding:
    return Finding(place.topic, place.partition, str(path), position, size, problem, damage)

"""Archiving one log: its finished and sealed segments, the oldest first, each byte by byte as it is on disk.

A segment is archived when the manifest that names it was swapped in, and that happens after all of its files are
durable in the store. Whoever dies before leaves objects that no manifest names; archived again, they get the same
bytes. Two archivers at once do the same work, and one of them finds that it is done. What is archived is never
replaced: a segment that is packed or repaired later stays in the archive as it was. Safe from any thread and process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise

import msgspec

from headwater.errors import Conflict, Corrupt, NotFound
from headwater.format import producers
from headwater.format import segment as segment_format
from headwater.format.archive import ArchivedFile, ArchivedSegment, SegmentManifest, blob_name, file_key, manifest_key
from headwater.format.batch import BLOB
from headwater.format.index import Index
from headwater.format.names import file_of
from headwater.format.segment import HEADER_BYTES
from headwater.format.settings import TopicRecord
from headwater.storage.archive import note
from headwater.storage.archive.archive import ArchiveStore, reaching
from headwater.storage.archive.transfer import pieces_of, upload
from headwater.storage.check import Counts, walk
from headwater.storage.place import LogDirectory
from headwater.storage.segment import SegmentFile, read_header

Pause = Callable[[], None]


class LogArchive:
    """The way of one log into an archive. For one thread."""

    def __init__(
        self, place: LogDirectory, topic: TopicRecord, archive: ArchiveStore, pause: Pause = lambda: None
    ) -> None:
        """`pause` is called between pieces of work, and may raise to stop."""
        self.place = place
        self._archive = archive
        self._key = manifest_key(topic.name, topic.uuid, place.partition)
        self._pause = pause
        empty = SegmentManifest(topic=topic.name, uuid=topic.uuid, partition=place.partition, segments=[])
        with reaching(archive.store.url):
            found = archive.manifest(topic, place.partition, place.uuid)
        self.manifest = found.record if found is not None else empty

    def remember(self) -> None:
        """Have the directory know what is archived."""
        if self.manifest.segments:
            note.remember(self.place, self.manifest)

    def check_history(self, active: int) -> None:
        """Raise Conflict if the archive holds other events than this log, whose last segment is `active`."""
        place, manifest = self.place, self.manifest
        bases = [base for base in place.segments() if base <= active]
        if manifest.segments and manifest.end > active:
            raise _diverged(place, f"the archive ends at offset {manifest.end}, and the log is not that far")
        for base, end in pairwise(bases):
            there = manifest.at(base)
            if base < manifest.end and (there is None or not _is_of(place, there, base, end)):
                raise _diverged(place, f"the archive has other events at offset {base}")
        if bases and manifest.segments and bases[0] > manifest.end:
            raise Conflict(
                f"{place}: offsets {manifest.end} to {bases[0] - 1} are neither in the archive nor here",
                hint="they were deleted while the directory had no archive; archive it to another place",
                code="archive_gap",
            )

    def pending(self, active: int) -> list[tuple[int, int, int]]:
        """First offset, end and bytes of the finished segments that are not archived."""
        bases = [base for base in self.place.segments() if base <= active and base >= self.manifest.end]
        return [(base, end, self._bytes(base)) for base, end in pairwise(bases)]

    def archive(self, base: int, end: int) -> ArchivedSegment | None:
        """Archive one finished segment, the next one; None if it is not sealed, or somebody deleted it.

        When it returns, all of it is durable in the store, and the directory knows. Raises Corrupt for a damaged one,
        which is not archived, Conflict if the archive has other events, and Unavailable.
        """
        found = self._found(base, end) or self._upload(base, end)
        if found is not None:
            self._add(found)
            self.remember()
        return found

    def _found(self, base: int, end: int) -> ArchivedSegment | None:
        """The segment, if another archiver was first; None if it is not archived."""
        with reaching(self._archive.store.url):
            found = self._archive.manifests.read(self._key)
        there = found.record.at(base) if found is not None else None
        if there is not None and not _is_of(self.place, there, base, end):
            raise _diverged(self.place, f"the archive has other events at offset {base}")
        return there

    def _upload(self, base: int, end: int) -> ArchivedSegment | None:
        place = self.place
        disk = place.disk
        try:
            fd = disk.open_read(place.segment(base))
        except FileNotFoundError:
            return None
        try:
            size = disk.size(fd)
            header = segment_format.decode(disk.pread(fd, HEADER_BYTES, 0))
            stored = _sound_index(place, base, header.file_id, size)
            if stored is None:
                return None
            blobs = self._verify(base, end, header.file_id)
            if blobs is None:
                return None
            files = [
                self._put(file_of(base, "log"), size, lambda: pieces_of(disk, fd, size, self._pause)),
                self._put(file_of(base, "index"), len(stored), lambda: [stored]),
                *self._put_blobs(base, blobs),
                *self._put_producers(end),
            ]
        finally:
            disk.close(fd)
        first_ticks = int(Index.decode(stored).ticks[0])
        last_ticks = read_header(place, end).previous_ticks
        return ArchivedSegment(base, end, header.previous_ticks, first_ticks, last_ticks, header.file_id, files)

    def _verify(self, base: int, end: int, file_id: int) -> list[int] | None:
        """The offsets of the blobs of a segment that is sound; None if it was replaced just now."""
        segment = SegmentFile(self.place, base)
        try:
            if segment.header.file_id != file_id:
                return None
            walked = walk(segment, segment.size(), end, Counts(), self.place)
            if walked.holes:
                hole = walked.holes[0]
                raise Corrupt(
                    f"{self.place}: segment {base} is damaged, and not archived: {hole.problem}",
                    hint="run 'headwater check', then 'headwater repair', which keeps what it cuts",
                    path=segment.path,
                    position=hole.start,
                    size=hole.end - hole.start,
                )
            window = segment.window(HEADER_BYTES, segment.size())
            batches = window.batches(HEADER_BYTES, base)
            return [batch.base_offset for batch in batches if batch.flags & BLOB]
        finally:
            segment.close()

    def _put_blobs(self, base: int, offsets: list[int]) -> Iterator[ArchivedFile]:
        disk = self.place.disk
        for offset in offsets:
            fd = disk.open_read(self.place.blobs(base) / file_of(offset, "blob"))
            try:
                size = disk.size(fd)
                yield self._put(blob_name(base, offset), size, lambda: pieces_of(disk, fd, size, self._pause))  # noqa: B023  # called at once
            finally:
                disk.close(fd)

    def _put_producers(self, end: int) -> Iterator[ArchivedFile]:
        """What is remembered of producers as of the segment's end, while it is there: until the next roll."""
        place = self.place
        with contextlib.suppress(FileNotFoundError, Corrupt, NotFound):
            if read_header(place, end).producers:
                stored = place.disk.read_file(place.producers(end))
                producers.decode(stored, place.uuid, end)
                yield self._put(file_of(end, "producers"), len(stored), lambda: [stored])

    def _put(self, name: str, size: int, pieces: Callable[[], Iterable[bytes]]) -> ArchivedFile:
        self._pause()
        with reaching(self._archive.store.url):
            return upload(self._archive.store, partial(file_key, self.manifest), name, size, pieces)

    def _add(self, segment: ArchivedSegment) -> None:
        """Have the manifest name a segment whose files are all there."""
        records = self._archive.manifests
        with reaching(self._archive.store.url):
            while True:
                found = records.read(self._key)
                manifest = found.record if found is not None else self.manifest
                there = manifest.at(segment.base)
                if there is not None:  # by another archiver, or by this one if an answer was lost
                    if not there.same_events(segment):
                        raise _diverged(self.place, f"the archive has other events at offset {segment.base}")
                    self.manifest = manifest
                    return
                if manifest.segments and manifest.end != segment.base:
                    raise _diverged(self.place, f"the archive ends at offset {manifest.end}, not {segment.base}")
                added = msgspec.structs.replace(manifest, segments=[*manifest.segments, segment])
                if found is None:
                    done = records.create(self._key, added)
                else:
                    done = records.swap(self._key, added, found.version)
                if done is not None:
                    self.manifest = added
                    return

    def _bytes(self, base: int) -> int:
        place = self.place
        files = (place.segment(base), place.index(base))
        blobs = place.disk.sizes(place.blobs(base)).values()
        return sum(map(place.disk.file_size, files)) + sum(blobs)


def covered(place: LogDirectory, topic: TopicRecord, archive: ArchiveStore) -> SegmentManifest | None:
    """What the store says is archived of a log, after the directory has noted it; None if nothing is.

    Only what this tells may be dropped. Raises Unavailable if the store cannot be asked.
    """
    with reaching(archive.store.url):
        found = archive.manifest(topic, place.partition, place.uuid)
    if found is None:
        return None
    note.remember(place, found.record)
    return found.record


def holds(place: LogDirectory, manifest: SegmentManifest, base: int, end: int) -> bool:
    """Whether a manifest has the events of a finished segment of this log."""
    there = manifest.at(base)
    try:
        return there is not None and _is_of(place, there, base, end)
    except Corrupt:
        return False


def _is_of(place: LogDirectory, there: ArchivedSegment, base: int, end: int) -> bool:
    """Whether an archived segment has the events of a finished local one: the ticks around them never come twice."""
    try:
        ticks = read_header(place, base).previous_ticks, read_header(place, end).previous_ticks
    except NotFound:
        return True  # dropped meanwhile, by somebody who looked
    return (there.end, there.previous_ticks, there.last_ticks) == (end, *ticks)


def _sound_index(place: LogDirectory, base: int, file_id: int, size: int) -> bytes | None:
    """The bytes of the index of this very file; None if there is none, or it is damaged: sealing makes it again."""
    try:
        stored = place.disk.read_file(place.index(base))
        index = Index.decode(stored)
    except (FileNotFoundError, Corrupt):
        return None
    return stored if (index.file_id, index.segment_bytes) == (file_id, size) else None


def _diverged(place: LogDirectory, why: str) -> Conflict:
    return Conflict(
        f"{place}: {why}",
        hint="the log was restored, or changed, behind its archive; archive it to another place",
        code="archive_diverged",
    )

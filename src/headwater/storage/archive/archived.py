"""The archived segments of one log, for its reader: told by the note, fetched when needed, then ordinary files.

A segment that is not on the local disk any more is fetched whole into the cache and opened as any other, so that reads
of every kind go on in it. Its index alone is enough to tell that a key or a type is not in it, and comes first. Safe
from several threads; no lock is held while something is fetched, but that of the file itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from headwater.errors import Corrupt, NotFound
from headwater.format import blob as blob_format
from headwater.format.archive import ArchivedFile, ArchivedSegment, ArchiveNote, blob_name, file_key
from headwater.format.batch import corrupt
from headwater.format.names import file_of
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.storage.archive import note
from headwater.storage.archive.archive import SegmentArchive, reaching
from headwater.storage.archive.transfer import download
from headwater.storage.keys import KeyIndexes
from headwater.storage.place import LogDirectory
from headwater.storage.segment import SegmentFile

OPEN_MAX = 8  # fetched segments of a log that are kept open: each may have been deleted from the cache meanwhile
TRIES = 20  # a file that was just fetched may be deleted by others, who need the room, before it is opened
RANGE_CHUNKS = 8  # of a huge event, asked for at once


class ArchiveReader:
    """What of one log is in the archive of its directory."""

    def __init__(self, place: LogDirectory, archive: SegmentArchive) -> None:
        self._place = place
        self._archive = archive
        self._cached = msgspec.structs.replace(place, path=archive.cache.folder(place.uuid))
        self._noted: tuple[int | None, ArchiveNote | None] = None, None  # what identifies the note's file, and the note
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self._opening = threading.Lock()  # protects `_open`
        self.key_indexes = KeyIndexes(self._cached, lambda _base: None)

    def note(self) -> ArchiveNote | None:
        """What is archived, as far as this directory knows; None if nothing is."""
        there = self._place.disk.inode(self._place.archived)
        noted = self._noted
        if there != noted[0]:
            noted = self._noted = there, note.read(self._place) if there is not None else None
        return noted[1]

    def before(self, local: int) -> list[int]:
        """The first offsets of the archived segments that lead up to `local`, the oldest on the local disk."""
        known = self.note()
        if known is None or (known.end != local and known.at(local) is None):
            return []  # what lies between was deleted before there was an archive
        return [segment.base for segment in known.segments if segment.base < local]

    def has(self, base: int) -> bool:
        """Whether a segment is in the archive."""
        return self._segment(base) is not None

    def previous_ticks(self, base: int) -> int | None:
        """The ticks of the last event before an archived segment; None if it is not archived."""
        segment = self._segment(base)
        return None if segment is None else segment.previous_ticks

    def first_ticks(self, base: int) -> int | None:
        """The ticks of the first event of an archived segment; None if it is not archived."""
        segment = self._segment(base)
        return None if segment is None else segment.first_ticks

    def open(self, base: int) -> SegmentFile:
        """An archived segment, open, fetched if need be. Raises Unavailable if the archive is out of reach."""
        with self._opening:
            found = self._open.get(base)
            if found is not None and not found.stale():
                self._open.move_to_end(base)
                return found
        for attempt in range(TRIES):
            self.fetch_index(base)
            self._fetch(base, file_of(base, "log"))
            try:
                found = SegmentFile(self._cached, base, rests=True)
                break
            except NotFound:
                if attempt == TRIES - 1:
                    raise
        assert found is not None
        with self._opening:
            self._open[base] = found
            self._open.move_to_end(base)
            # Others may have deleted some to make room, which comes back when nobody has them open.
            for other in [other for other in self._open if other != base and not self._is_cached(other)]:
                del self._open[other]
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        return found

    def fetch_index(self, base: int) -> None:
        """Have the index of an archived segment."""
        self._fetch(base, file_of(base, "index"))

    def identity(self, base: int) -> tuple[int, int]:
        """The id and the size of the segment's file, by which its index names it; it need not be fetched for that."""
        segment = self._known(base)
        return segment.file_id, self._file(segment, file_of(base, "log")).bytes

    def blob(self, base: int, offset: int, reference: tuple[int, int, int]) -> Iterator[bytes] | None:
        """The chunks of a huge event, straight from the archive, each verified; None if it is not there."""
        segment = self._segment(base)
        file = segment.file(blob_name(base, offset)) if segment is not None else None
        return None if file is None else self._chunks(file, reference)

    def after_fork(self) -> None:
        """In a forked child: drop what another thread of the parent may have been changing."""
        self._opening = threading.Lock()
        self._open.clear()

    def close(self) -> None:
        """Let go of the files; batches that were handed out stay valid."""
        with self._opening:
            self._open.clear()

    def _chunks(self, file: ArchivedFile, reference: tuple[int, int, int]) -> Iterator[bytes]:
        size, chunk_bytes, _ = reference
        store = self._archive.open().store
        key = file_key(self._manifest(), file)
        where = f"{store.url}/{key}"

        def ask(start: int, length: int) -> memoryview:
            with reaching(store.url):
                found = store.get_range(key, start, length)
            if found is None or len(found) < length:
                raise corrupt("the data of a huge event is missing", where, start, length)
            return found

        trailer = bytes(ask(size, file.bytes - size)) if file.bytes > size else b""
        try:
            crcs = blob_format.decode_trailer(trailer, reference).tolist()
        except Corrupt as error:
            raise corrupt(error.message, where, size, len(trailer)) from None
        step = max(1, RANGE_CHUNKS * BLOB_CHUNK_BYTES // chunk_bytes) * chunk_bytes
        for start in range(0, size, step):
            data = ask(start, min(step, size - start))
            for at in range(0, len(data), chunk_bytes):
                chunk = bytes(data[at : at + chunk_bytes])
                if crc32c(chunk) != crcs[(start + at) // chunk_bytes]:
                    raise corrupt("the checksum of a chunk is wrong", where, start + at, len(chunk))
                yield chunk

    def _is_cached(self, base: int) -> bool:
        return self._cached.disk.inode(self._cached.segment(base)) is not None

    def _fetch(self, base: int, name: str) -> None:
        segment = self._known(base)
        file = segment.file(name)
        if file is None:
            return  # an index is not truth, and may not have been archived
        manifest = self._manifest()

        def pieces() -> Iterator[bytes]:
            store = self._archive.open().store
            with reaching(store.url):
                yield from download(store, file_key(manifest, file), file)

        self._archive.cache.get(self._cached.path / name, file.bytes, pieces)

    def _segment(self, base: int) -> ArchivedSegment | None:
        known = self.note()
        return known.at(base) if known is not None else None

    def _known(self, base: int) -> ArchivedSegment:
        segment = self._segment(base)
        if segment is None:
            raise NotFound(f"{self._place}: segment {base} is not in the archive", code="segment_not_found", base=base)
        return segment

    def _manifest(self) -> ArchiveNote:
        known = self.note()
        assert known is not None
        return known

    def _file(self, segment: ArchivedSegment, name: str) -> ArchivedFile:
        found = segment.file(name)
        assert found is not None, "a manifest without it is refused"
        return found

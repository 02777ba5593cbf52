"""The archived segments of one log, for its reader: found in the local manifest, fetched when needed.

A Parquet file is fetched whole, verified, and written as an ordinary segment into the cache, so that reads of every
kind go on in it. Its index object alone often shows that a key or a type is not in it, and is fetched first. Safe from
several threads; no lock is held while something is fetched, but that of the file itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from headwater.bucket.object_blobs import verified_chunks
from headwater.directory import local_manifest
from headwater.directory.blobs import StoredBlob
from headwater.directory.keys import KeyIndexes, read_index
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.errors import Corrupt, NotFound
from headwater.format.history import ArchivedBlob, HistoryFile, LocalManifest, file_key
from headwater.format.names import file_of
from headwater.history import files
from headwater.history.cache import ArchiveCache
from headwater.history.files import damaged, reaching
from headwater.history.records import HistoryStore
from headwater.history.segments import write_segment

OPEN_MAX = 8  # fetched segments of a log that are kept open: each may have been deleted from the cache meanwhile
TRIES = 20  # a file that was just fetched may be deleted by others, who need the room, before it is opened


class ArchiveReader:
    """What of one log is in the archive of its directory."""

    def __init__(self, place: LogDirectory, archive: Callable[[], HistoryStore], cache: ArchiveCache) -> None:
        """`archive` opens the archive, when it is needed."""
        self._place = place
        self._archive = archive
        self._cache = cache
        self._known: tuple[int | None, LocalManifest | None] = None, None  # what identifies the file, and what it holds
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self._opening = threading.Lock()  # protects `_open`

    # Made at the first use: most logs have nothing in an archive, and very many may be open.

    @cached_property
    def key_indexes(self) -> KeyIndexes:
        """Return the key indexes of the segments in the cache."""
        return KeyIndexes(self._cached, lambda _base: None)

    @cached_property
    def _summaries(self) -> KeyIndexes:
        return KeyIndexes(self._indexed, lambda _base: None)

    @cached_property
    def _cached(self) -> LogDirectory:
        return msgspec.structs.replace(self._place, path=self._cache.folder(self._place.uuid))

    @cached_property
    def _indexed(self) -> LogDirectory:
        return msgspec.structs.replace(self._place, path=self._cache.folder(self._place.uuid, ".keys"))

    def known(self) -> LocalManifest | None:
        """Return what is archived, as far as this directory knows; None if nothing is."""
        there = self._place.disk.inode(self._place.archived)
        known = self._known
        if there != known[0]:
            known = self._known = there, local_manifest.read(self._place) if there is not None else None
        return known[1]

    def before(self, local: int) -> list[int]:
        """Return the first offsets of the archived segments that lead up to `local`, the oldest on the local disk."""
        known = self.known()
        if known is None or (known.end != local and known.at(local) is None):
            return []  # what lies between was deleted before there was an archive
        return [part.start for part in known.parts if part.start < local]

    def part(self, base: int) -> HistoryFile | None:
        """Return the file of an archived segment; None if it is not archived."""
        known = self.known()
        return known.at(base) if known is not None else None

    def may_hold(self, base: int, types: Callable[[bytes], bool] | None, hash: int | None) -> bool:
        """Tell whether an archived segment may hold a wanted type and a key of this hash. Fetches its index alone."""
        log, part = self._needed(base)
        path = self._indexed.index(base)

        def make(directory: Path) -> None:
            store = self._archive().store
            files.fetch(store, log, part.index, directory / path.name, self._place.disk)

        self._cache.get(path, part.index.bytes, make)
        try:
            if hash is not None:
                summary = self._summaries.get(base, 0, lambda: (0, 0))
                if summary is not None and not summary.positions(hash):
                    return False
            if types is not None:
                there = read_index(self._indexed, base).types
                return there is None or any(map(types, there))
        except (FileNotFoundError, Corrupt):  # of the copy in the cache, which others may have deleted
            return True
        return True

    def open(self, base: int) -> SegmentFile:
        """Return an archived segment, fetched if need be. Raises Unavailable if the archive is out of reach."""
        with self._opening:
            found = self._open.get(base)
            if found is not None and not found.stale():
                self._open.move_to_end(base)
                return found
        for attempt in range(TRIES):
            self._fetch(base)
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

    def blob(self, base: int, offset: int, reference: tuple[int, int, int]) -> Iterator[bytes] | None:
        """Return the verified chunks of a huge event; None if it is not archived.

        One that is beside its file is read from the archive by ranges, and not cached.
        """
        part = self.part(base)
        if part is None:
            return None
        beside = next((blob for blob in part.blobs if blob.offset == offset), None)
        if beside is not None:
            return self._ranges(beside)
        path = self._cached.blobs(base) / file_of(offset, "blob")
        if self._place.disk.inode(path) is None:
            self._cache.drop(self._cached.segment(base))  # others made room, and were not done with it
            self._fetch(base)
        return StoredBlob(self._cached, path, reference).chunks()

    def after_fork(self) -> None:
        """Drop, in a forked child, what another thread of the parent may have been changing."""
        self._opening = threading.Lock()
        self._open.clear()

    def close(self) -> None:
        """Release the files; batches that were handed out stay valid."""
        with self._opening:
            self._open.clear()

    def _ranges(self, blob: ArchivedBlob) -> Iterator[bytes]:
        known, store = self.known(), self._archive().store
        assert known is not None
        key = file_key(known, blob.file)

        def fetch(start: int, length: int) -> memoryview:
            with reaching(store.url):
                found = store.get_range(key, start, length)
            if found is None:
                raise damaged("the data of a huge event is missing", f"{store.url}/{key}", length, start)
            return found

        return verified_chunks(fetch, blob.reference, f"{store.url}/{key}", self._place.limits.fetch_bytes)

    def _is_cached(self, base: int) -> bool:
        return self._cached.disk.inode(self._cached.segment(base)) is not None

    def _fetch(self, base: int) -> None:
        """Have a segment in the cache, with its index and blobs."""
        log, part = self._needed(base)

        def make(directory: Path) -> None:
            store = self._archive().store
            write_segment(store, log, part, msgspec.structs.replace(self._cached, path=directory))

        self._cache.get(self._cached.segment(base), part.log_bytes, make)

    def _needed(self, base: int) -> tuple[LocalManifest, HistoryFile]:
        known = self.known()
        part = self.part(base)
        if known is None or part is None:
            raise NotFound(f"{self._place}: segment {base} is not in the archive", code="segment_not_found", base=base)
        return known, part

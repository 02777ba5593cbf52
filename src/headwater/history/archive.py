"""The archive of a log directory: where it is, and the way to it.

`archive.json` in the directory names the archive, so that every process that opens it can read on there, and none
deletes what is not there yet. The store is opened when it is first needed, and shared by all logs of the directory.
Safe from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from headwater.bucket.object_store import ObjectStore
from headwater.directory import local_manifest
from headwater.directory.log_directory import LogDirectory
from headwater.disk.disk import Clock, Disk
from headwater.errors import Conflict, Corrupt, NotFound, Unsupported
from headwater.format import history as format
from headwater.format import settings
from headwater.format.arrow import pyarrow
from headwater.format.history import ArchiveAddress, HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history.cache import ArchiveCache
from headwater.history.files import reaching
from headwater.history.reader import ArchiveReader
from headwater.history.records import HistoryStore, url_of
from headwater.limits import Limits

SETTINGS_FILE = "archive.json"

Open = Callable[[str], ObjectStore]


class DirectoryArchive:
    """The archive of one log directory, if it has one."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, limits: Limits, open: Open | None = None) -> None:
        """`path` is the log directory. `open` opens a store by its URL."""
        self._path = path / SETTINGS_FILE
        self._disk = disk
        self._clock = clock
        self._open = open or partial(_open_store, disk, clock, limits)
        self._opened: tuple[str, HistoryStore] | None = None
        self._opening = threading.Lock()  # protects `_opened`
        self.cache = ArchiveCache(path / "archived", disk, clock, limits)

    def url(self) -> str | None:
        """Return where it is; None if the directory has none.

        Raises Corrupt if the file that names it is damaged, Unsupported if it names one of an earlier version.
        """
        try:
            return settings.decode(self._disk.read_file(self._path), ArchiveAddress).url
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Unsupported:
            raise format.old_form(str(self._path)) from None
        except Corrupt as error:
            raise Corrupt(
                f"{self._path}: {error.facts.get('reason') or error.message}",
                hint="set the archive again: headwater archive DATA URL",
                path=str(self._path),
                position=error.position,
                size=error.size,
            ) from None

    def open(self) -> HistoryStore:
        """Return the archive; raises NotFound if the directory has none, Unavailable if it is out of reach."""
        url = self.url()
        if url is None:
            raise NotFound(f"{self._path.parent} has no archive", code="no_archive", hint="headwater archive DATA URL")
        return self._at(url)

    def begin(self, address: str | None, uuid: str) -> HistoryStore:
        """Make a place the archive of this directory (its uuid), durably; None: the one it has.

        Raises Conflict if it is the archive of another directory, or the directory has another archive, Unsupported
        without pyarrow.
        """
        pyarrow()
        known = None
        with contextlib.suppress(Corrupt):  # it is named again: that is how it is repaired
            known = self.url()
        if address is None:
            return self.open()
        url = url_of(address)
        there = self._at(known).store.url if known is not None and known != url else None
        opened = self._at(url)
        if there is not None and there != opened.store.url:
            raise Conflict(
                f"the archive of {self._path.parent} is {known}, not {url}",
                hint="events deleted here may exist only in that archive; omit the URL to continue with it",
                code="other_archive",
                url=known,
            )
        with reaching(url):
            opened.begin(uuid)
        if known != url:
            # From here on retention keeps what is not archived, in every process. An address holds no credentials: the
            # stores refuse one that does.
            self._disk.replace(self._path, settings.encode(ArchiveAddress(form=format.FORM, url=url)))
        return opened

    def reader(self, place: LogDirectory) -> ArchiveReader:
        """Return the reader of what is archived of one log."""
        return ArchiveReader(place, self.open, self.cache)

    def covered(self, place: LogDirectory, topic: TopicRecord) -> HistoryManifest:
        """Return what the store says is archived of a log, after the directory has a durable copy.

        Only what this names may be dropped. Raises Unavailable if the store cannot be reached.
        """
        archive = self.open()
        with reaching(archive.store.url):
            found = archive.manifest(topic, place.partition)
        if found.parts:
            local_manifest.remember(place, found)
        return found

    def forget(self, uuid: bytes) -> None:
        """Drop what was fetched of a log that is deleted."""
        self.cache.forget(uuid)

    def close(self) -> None:
        """Release the store; it is opened again when it is needed."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()

    def after_fork(self) -> None:
        """Begin anew in a forked child, as connections are not inherited."""
        self._opening = threading.Lock()
        self._opened = None
        self.cache.after_fork()

    def _at(self, url: str) -> HistoryStore:
        with self._opening:
            if self._opened is None or self._opened[0] != url:
                with reaching(url):
                    self._opened = url, HistoryStore(self._open(url), self._clock)
            return self._opened[1]


def _open_store(disk: Disk, clock: Clock, limits: Limits, url: str) -> ObjectStore:
    from headwater.bucket.opening import open_store  # only a directory with an archive pays for it

    retry_s = min(limits.store_retry_s, limits.archive_retry_s)
    return open_store(url, clock=clock, disk=disk, limits=msgspec.structs.replace(limits, store_retry_s=retry_s))

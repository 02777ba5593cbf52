"""The archive of a log directory: where it is, and the way to it.

`archive.json` in the directory names the archive, so that every process that opens it can read on there, and none
deletes what is not there yet. The store is opened when it is first needed, and shared by all logs of the directory.
Safe from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from headwater.errors import Conflict, Corrupt, HeadwaterError, NotFound, Unavailable
from headwater.format import archive as format
from headwater.format import settings
from headwater.format.archive import Root, SegmentManifest
from headwater.format.names import directory_of
from headwater.format.settings import TopicRecord
from headwater.limits import Limits
from headwater.storage.archive.cache import ArchiveCache
from headwater.storage.bucket.probe import probe
from headwater.storage.bucket.records import Records, RecordVersion
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.disk import Clock, Disk

SETTINGS_FILE = "archive.json"

Open = Callable[[str], ObjectStore]


class ArchiveStore:
    """The records of an archive in its store: whose it is, its topics, the manifest of each log."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.roots = Records(store, clock, Root)
        self.topics = Records(store, clock, TopicRecord)
        self.manifests = Records(store, clock, SegmentManifest)

    def owner(self) -> str:
        """The uuid of the log directory whose archive it is; raises NotFound if it is none."""
        found = self.roots.read(format.ROOT)
        if found is None:
            raise NotFound(f"{self.store.url} is not an archive", hint="is the address right?", code="not_an_archive")
        return found.record.uuid

    def directories(self, topic: str | None = None) -> list[str]:
        """The names by which `topic_in` finds the topics, or the named one."""
        return [directory_of(topic)] if topic is not None else list(self.store.folders(f"{format.FOLDER}/"))

    def topic_in(self, directory: str) -> TopicRecord:
        """A topic as it was when it was archived last; raises NotFound, and Corrupt."""
        key = f"{format.FOLDER}/{directory}/topic"
        found = self.topics.read(key)
        if found is None:
            raise NotFound(f"the archive {self.store.url} has no topic {directory!r}", code="topic_not_found")
        if directory_of(found.record.name) != directory:
            where = f"{self.store.url}/{key}"
            raise Corrupt(f"{where} is of topic {found.record.name!r}", path=where, position=0, size=0)
        return found.record

    def manifest(self, topic: TopicRecord, partition: int, log: bytes) -> RecordVersion[SegmentManifest] | None:
        """What is archived of a log (its uuid); None if nothing is. Raises Corrupt if that cannot be."""
        key = format.manifest_key(topic.name, topic.uuid, partition)
        found = self.manifests.read(key)
        if found is not None:
            format.check(found.record, log, f"{self.store.url}/{key}")
        return found


class SegmentArchive:
    """The archive of one log directory, if it has one."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, limits: Limits, open: Open | None = None) -> None:
        """`path` is the log directory. `open` opens a store by its URL."""
        self._path = path / SETTINGS_FILE
        self._disk = disk
        self._clock = clock
        self._open = open or partial(_open_store, disk, clock, limits)
        self._opened: tuple[str, ArchiveStore] | None = None
        self._opening = threading.Lock()  # protects `_opened`
        self.cache = ArchiveCache(path / "archived", disk, clock, limits)

    def url(self) -> str | None:
        """Where it is; None if the directory has none. Raises Corrupt if the file that tells is damaged."""
        try:
            return settings.decode(self._disk.read_file(self._path), format.ArchiveAddress).url
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Corrupt as error:
            raise Corrupt(
                f"{self._path}: {error.facts.get('reason') or error.message}",
                hint="name the archive again: headwater archive DATA URL",
                path=str(self._path),
                position=error.position,
                size=error.size,
            ) from None

    def open(self) -> ArchiveStore:
        """The archive's records; raises NotFound if the directory has none, Unavailable if it is out of reach."""
        url = self.url()
        if url is None:
            raise NotFound(f"{self._path.parent} has no archive", code="no_archive", hint="headwater archive DATA URL")
        return self._at(url)

    def begin(self, url: str | None, uuid: str) -> ArchiveStore:
        """Make a place in an object store the archive of this directory (its uuid), durably; None: the one it has.

        Raises Conflict if it is the archive of another directory, or the directory has another archive.
        """
        known = None
        with contextlib.suppress(Corrupt):  # it is named again: that is how it is mended
            known = self.url()
        if url is None:
            return self.open()
        there = self._at(known).store.url if known is not None and known != url else None
        opened = self._at(url)
        if there is not None and there != opened.store.url:
            raise Conflict(
                f"the archive of {self._path.parent} is {known}, not {url}",
                hint="what it dropped is only there; leave out the URL to go on with it",
                code="other_archive",
                url=known,
            )
        with reaching(url):
            probe(opened.store, self._clock)
            found = opened.roots.read(format.ROOT)
            if found is None and opened.roots.create(format.ROOT, Root(uuid)) is None:
                found = opened.roots.read(format.ROOT)
        if found is not None and found.record.uuid != uuid:
            raise Conflict(
                f"{url} is the archive of another log directory, with the uuid {found.record.uuid}",
                hint="give each log directory a place of its own, as in s3://bucket/archive-of-this",
                code="archive_of_another",
                uuid=found.record.uuid,
            )
        if known != url:
            # From here on retention keeps what is not archived, in every process. An address holds no credentials: the
            # stores refuse one that does.
            self._disk.replace(self._path, settings.encode(format.ArchiveAddress(url=url)))
        return opened

    def close(self) -> None:
        """Let go of the store; it is opened again when it is needed."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].store.close()

    def after_fork(self) -> None:
        """In a forked child: begin anew, as connections are not inherited."""
        self._opening = threading.Lock()
        self._opened = None
        self.cache.after_fork()

    def _at(self, url: str) -> ArchiveStore:
        with self._opening:
            if self._opened is None or self._opened[0] != url:
                with reaching(url):
                    self._opened = url, ArchiveStore(self._open(url), self._clock)
            return self._opened[1]


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Tell whoever needs an archive that it, and not the log, is out of reach."""
    try:
        yield
    except Unavailable as error:
        if error.code == "archive_unavailable":
            raise
        raise _out_of_reach(url, error) from error


def _out_of_reach(url: str, error: HeadwaterError) -> Unavailable:
    return Unavailable(
        f"the archive {url} cannot be reached: {error.message}",
        hint="what is on the local disk can be read; is the network up, and are the credentials in the environment?",
        code="archive_unavailable",
        url=url,
    )


def _open_store(disk: Disk, clock: Clock, limits: Limits, url: str) -> ObjectStore:
    from headwater.storage.bucket.opening import open_store  # only who has an archive pays for it

    retry_s = min(limits.store_retry_s, limits.archive_retry_s)
    return open_store(url, clock=clock, disk=disk, limits=msgspec.structs.replace(limits, store_retry_s=retry_s))

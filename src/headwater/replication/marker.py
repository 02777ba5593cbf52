"""The state of a replica: `replica.json` and the lock of the replicator (docs/FORMAT.md, "Replica"), and its progress.

A directory is made a replica before it is a log, and stops being one when it is promoted, for good: a process that
opened a directory which is no replica need not check again. Progress is a small file for other processes, and never
truth. Safe from any thread and process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import msgspec

from headwater.directory.catalog import REPLICA_FILE, REPLICA_LOCK, REPLICA_STATUS, SETTINGS_FILE
from headwater.directory.local_log import LocalLog
from headwater.disk.disk import Clock, Disk, is_locked, locked
from headwater.errors import Conflict, HeadwaterError, Invalid, NotFound, Unavailable
from headwater.event import time_of
from headwater.format import settings
from headwater.format.losses import total
from headwater.format.replication import LogRequest, LogShare
from headwater.format.settings import Replica
from headwater.info import ReplicaInfo, ReplicaLog

LOCK_WAIT_S = 0.3  # `busy` takes the lock for a moment


class Marker:
    """The marker of one directory."""

    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock

    def read(self) -> Replica | None:
        """Return what the directory is a replica of, or was; None if it never was one. Raises Corrupt."""
        path = self._path / REPLICA_FILE
        try:
            return settings.decode(self._disk.read_file(path), Replica)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except HeadwaterError as error:
            raise type(error)(f"{path}: {error.message}", hint=error.hint, code=error.code, **error.facts) from None

    def follows(self) -> bool:
        """Return whether it is a replica that was not promoted."""
        found = self.read()
        return found is not None and found.promoted is None

    def refuse(self) -> None:
        """Raise Unavailable while it is a replica: what is done to it is done to its source."""
        found = self.read()
        if found is not None and found.promoted is None:
            raise Unavailable(
                f"{self._path} is a replica of {found.source}, and is read-only",
                hint=f"write to its source, or promote the replica: headwater promote {self._path}",
                code="replica",
                source=found.source,
            )

    def promote(self) -> Replica:
        """End being a replica, durably; returns what it was.

        Raises NotFound if it is none, Conflict if it was promoted before, Unavailable while somebody copies to it.
        """
        if self.read() is None:
            raise NotFound(f"{self._path} is not a replica", code="not_a_replica")
        with self.held():
            found = self.read()
            assert found is not None
            if found.promoted is not None:
                raise Conflict(f"{self._path} was promoted at {found.promoted}", code="promoted")
            if self._disk.inode(self._path / SETTINGS_FILE) is None:
                raise NotFound(f"{self._path} has no log yet", hint="replicate to it first", code="not_a_log")
            found = msgspec.structs.replace(found, promoted=self._now())
            self._write(found)
        return found

    def begin(self, source: str, source_uuid: str, make: Callable[[], bool]) -> Replica:
        """Make a new directory a replica, or find that it is one of this source. For who holds the lock; durable.

        `make` makes it a log, when it is marked, and tells whether it was none before. Raises Conflict for a log that
        is no replica, was promoted, or is one of another source.
        """
        found = self.read()
        if self._disk.inode(self._path / SETTINGS_FILE) is None:
            found = Replica(source=source, source_uuid=source_uuid, since=self._now())
            self._write(found)
            if not make():  # another process made it a log meanwhile, and may append to it already
                self._disk.unlink(self._path / REPLICA_FILE)
                raise self._not_a_replica()
        elif found is None:
            raise self._not_a_replica()
        elif found.promoted is not None:
            raise Conflict(
                f"{self._path} was promoted at {found.promoted}, and is no longer a replica",
                hint="replicate to a new directory",
                code="promoted",
            )
        elif found.source_uuid != source_uuid:
            raise Conflict(
                f"{self._path} is a replica of log {found.source_uuid}, but {source} is log {source_uuid}",
                hint="replicate another log to a new directory",
                code="other_source",
            )
        elif found.source != source:  # it has moved
            found = msgspec.structs.replace(found, source=source)
            self._write(found)
        return found

    def held(self) -> FileIO:
        """Take the lock of the replicator until the `with` of what is returned ends. Makes the directory.

        Raises Unavailable if another process has it.
        """
        path = self._path / REPLICA_LOCK
        try:
            with contextlib.suppress(FileExistsError):
                self._disk.make_root(self._path)
            return locked(path, self._disk, self._clock, LOCK_WAIT_S)
        except FileNotFoundError as error:
            raise NotFound(f"{self._path.parent} does not exist", hint="create that directory first") from error
        except NotADirectoryError as error:
            raise Invalid(f"{self._path} is not a directory", code="not_a_log") from error
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}", code="read_only") from error
        except Unavailable as error:
            raise Unavailable(
                f"another process is replicating to {self._path}",
                hint=f"stop it first: 'fuser {path}' shows it",
                code="replicating",
            ) from error

    def busy(self) -> bool:
        """Return whether another process is copying to it now."""
        try:
            fd = self._disk.open_read(self._path / REPLICA_LOCK)
        except OSError:
            return False
        return is_locked(fd, self._disk)

    def _not_a_replica(self) -> Conflict:
        return Conflict(
            f"{self._path} is a log, not a replica", hint="use a new directory for the replica", code="not_a_replica"
        )

    def _write(self, replica: Replica) -> None:
        try:
            self._disk.replace(self._path / REPLICA_FILE, settings.encode(replica))
        except OSError as error:
            raise Unavailable(f"{self._path / REPLICA_FILE} cannot be written: {error.strerror}") from error

    def _now(self) -> str:
        return time_of(self._clock.ticks()).isoformat()


TICKS_PER_S = 10_000_000

_decode = msgspec.json.Decoder(ReplicaInfo).decode


class Copy:
    """One log that is being copied. Belongs to the replicator's thread."""

    def __init__(self, log: LocalLog, uuid: str) -> None:
        self.log = log
        self.uuid = uuid  # of its topic
        self.trouble = ""  # why it is not copied any more
        self.failures = 0  # in a row, to have the data of a huge event
        self.source_end = 0
        self.bytes_left = 0
        self.lag_s = 0.0
        # What was copied before may have come from packed batches, which tell nothing of producers: those of the source
        # are asked for once all that may be packed is here.
        self.producers_due = True
        self.stamped_from = 0  # from this offset on, batches have their producers' stamps
        self.begin()

    def begin(self) -> None:
        """Go on from what is here, and have the source say whether it has the same."""
        self.next = self.log.end()
        self.unsure = True
        self.source_end = max(self.source_end, self.next)

    def wanted(self) -> LogRequest:
        """Return what to ask for next."""
        ticks = (self.log.state().last_ticks or None) if self.unsure else None
        return LogRequest(self.log.topic, self.uuid, self.log.partition, self.next, ticks)

    def told(self, share: LogShare) -> None:
        """Note what the source tells of itself."""
        self.unsure = False
        self.source_end = max(share.end, self.next)
        if self.next < share.segment:
            self.producers_due = True
            self.stamped_from = share.segment

    def info(self) -> ReplicaLog:
        end = self.log.end()
        lag = max(0, self.source_end - end)
        lag_bytes, lag_s = (self.bytes_left, self.lag_s) if lag else (0, 0.0)
        place = self.log.topic, self.log.partition
        return ReplicaLog(
            *place,
            end,
            max(self.source_end, end),
            lag,
            lag_bytes,
            round(lag_s, 3),
            self.trouble,
            total(self.log.known_lost()),
        )


def write_progress(path: Path, disk: Disk, info: ReplicaInfo) -> None:
    """Tell other processes how the replica is. A crash may leave what was told before, or nothing."""
    disk.replace(path / REPLICA_STATUS, msgspec.json.encode(info) + b"\n", sync=False)


def read_progress(path: Path, disk: Disk, clock: Clock) -> ReplicaInfo:
    """Return how the replica in a directory is, by its marker and what was last told; raises NotFound if it is none."""
    marker = Marker(path, disk, clock)
    found = marker.read()
    if found is None:
        raise NotFound(
            f"{path} is not a replica", hint="create one: headwater replicate SOURCE DATA", code="not_a_replica"
        )
    try:
        told = _decode(disk.read_file(path / REPLICA_STATUS))
    except (OSError, msgspec.MsgspecError):
        told = ReplicaInfo(found.source, found.source_uuid, found.since, "stopped", None, None, "", [])
    state = "promoted" if found.promoted is not None else told.state if marker.busy() else "stopped"
    return msgspec.structs.replace(told, source=found.source, since=found.since, promoted=found.promoted, state=state)


def now(clock: Clock) -> str:
    return time_of(clock.ticks()).isoformat()

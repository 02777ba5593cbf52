"""The topics of a log directory: made, found, listed and deleted, each atomically, by any process.

A topic is made complete under a hidden name and renamed; it is deleted by a rename to a hidden name. The rename is the
moment at which it is or is not there.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec

from headwater.directory import local_log as log
from headwater.directory.failures import FULL
from headwater.directory.log_directory import LogDirectory
from headwater.disk.disk import Clock, Disk, locked
from headwater.errors import Corrupt, HeadwaterError, Invalid, NotFound, Unavailable
from headwater.format import names, settings
from headwater.format.settings import LogSettings, Retention, TopicRecord, TopicSettings
from headwater.limits import Limits
from headwater.log.topic_rules import Rules, check_topic, checked_name, limits_of, not_found, same, with_retention

E = TypeVar("E", bound=HeadwaterError)

SETTINGS_FILE = "headwater.json"
TOPIC_FILE = "topic.json"
REPLICA_FILE = "replica.json"
REPLICA_LOCK = "replica.lock"
REPLICA_STATUS = "replica.status"


class DirectoryCatalog:
    """One log directory. Safe from any thread and process: it keeps no state of its own."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, limits: Limits) -> None:
        self.path = path
        self._topics = path / "topics"
        self._disk = disk
        self._clock = clock
        self._limits = limits
        self.guard: Callable[[], None] | None = None  # raises if no topic may be made: in a replica

    def exists(self) -> bool:
        """Return whether the directory is a log."""
        return self._disk.inode(self.path / SETTINGS_FILE) is not None

    def init(self) -> bool:
        """Make the directory a log; False if it is one. A directory with other things in it is refused."""
        if self.exists():
            return False
        try:
            with contextlib.suppress(FileExistsError):
                self._disk.make_root(self.path)
            self.refuse_strangers()
            if any(not name.startswith(".") for name in self._disk.names(self._topics)):
                raise _missing(self.path / SETTINGS_FILE, f"{self.path} holds topics")
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(self._topics)
            # Before the settings make it a log: else a power loss could leave a log without its directory of topics, or
            # take the whole directory away after the first events were acknowledged.
            self._disk.sync_directory(self.path)
            with contextlib.suppress(PermissionError):  # a parent that this user may pass through and not read
                self._disk.sync_directory(self.path.parent)
            return self._settle(LogSettings(uuid=str(self._random_uuid())))
        except FileNotFoundError as error:
            raise NotFound(f"{self.path.parent} does not exist", hint="create that directory first") from error
        except NotADirectoryError as error:
            raise Invalid(f"{self.path} is not a directory", code="not_a_log") from error
        except OSError as error:
            raise Unavailable(f"no log can be created in {self.path}: {error.strerror}", code="read_only") from error

    def refuse_strangers(self) -> None:
        """Raise Invalid for a directory that is no log and holds other things; one that is not there holds none."""
        ours = ("topics", REPLICA_FILE, REPLICA_LOCK, REPLICA_STATUS)
        strangers = [name for name in self._disk.names(self.path) if name not in ours and not name.endswith(".tmp")]
        if strangers and SETTINGS_FILE not in strangers:
            raise Invalid(
                f"{self.path} is not a log: it contains {min(strangers)!r}",
                hint="use a new or empty directory",
                code="not_a_log",
            )

    def open(self) -> LogSettings:
        """Check that the directory is a log that this version understands."""
        try:
            store = settings.decode(self._disk.read_file(self.path / SETTINGS_FILE), LogSettings)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(
                f"{self.path} is not a log", hint=f"create one: headwater init {self.path}", code="not_a_log"
            ) from error
        except PermissionError as error:
            raise Unavailable(f"this user has no permission to read {self.path}", code="forbidden") from error
        except HeadwaterError as error:
            raise _at(error, self.path / SETTINGS_FILE) from None
        if self._disk.inode(self._topics) is None:  # it was made before the settings
            raise _missing(self._topics, f"{self.path} is a log")
        return store

    def create(self, name: str, partitions: int, chosen: TopicSettings) -> bool:
        """Make a topic; False if it is there, with the same number of partitions. Durable when it returns."""
        check_topic(name, partitions, chosen, self._limits)
        directory = names.directory_of(name)
        if self._is_topic(self._topics / directory):
            same(self.find(name), partitions)
            try:
                self._disk.sync_directory(self._topics)  # the process that made it may have died before this
            except OSError as error:
                raise Unavailable(f"topic {name!r} cannot be made durable: {error.strerror}") from error
            return False
        if self.guard is not None:
            self.guard()
        topic = TopicRecord(name=name, uuid=str(self._random_uuid()), partitions=partitions, settings=chosen)
        return self.make(topic, [(0, 0)] * partitions)

    def make(self, topic: TopicRecord, starts: Sequence[tuple[int, int]]) -> bool:
        """Make a topic as it is described; False if one of its name is there. Durable when it returns.

        `starts` has the offset and the ticks at which each partition begins: 0, except in a replica.
        """
        name, directory = topic.name, names.directory_of(topic.name)
        hidden = self._topics / f".new-{topic.uuid}"
        try:
            with self._locked():
                self._sweep()
                if self._is_topic(self._topics / directory):
                    return same(self.find(name), topic.partitions)  # another process was first
                self._disk.mkdir(hidden)
                for partition, (base, previous_ticks) in enumerate(starts):
                    log.create(self._place(topic, partition, hidden), base, previous_ticks)
                self._disk.replace(hidden / TOPIC_FILE, settings.encode(topic))
                # The process that made this a log may have died before that was durable.
                self._disk.sync_directory(self.path)
                self._disk.rename(hidden, self._topics / directory)
                self._disk.sync_directory(self._topics)
        except OSError as error:
            raise _not_writable(f"topic {name!r} cannot be created", error) from error
        return True

    def change(self, name: str, changes: Retention) -> TopicRecord:
        """Change the retention of a topic, durably; returns what it is then. Raises NotFound, and Invalid."""
        return self.settle(name, lambda chosen: with_retention(chosen, changes))

    def settle(self, name: str, changed: Callable[[TopicSettings], TopicSettings]) -> TopicRecord:
        """Give a topic the settings that its own are changed to, durably; returns what it is then."""
        directory = self._topics / names.directory_of(checked_name(name, self._limits))
        try:
            with self._locked():
                topic = self.find(name)
                topic = msgspec.structs.replace(topic, settings=changed(topic.settings))
                check_topic(name, topic.partitions, topic.settings, self._limits)
                for left in self._disk.names(directory):
                    if left.endswith(".tmp"):  # of the process that died at this: the lock is ours
                        self._disk.unlink(directory / left)
                self._disk.replace(directory / TOPIC_FILE, settings.encode(topic))
        except OSError as error:
            self.find(name)  # raises, if it was deleted meanwhile
            raise _not_writable(f"topic {name!r} cannot be changed", error) from error
        return topic

    def find(self, name: str) -> TopicRecord:
        """Return the topic; raises NotFound."""
        path = self._topics / names.directory_of(checked_name(name, self._limits)) / TOPIC_FILE
        try:
            topic = settings.decode(self._disk.read_file(path), TopicRecord)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._lacks_settings(path.parent):
                raise _missing(path, f"the logs of topic {name!r} exist") from error
            raise not_found(name, self.path) from error
        except HeadwaterError as error:
            raise _at(error, path) from None
        if topic.name != name:
            raise Corrupt(f"{path} belongs to topic {topic.name!r}, not {name!r}", path=str(path), position=0, size=0)
        return topic

    def list(self) -> list[str]:
        """Return the names of all topics, sorted.

        Of those whose settings are damaged too: opening one raises the error.
        """
        topics, broken = self.survey()
        damaged = (names.topic_of(Path(error.path).parent.name) for error in broken)
        return sorted({*(topic.name for topic in topics), *(name for name in damaged if name is not None)})

    def survey(self, name: str | None = None) -> tuple[builtins.list[TopicRecord], builtins.list[HeadwaterError]]:
        """Return all topics, or the named one, sorted.

        And what is wrong with the settings of others. Raises NotFound.
        """
        directories = [names.directory_of(name)] if name is not None else sorted(self._disk.names(self._topics))
        topics: builtins.list[TopicRecord] = []
        broken: builtins.list[HeadwaterError] = []
        for directory in directories:
            path = self._topics / directory / TOPIC_FILE
            if directory.startswith("."):
                continue
            try:
                topics.append(settings.decode(self._disk.read_file(path), TopicRecord))
            except FileNotFoundError:
                if self._lacks_settings(path.parent):
                    broken.append(_missing(path, "the logs of the topic exist"))
                elif name is not None:
                    self.find(name)  # raises
            except NotADirectoryError:
                pass  # a file that does not belong here
            except HeadwaterError as error:
                broken.append(_at(error, path))
        return sorted(topics, key=lambda topic: topic.name), broken

    def place(self, topic: TopicRecord, partition: int) -> LogDirectory:
        """Return where a partition's log is."""
        return self._place(topic, partition, self._topics / names.directory_of(topic.name))

    def places(self, topics: Iterable[TopicRecord]) -> Iterator[LogDirectory]:
        """Yield where the logs of some topics are."""
        for topic in topics:
            for partition in range(topic.partitions):
                yield self.place(topic, partition)

    def remove(self, topic: TopicRecord) -> None:
        """Take a topic away. The caller holds its logs."""
        hidden = self._topics / f".deleted-{topic.uuid}"
        self._disk.remove_tree(hidden)  # a power loss may have left it under both names
        self._disk.rename(self._topics / names.directory_of(topic.name), hidden)
        self._disk.sync_directory(self._topics)
        self._disk.remove_tree(hidden)

    def _locked(self) -> AbstractContextManager[object]:
        """Take the lock under which topics are made; what is unfinished then was abandoned."""
        return locked(self._topics / ".lock", self._disk, self._clock, self._limits.lock_wait_s)

    def _sweep(self) -> None:
        """Remove what was left behind by processes that died making or deleting a topic."""
        for directory in self._disk.names(self._topics):
            if directory.startswith((".new-", ".deleted-")):
                self._disk.remove_tree(self._topics / directory)

    def _place(self, topic: TopicRecord, partition: int, directory: Path) -> LogDirectory:
        return LogDirectory(
            directory / str(partition),
            topic.name,
            partition,
            names.log_uuid(UUID(topic.uuid), partition),
            self._disk,
            self._clock,
            limits_of(topic, self._limits),
            topic.settings.compression == "zstd",
            Rules(topic.settings).bounded or self._disk.inode(self.path / REPLICA_FILE) is not None,
        )

    def _is_topic(self, directory: Path) -> bool:
        """Return whether a directory is one of a topic, though its settings may be missing."""
        there = self._disk.inode(directory / TOPIC_FILE) is not None
        return there or any(name.isdecimal() for name, is_directory in self._disk.entries(directory) if is_directory)

    def _lacks_settings(self, directory: Path) -> bool:
        """Tell whether the directory of a topic has logs and no settings.

        Looks at one and the same directory, which it holds open: a topic that another process deletes or makes again at
        this moment is not damaged.
        """
        try:
            fd = self._disk.open_directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            found = self._disk.names(fd)
            lacks = TOPIC_FILE not in found and any(map(str.isdecimal, found))
            return lacks and self._disk.inode(fd) == self._disk.inode(directory)
        finally:
            self._disk.close(fd)

    def _settle(self, store: LogSettings) -> bool:
        """Put the settings in place unless another process was first."""
        temporary, fd = self._disk.create_temporary(self.path / SETTINGS_FILE)
        try:
            self._disk.write(fd, settings.encode(store), 0)
            self._disk.fdatasync(fd)
            self._disk.link(temporary, self.path / SETTINGS_FILE)
        except FileExistsError:
            return False
        finally:
            self._disk.unlink(temporary)
            self._disk.release(fd)
        self._disk.sync_directory(self.path)
        return True

    def _random_uuid(self) -> UUID:
        return UUID(bytes=self._clock.random_bytes(16), version=4)


def _not_writable(what: str, error: OSError) -> Unavailable:
    return Unavailable(
        f"{what}: {error.strerror}",
        hint="is the directory writable, and is there space?",
        code="disk_full" if error.errno in FULL else "read_only",
    )


def _missing(path: Path, but: str) -> Corrupt:
    """Return the error for a file that is not there, though what depends on it is."""
    hint = "restore it from a backup"
    return Corrupt(f"{path} is missing, but {but}", hint=hint, path=str(path), position=0, size=0)


def _at(error: E, path: Path) -> E:
    """Return the same error, with the file that it is about."""
    facts = {**error.facts, "path": str(path)}
    message = f"{path}: {error.facts.get('reason') or error.message}"
    return type(error)(message, hint=error.hint, code=error.code, **facts)

"""The journal: transactions over several logs, written down and synced before any log is touched.

The entry is the moment at which a transaction is committed. Its bytes are final, so a recovery of a log writes them
again, blindly, at their places, and finds the transaction whole. The logs themselves need no sync of their own: an
entry is kept until they had one. Each process has journals of its own, which it holds locked while it lives.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import structs

from headwater.directory.cursor_file import Cursors
from headwater.directory.failures import FULL, unjournaled
from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import read_header
from headwater.disk.disk import Disk
from headwater.errors import Corrupt, HeadwaterError
from headwater.format import journal as format
from headwater.format.cursors import decode_slot
from headwater.format.journal import Entry, JournalMove, JournalShare
from headwater.format.producers import stamped_bytes
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import TailSlot

SUFFIX = ".journal"
CHECKPOINT_BYTES = 4 * 1024 * 1024  # after so many, the logs are synced and the journal starts over
RESERVE_BYTES = 256 * 1024


class JournalFile:
    """One journal, for one thread at a time."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.position = 0
        self.number = 1
        self.reserved_to = 0
        self.entries: list[Entry] = []  # since it was started over
        self.committed = False  # whether the transaction that took it has a whole, durable entry
        self.unfinished = False  # whether its last entry is not in all logs


class Journal:
    """The journals of one engine. Safe from any thread."""

    def __init__(self, path: Path, disk: Disk, checkpoint: Callable[[list[Entry]], None]) -> None:
        """`checkpoint` makes durable, in their own places, what entries have brought; raises if it cannot."""
        self._path = path
        self._disk = disk
        self._checkpoint = checkpoint
        self._mutex = threading.Lock()  # protects `_free` and `_closed`
        self._free: list[JournalFile] = []
        self._closed = False

    def take(self) -> JournalFile:
        """A journal for one transaction, until it is given back. The caller holds no lock of a log: it may checkpoint.

        Raises Unavailable if there can be none.
        """
        with self._mutex:
            file = self._free.pop() if self._free else None
        if file is not None and file.position >= CHECKPOINT_BYTES and not self._begin_anew(file):
            file = None
        if file is None:
            try:
                file = self._create()
            except OSError as error:
                raise unjournaled(error) from error
        file.committed = False
        return file

    def give_back(self, file: JournalFile) -> None:
        """Return a journal for other transactions, or leave it to the next process, if that must finish it."""
        with self._mutex:
            kept = not file.unfinished and not self._closed
            if kept:
                self._free.append(file)
        if not kept:  # it is needed until the logs are well again
            self._disk.release(file.fd)

    def write(self, file: JournalFile, entry: Entry, datas: list[bytes]) -> None:
        """Commit a transaction: durable when it returns, and `unfinished` until the caller says otherwise.

        If it raises, and the file is not `unfinished`, the entry is void for good.
        """
        data = format.encode(file.number, entry, datas)
        end = file.position + len(data)
        file.unfinished = True
        try:
            if end > file.reserved_to:
                file.reserved_to = end + RESERVE_BYTES
                self._disk.reserve(file.fd, file.position, file.reserved_to)
            self._disk.write_synced(file.fd, data, file.position)
        except BaseException:
            self._void(file)
            raise
        file.committed = True
        file.position = end
        file.number += 1
        file.entries.append(entry)

    def _void(self, file: JournalFile) -> None:
        """Take back an entry that may be whole on the disk or not: no recovery must ever find it."""
        try:
            self._disk.write(file.fd, bytes(format.HEADER_BYTES), file.position)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._disk.truncate(file.fd, file.position)  # a full disk has no space even for zeros
        file.reserved_to = 0
        self._disk.fdatasync(file.fd)
        file.unfinished = False

    def close(self) -> None:
        """Remove the journals, when the logs have all that is in them; those that are needed stay."""
        with self._mutex:
            self._closed = True
            free, self._free = self._free, []
        for file in free:
            try:
                self._checkpoint(file.entries)
                self._disk.unlink(file.path)
            except (OSError, HeadwaterError):
                pass  # the process that opens the log next finishes it
            finally:
                self._disk.release(file.fd)

    def after_fork(self) -> None:
        """In a forked child: the journals are the parent's."""
        self._mutex = threading.Lock()
        self._free = []

    def finish_abandoned(self) -> None:
        """Finish what processes that died, or gave up, have left. What cannot be finished, or is damaged, stays."""
        for name in self._disk.names(self._path):
            if name.endswith(SUFFIX):
                with contextlib.suppress(OSError, HeadwaterError):  # one log that is damaged must not close the others
                    self._finish(self._path / name)

    def abandoned(self) -> Iterator[tuple[Path, int]]:
        """Yield the journals that no living process holds, and how many transactions are in each."""
        disk = self._disk
        for name in sorted(disk.names(self._path)):
            path = self._path / name
            if name.endswith(SUFFIX):
                with contextlib.suppress(FileNotFoundError, Corrupt):  # finished meanwhile; or a directory
                    fd = disk.open_read(path)
                    try:
                        left = disk.hold(fd)
                    finally:
                        disk.release(fd)
                    if left:
                        yield path, sum(1 for _ in format.decode(disk.read_file(path)))

    def _finish(self, path: Path) -> None:
        fd = self._disk.open_write(path)
        try:
            if self._disk.hold(fd) and self._disk.inode(path) is not None:
                stored = self._disk.read_file(path)
                # What its writer did not live to see synced must not be half undone later. Written again and not only
                # synced: after a sync that failed, the system believes that it is on disk.
                self._disk.write(fd, stored, 0)
                self._disk.fdatasync(fd)
                self._checkpoint([entry for entry, _ in format.decode(stored)])
                self._disk.unlink(path)
        finally:
            self._disk.release(fd)

    def _begin_anew(self, file: JournalFile) -> bool:
        """Have all logs sync what is in a journal, which is then empty. If one cannot, it is left to who opens that."""
        try:
            self._checkpoint(file.entries)
        except BaseException as error:
            self._disk.release(file.fd)
            if not isinstance(error, HeadwaterError):
                raise
            return False
        file.position, file.entries = 0, []
        return True

    def _create(self) -> JournalFile:
        disk = self._disk
        if disk.inode(self._path) is None:
            with contextlib.suppress(FileExistsError):
                disk.mkdir(self._path)
        while True:
            path = self._path / f"{secrets.token_hex(8)}{SUFFIX}"
            fd = disk.create(path)
            if disk.hold(fd) and disk.inode(path) is not None:
                break
            disk.release(fd)  # a process that finishes abandoned ones came between making and locking it
        try:
            disk.sync_directory(self._path)
            disk.sync_directory(self._path.parent)  # its maker may have died before it was durable
        except BaseException:
            disk.release(fd)  # it is empty: the process that opens the directory next removes it
            raise
        return JournalFile(path, fd)


def entries(directory: Path, disk: Disk) -> Iterator[tuple[Path, Entry, list[bytes]]]:
    """Yield all whole entries of all journals, in the order of each, with the bytes of their shares."""
    for name in disk.names(directory):
        if name.endswith(SUFFIX):
            with contextlib.suppress(
                FileNotFoundError, Corrupt
            ):  # finished meanwhile; or a directory, which holds none
                for entry, datas in format.decode(disk.read_file(directory / name)):
                    yield directory / name, entry, datas


def redo(place: LogDirectory, known: TailSlot | None) -> TailSlot | None:
    """Write what transactions brought to the active segment of a log; returns what is known then.

    The caller holds the lock, and recovers the log. Bytes that are there already are written once more, as they are.
    """
    uuid = place.uuid.hex()
    found: list[tuple[JournalShare, bytes]] = []
    journals: set[Path] = set()
    for path, entry, datas in entries(place.journal, place.disk):
        mine = [(share, data) for share, data in zip(entry.shares, datas, strict=True) if share.uuid == uuid]
        if mine:
            found += mine
            journals.add(path)
    bases = place.segments() if found else []
    if not bases:
        return known
    header = read_header(place, bases[-1])
    found = [each for each in found if each[0].segment == bases[-1] and each[0].file_id == header.file_id]
    if header.packed or not found:
        return known
    _make_durable(place.disk, journals)
    fd = place.disk.open_write(place.segment(bases[-1]))
    try:
        for share, data in sorted(found, key=lambda each: each[0].offset):
            assert share.position >= HEADER_BYTES
            place.disk.write(fd, data, share.position)
            if known is not None and (known.segment, known.visible_offset) == (share.segment, share.offset):
                stamped = stamped_bytes(data)
                known = structs.replace(
                    known,
                    visible_offset=share.end_offset,
                    visible_position=share.position + share.size,
                    last_ticks=share.last_ticks,
                    producers_position=share.position + stamped if stamped else known.producers_position,
                )
    finally:
        place.disk.close(fd)
    return known


def restore(directory: Path, cursors: Cursors) -> None:
    """Put the slots that transactions decided on into a consumer's file, which the caller holds."""
    path, id = relative_path(cursors), cursors.id.hex()
    found: list[JournalMove] = []
    journals: set[Path] = set()
    for journal, entry, _ in entries(directory, cursors.disk):
        mine = [move for move in entry.moves if move.path == path and move.id == id]
        if mine:
            found += mine
            journals.add(journal)
    slots = [(move.partition, decode_slot(bytes.fromhex(move.slot))) for move in found]
    _make_durable(cursors.disk, journals)
    for partition, slot in sorted(((n, slot) for n, slot in slots if slot), key=lambda each: each[1].counter):
        cursors.restore(partition, slot)


def relative_path(cursors: Cursors) -> str:
    """Return where a consumer's file is, below the directory of all."""
    return f"{cursors.path.parent.name}/{cursors.path.name}"


def _make_durable(disk: Disk, journals: set[Path]) -> None:
    """Sync journals before what they say is done: a later power loss must not undo them for the other logs."""
    for path in sorted(journals):
        with contextlib.suppress(FileNotFoundError):  # finished, so durable, meanwhile
            fd = disk.open_read(path)
            try:
                disk.fdatasync(fd)
            finally:
                disk.close(fd)

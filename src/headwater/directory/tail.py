"""The mapped tail of a log: what is visible and durable, for all processes (docs/FORMAT.md, "Tail").

`publish` is for the thread that holds the log's lock. Everything else takes no lock: a slot that is being written has a
wrong checksum, and the other one is then the newest.
"""

from __future__ import annotations

from headwater.directory.log_directory import LogDirectory
from headwater.errors import Corrupt
from headwater.format import tail as format
from headwater.format.tail import TailSlot

_WAKE, _WAITING, _CONTENDED, _BUSY = (
    at // 4 for at in (format.WAKE_AT, format.WAITING_AT, format.CONTENDED_AT, format.BUSY_AT)
)
_SET, _CLEAR = b"\1\0\0\0", b"\0\0\0\0"
_SLOTS = slice(format.SLOTS_AT[0], format.SIZE)


class Tail:
    """One process's map of a tail file. It is unmapped with the last reference: a follower may still sleep on it."""

    def __init__(self, place: LogDirectory, mapped: memoryview, *, writable: bool) -> None:
        self.writable = writable
        self._disk = place.disk
        self._map = mapped
        self._slots = mapped[_SLOTS]
        self._words = mapped.cast("I")
        self._looked: tuple[bytes, TailSlot | None] = b"", None  # what was seen, and the slot in it; replaced as one

    @classmethod
    def open(cls, place: LogDirectory) -> Tail | None:
        """Map the tail; None if there is none, or it is not one. Read-only where it must not be written."""
        disk = place.disk
        writable = True
        try:
            try:
                fd = disk.open_write(place.tail)
            except FileNotFoundError:
                raise
            except OSError:
                fd, writable = disk.open_read(place.tail), False
        except (FileNotFoundError, Corrupt):
            return None
        try:
            if disk.size(fd) != format.SIZE:
                return None
            mapped = disk.map(fd, format.SIZE, write=writable)
        finally:
            disk.close(fd)
        return cls(place, mapped, writable=writable) if mapped[:8] == format.MAGIC else None

    @classmethod
    def create(cls, place: LogDirectory) -> Tail:
        """Put a new, empty tail in place. The caller holds the lock."""
        place.make_room(place.tail)
        place.disk.replace(place.tail, format.MAGIC + bytes(format.SIZE - 8), sync=False)
        tail = cls.open(place)
        assert tail is not None
        return tail

    def newest(self) -> TailSlot | None:
        """Return the newest valid slot, by a look at memory."""
        seen, slot = self._looked
        now = self._slots.tobytes()
        while now != seen:
            seen, slot = now, format.newest(self._map.tobytes())
            self._looked = seen, slot
            now = self._slots.tobytes() if slot is None else seen  # both slots may have changed under our eyes
        return slot

    def peek(self) -> TailSlot | None:
        """Return the newest valid slot, for other threads than the writer's: `disturbed` is not affected."""
        return format.newest(bytes(self._map))

    def disturbed(self) -> bool:
        """Return whether anybody has published since, or died in the middle of a commit. The caller holds the lock."""
        return self._slots.tobytes() != self._looked[0] or self._words[_BUSY] != 0

    def sound(self) -> bool:
        """Return whether no slot is damaged. One that is being written looks damaged for a moment."""
        return any(format.sound(self._map.tobytes()) for _ in range(100))

    def publish(self, slot: TailSlot) -> None:
        """Make a slot the newest. The caller holds the lock, and calls `wake` when it has released it."""
        self._disk.store(self._map, format.SLOTS_AT[slot.counter & 1], slot.encode())
        if self._words[_BUSY]:
            self._disk.store(self._map, format.BUSY_AT, _CLEAR)
        self._looked = self._slots.tobytes(), slot

    def begin(self) -> None:
        """Say that a commit is under way, until the next publication. The caller holds the lock."""
        self._disk.store(self._map, format.BUSY_AT, _SET)

    def busy(self) -> bool:
        """Return whether a process died in the middle of a commit. The caller holds the lock."""
        return self._words[_BUSY] != 0

    def heal(self) -> None:
        """Rewrite what no publication ever touches. The caller holds the lock."""
        reserved = slice(format.RESERVED_AT, format.SLOTS_AT[0])
        if any(self._map[reserved]):
            self._disk.store(self._map, reserved.start, bytes(reserved.stop - reserved.start))

    def wake(self) -> None:
        """Wake the followers, if there may be any.

        Called after the lock was released: that system call is the memory barrier between publishing and looking
        at `waiting`, without which a follower could go to sleep unseen.
        """
        if not self.writable:
            return
        words = self._words
        words[_WAKE] = (words[_WAKE] + 1) & 0xFFFFFFFF
        if words[_WAITING]:
            words[_WAITING] = 0
            self._disk.wake(self._map, format.WAKE_AT)

    def expect(self) -> tuple[memoryview, int, int]:
        """Return what to wait on. Call it, look for news once more, and only then wait."""
        if self.writable:
            self._words[_WAITING] = 1
        return self._map, format.WAKE_AT, self._words[_WAKE]

    def contend(self) -> None:
        """Say that a process waits for the lock."""
        self._words[_CONTENDED] = 1

    def contended(self) -> bool:
        """Return whether a process waits for the lock; asking clears it."""
        if self._words[_CONTENDED]:
            self._words[_CONTENDED] = 0
            return True
        return False

"""Objects that were read, kept in memory up to a bound: they never change. Safe from any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict


class ObjectCache:
    """Bytes by key and position, the ones that were used last."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._mutex = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Return bytes that are kept."""
        return self._size

    def get(self, key: str, position: int = 0) -> memoryview | None:
        with self._mutex:
            found = self._kept.get((key, position))
            if found is not None:
                self._kept.move_to_end((key, position))
            return found

    def put(self, key: str, data: memoryview, position: int = 0) -> None:
        """Keep some bytes; those that were not used for longest go. What is larger than a quarter of all is not."""
        if len(data) * 4 > self._bytes_max:
            return
        with self._mutex:
            before = self._kept.pop((key, position), None)
            self._size += len(data) - (0 if before is None else len(before))
            self._kept[key, position] = data
            while self._size > self._bytes_max:
                self._size -= len(self._kept.popitem(last=False)[1])

    def drop(self, key: str, position: int = 0) -> None:
        """Forget something that turned out to be another object's."""
        with self._mutex:
            before = self._kept.pop((key, position), None)
            self._size -= 0 if before is None else len(before)

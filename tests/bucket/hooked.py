"""A store that counts what it is asked, and stops or loses what a test wants it to, as a real one does rarely."""

from __future__ import annotations

import builtins
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from headwater.storage.bucket.store import Listed, Store, Stored

T = TypeVar("T")
Hook = Callable[[str, str], None]


def nothing(_method: str, _key: str) -> None:
    pass


class HookedStore:
    """As the store within it. `before` and `after` are called with the method and the key, in the caller's thread."""

    def __init__(self, store: Store) -> None:
        self.within = store
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.loses: Callable[[str, str], bool] = lambda _method, _key: False  # the answer, so that it is sent again
        self.asked: Counter[str] = Counter()
        self.at_once = 0  # the most requests that were under way together
        self._under_way = 0
        self._mutex = threading.Lock()

    @property
    def url(self) -> str:
        return self.within.url

    def get(self, key: str) -> Stored | None:
        return self._pass("get", key, lambda: self.within.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        return self._pass("get_range", key, lambda: self.within.get_range(key, start, length))

    def create(self, key: str, data: bytes) -> str | None:
        return self._pass("create", key, lambda: self.within.create(key, data))

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        return self._pass("swap", key, lambda: self.within.swap(key, data, version))

    def put(self, key: str, data: bytes) -> None:
        self._pass("put", key, lambda: self.within.put(key, data))

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        return self._pass("put_pieces", key, lambda: self.within.put_pieces(key, pieces))

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        self._pass("delete", " ".join(wanted), lambda: self.within.delete(wanted))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return self._pass("list", prefix, lambda: iter(sorted(self.within.list(prefix, after))))

    def folders(self, prefix: str) -> builtins.list[str]:
        return self._pass("folders", prefix, lambda: self.within.folders(prefix))

    def close(self) -> None:
        self.within.close()

    def _pass(self, method: str, key: str, ask: Callable[[], T]) -> T:
        with self._mutex:
            self.asked[method] += 1
            self._under_way += 1
            self.at_once = max(self.at_once, self._under_way)
        try:
            self.before(method, key)
            answer = ask()
            if self.loses(method, key):
                answer = ask()
            self.after(method, key)
            return answer
        finally:
            with self._mutex:
                self._under_way -= 1

"""A store that counts what it is asked, and stops or loses what a test wants it to, as a real one does rarely."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from headwater.bucket.object_store import ObjectStore
from tests.wrapped import WrappedStore

T = TypeVar("T")
Hook = Callable[[str, str], None]


def nothing(_method: str, _key: str) -> None:
    pass


class HookedStore(WrappedStore):
    """`before` and `after` are called with the method and the key of each request, in the caller's thread."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.loses: Callable[[str, str], bool] = lambda _method, _key: False  # the answer, so that it is sent again
        self.asked: Counter[str] = Counter()
        self.at_once = 0  # the most requests that were under way together
        self._under_way = 0
        self._mutex = threading.Lock()

    def calm(self) -> None:
        """Nothing stops, and nothing is lost any more."""
        self.before = self.after = nothing
        self.loses = lambda _method, _key: False

    def call(self, method: str, key: str, ask: Callable[[], T]) -> T:
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

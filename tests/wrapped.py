"""A store around another one, for tests that count, stop, lose or fail what is asked of it: they override `call`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from headwater.bucket.object_store import ObjectEntry, ObjectStore, StoredObject

T = TypeVar("T")


class WrappedStore:
    """As the store within it. Every request goes through `call`, with its method and key, in the caller's thread."""

    def __init__(self, store: ObjectStore) -> None:
        self.within = store

    def call(self, method: str, key: str, ask: Callable[[], T]) -> T:  # noqa: ARG002  # for those who override it
        return ask()

    @property
    def url(self) -> str:
        return self.within.url

    def get(self, key: str) -> StoredObject | None:
        return self.call("get", key, lambda: self.within.get(key))

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        return self.call("get_range", key, lambda: self.within.get_range(key, start, length))

    def create(self, key: str, data: bytes) -> str | None:
        return self.call("create", key, lambda: self.within.create(key, data))

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        return self.call("swap", key, lambda: self.within.swap(key, data, version))

    def put(self, key: str, data: bytes) -> None:
        self.call("put", key, lambda: self.within.put(key, data))

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        return self.call("put_pieces", key, lambda: self.within.put_pieces(key, pieces))

    def delete(self, keys: Iterable[str]) -> None:
        wanted = builtins.list(keys)
        self.call("delete", " ".join(wanted), lambda: self.within.delete(wanted))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        return self.call("list", prefix, lambda: iter(builtins.list(self.within.list(prefix, after))))

    def folders(self, prefix: str) -> builtins.list[str]:
        return self.call("folders", prefix, lambda: self.within.folders(prefix))

    def close(self) -> None:
        self.within.close()

"""The protocol of an object store: create what is absent, replace a known version, read, list, delete.

Keys are relative to the location that the store was opened at, with "/" between their parts; every store accepts the
same keys, so that what works in a directory works in a bucket. Every method is safe from any thread and any machine.
Failures that may pass are retried with growing, random pauses, up to a time limit; then Unavailable is raised.
`DirectoryStore` and `S3Store` are the two stores. `probe` refuses a store that ignores conditional writes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple, Protocol

from headwater.disk.disk import Clock
from headwater.errors import Invalid, TooLarge, Unsupported

KEY_BYTES_MAX = 1024  # of S3
PART_BYTES_MAX = 255  # of a file's name
RESERVED = ".headwater"
"""The first part of keys that a store uses itself, for its locks and for unfinished writes."""


class StoredObject(NamedTuple):
    """An object as it was read. `version` changes with every write, and is only for `swap`."""

    data: memoryview
    version: str


class ObjectEntry(NamedTuple):
    """An object in a list; `modified` is by the clock of the store."""

    key: str
    size: int
    modified: datetime


class ObjectStore(Protocol):
    """A place in an object store."""

    @property
    def url(self) -> str:
        """Return the address, for messages: it has no secrets."""

    def get(self, key: str) -> StoredObject | None:
        """Return the object; None if it is not there."""

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        """Return some bytes of an object, fewer where it ends; None if it is not there."""

    def create(self, key: str, data: bytes) -> str | None:
        """Put an object unless one exists, durably; return its version.

        None means that one exists, or was just being created: read it. It may be this very one, if a response was lost
        and the request was retried; so every object contains something that distinguishes it from all others.
        """

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version, durably; return the new version.

        None means that it has another one, or is gone: read it. As with `create`, it may be this very write.
        """

    def put(self, key: str, data: bytes) -> None:
        """Put or replace an object, durably: for keys that no other process uses, and for hints."""

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        """Put or replace an object of any size, in bounded memory; return its bytes. It appears when it is complete.

        If taking a piece raises, nothing is put.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, durably; those that do not exist are ignored."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield all objects whose keys begin with `prefix`; those of one folder in the order of their keys.

        With `after`, a key of the folder, only those after it.
        """

    def folders(self, prefix: str) -> builtins.list[str]:
        """Return the folders directly below `prefix`, which is empty or ends with "/": sorted, each once.

        With the keys `a/b/c` and `a/d`, `folders("a/")` is `["b"]`. A folder may still be listed for a while after its
        last object was deleted.
        """

    def close(self) -> None:
        """Release it. May be called twice."""


def checked_key(key: str) -> str:
    """Return the key; raises Invalid for one that would leave its location, or that not every store can hold."""
    _check(key, key.split("/"))
    return key


def checked_prefix(prefix: str) -> str:
    """Return the beginning of a key, which may be empty, and may end within a part or after a "/"; raises Invalid."""
    *parents, last = prefix.split("/")
    _check(prefix, [*parents, last] if last else parents)
    return prefix


def _check(key: str, parts: list[str]) -> None:
    if any(part in ("", ".", "..") for part in parts) or "\0" in key or parts[:1] == [RESERVED]:
        raise Invalid(
            f"{key!r} is not a valid object key", hint="parts between '/' must not be empty, '.' or '..'", key=key
        )
    try:
        size = len(key.encode())
        longest = max((len(part.encode()) for part in parts), default=0)
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{key!r} is not a valid object key", hint="it contains an unpaired surrogate", key=key
        ) from error
    if size > KEY_BYTES_MAX or longest > PART_BYTES_MAX:
        raise TooLarge(
            f"a key of {size} bytes is too long: {key[:64]!r}…",
            hint=f"the limit is {KEY_BYTES_MAX} bytes, and {PART_BYTES_MAX} for each part",
            limit=KEY_BYTES_MAX,
        )


PREFIX = "probe-"

_passed: set[str] = set()  # the addresses of stores that were found good by this process


def probe(store: ObjectStore, clock: Clock) -> None:
    """Try each condition at a key of its own, which is deleted after; raises Unsupported if one is ignored.

    Six requests, one after the other; none if this process has done so before. An answer that was lost on the way looks
    like a condition that was kept, so a good store is never refused, and a bad one passes only if just that is lost.
    Raises Unavailable, as any request does, if the store fails for too long; then nothing more is asked of it.
    """
    if store.url in _passed:
        return
    name = PREFIX + clock.random_bytes(16).hex()
    missing = PREFIX + clock.random_bytes(16).hex()
    try:
        _probe(store, name, missing)
    except Unsupported:
        store.delete([name, missing])
        raise
    store.delete([name, missing])
    _passed.add(store.url)


def _probe(store: ObjectStore, name: str, missing: str) -> None:
    first = store.create(name, b"first")
    if store.create(name, b"second") is not None:
        raise _ignored(store, "created an object that already existed (If-None-Match: *)")
    if first is None:  # the answer was lost
        found = store.get(name)
        first = "" if found is None else found.version
    store.swap(name, b"third", first)
    if store.swap(name, b"fourth", first) is not None:
        raise _ignored(store, "replaced an object that had changed meanwhile (If-Match)")
    if store.swap(missing, b"fifth", first) is not None:
        raise _ignored(store, "replaced an object that does not exist (If-Match)")


def _ignored(store: ObjectStore, what: str) -> Unsupported:
    return Unsupported(
        f"{store.url} {what}: with several writers, events would be lost",
        hint="use a store that enforces conditional writes, such as AWS S3, Cloudflare R2, MinIO or SeaweedFS",
        code="no_conditional_writes",
    )

"""Refuse a store that does not keep its conditions: some answer 200 to both of two writers, and one is lost.

Nothing in the store can stand for this: a bucket is copied from one server to another, and what was true there is
written in the copy. So it is tried out by every process, once for each address.
"""

from __future__ import annotations

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Clock
from headwater.errors import Unsupported

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

"""Refuse a store that does not keep its conditions: some answer 200 to both of two writers, and one is lost."""

from __future__ import annotations

from headwater.errors import Unsupported
from headwater.storage.bucket.store import Store
from headwater.storage.disk import Clock

PREFIX = "probe-"


def probe(store: Store, clock: Clock) -> None:
    """Try each condition at a key of its own, which is deleted after; raises Unsupported if one is ignored.

    Seven requests. An answer that was lost on the way looks like a condition that was kept, so a good store is never
    refused, and a bad one only passes if the answers to several requests were lost in the same way.
    """
    name = PREFIX + clock.random_bytes(16).hex()
    missing = PREFIX + clock.random_bytes(16).hex()
    try:
        _probe(store, name, missing)
    finally:
        store.delete([name, missing])


def _probe(store: Store, name: str, missing: str) -> None:
    store.create(name, b"first")
    if store.create(name, b"second") is not None:
        raise _ignored(store, "created an object that was there already (If-None-Match: *)")
    found = store.get(name)
    if found is None or bytes(found.data) != b"first":
        raise _ignored(store, "refused to create an object that is there, and changed it")
    store.swap(name, b"third", found.version)
    if store.swap(name, b"fourth", found.version) is not None:
        raise _ignored(store, "replaced an object that had changed meanwhile (If-Match)")
    if store.swap(missing, b"fifth", found.version) is not None:
        raise _ignored(store, "replaced an object that is not there (If-Match)")


def _ignored(store: Store, what: str) -> Unsupported:
    return Unsupported(
        f"{store.url} {what}: with several writers, events would be lost",
        hint="use a store that enforces conditional writes, such as AWS S3, Cloudflare R2, MinIO or SeaweedFS",
        code="no_conditional_writes",
    )

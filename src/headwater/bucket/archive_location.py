"""Where a log in a bucket was archived to last: a record in it, so that its readers as one table find the archive.

Nothing depends on it but that: it may be deleted. A log directory has its `archive.json` instead.
"""

from __future__ import annotations

from headwater.bucket.object_store import ObjectStore
from headwater.bucket.records import Records
from headwater.disk.disk import Clock
from headwater.errors import Conflict
from headwater.format.history import FORM, ArchiveAddress

KEY = "archived-to.json"


def read(store: ObjectStore, clock: Clock) -> str | None:
    """Return the address; None if there is none."""
    found = Records(store, clock, ArchiveAddress).read(KEY)
    return None if found is None else found.record.url


def write(store: ObjectStore, clock: Clock, url: str) -> None:
    """Store an address, durably. Raises Conflict if others change it all the time."""
    records, record = Records(store, clock, ArchiveAddress), ArchiveAddress(form=FORM, url=url)
    for _ in range(10):
        found = records.read(KEY)
        if found is not None and found.record.url == url:
            return
        done = records.create(KEY, record) if found is None else records.swap(KEY, record, found.version)
        if done is not None:
            return
    raise Conflict(f"{store.url}: other processes are changing its archive location at the same time")

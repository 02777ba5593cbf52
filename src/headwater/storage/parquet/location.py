"""Where a log was archived to as Parquet last: the log remembers it, so that whoever reads it as one table need not.

In a directory it is a settings file, in a bucket a record. Nothing depends on it but that: it may be deleted.
"""

from __future__ import annotations

from pathlib import Path

from headwater.errors import Conflict, Unavailable
from headwater.format import settings
from headwater.format.archive import ArchiveAddress
from headwater.storage.bucket.records import Records
from headwater.storage.bucket.store import ObjectStore
from headwater.storage.disk import Clock, Disk

NAME = "parquet.json"


def read(directory: Path, disk: Disk) -> str | None:
    """The address that a log directory remembers; None if it has none. Raises Corrupt if the file is damaged."""
    try:
        return settings.decode(disk.read_file(directory / NAME), ArchiveAddress).url
    except FileNotFoundError:
        return None


def write(directory: Path, url: str, disk: Disk) -> None:
    """Have a log directory remember an address, durably."""
    try:
        disk.replace(directory / NAME, settings.encode(ArchiveAddress(url=url)))
    except OSError as error:
        raise Unavailable(f"{directory / NAME} cannot be written: {error.strerror}", code="read_only") from error


def read_record(store: ObjectStore, clock: Clock) -> str | None:
    """The address that a bucket remembers; None if it has none."""
    found = Records(store, clock, ArchiveAddress).read(NAME)
    return None if found is None else found.record.url


def write_record(store: ObjectStore, clock: Clock, url: str) -> None:
    """Have a bucket remember an address, durably. Raises Conflict if others change it all the time."""
    records, record = Records(store, clock, ArchiveAddress), ArchiveAddress(url=url)
    for _ in range(10):
        found = records.read(NAME)
        if found is not None and found.record.url == url:
            return
        done = records.create(NAME, record) if found is None else records.swap(NAME, record, found.version)
        if done is not None:
            return
    raise Conflict(f"{store.url}: others change where it is archived to at the same time")

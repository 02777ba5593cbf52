"""What a log directory knows of its archive: `archived.json` beside each log, a copy of the log's manifest.

It is never ahead of the store, because it is written after the manifest was read or swapped there, and it never goes
back. No segment is dropped from the local disk before the copy that names it is durable, so readers find what was
dropped without a request to the store. Safe from any thread and process.
"""

from __future__ import annotations

import contextlib

from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import read_header
from headwater.disk.disk import locked
from headwater.errors import Corrupt, HeadwaterError, NotFound, Unsupported
from headwater.format import history as format
from headwater.format import settings
from headwater.format.history import HistoryManifest, LocalManifest


def read(place: LogDirectory) -> LocalManifest | None:
    """Return what is known to be archived of a log; None if nothing is. Raises Corrupt, Unsupported for an old one."""
    path = place.archived
    try:
        found = settings.decode(place.disk.read_file(path), LocalManifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Unsupported:
        raise format.old_form(str(path)) from None
    except HeadwaterError as error:
        facts = {"path": str(path), "position": 0, "size": 0}
        hint = "'headwater archive DATA' rebuilds it from the archive"
        reason = error.facts.get("reason") or error.message
        raise type(error)(f"{path}: {reason}", hint=hint, code=error.code, **facts) from None
    format.check(found, place.uuid, str(path))
    return found


def remember(place: LogDirectory, manifest: HistoryManifest) -> None:
    """Copy a manifest of the store, durably, unless more is known already."""
    with locked(place.path / "archived.lock", place.disk, place.clock, place.limits.lock_wait_s):
        try:
            known = read(place)
        except (Corrupt, Unsupported):
            known = None  # the store has all of it
        if known is None or known.end < manifest.end:
            copy = LocalManifest(
                topic=manifest.topic, uuid=manifest.uuid, partition=manifest.partition, parts=manifest.parts
            )
            place.make_room(place.archived)
            place.disk.replace(place.archived, settings.encode(copy))


def holds(place: LogDirectory, manifest: HistoryManifest, base: int, end: int) -> bool:
    """Tell whether a manifest has the events of a finished segment of this log; not if its header is damaged."""
    with contextlib.suppress(Corrupt):
        return is_of(place, manifest, base, end)
    return False


def is_of(place: LogDirectory, manifest: HistoryManifest, base: int, end: int) -> bool:
    """Tell whether a manifest has the events of a finished segment: the ticks around them never come twice."""
    try:
        ticks = read_header(place, base).previous_ticks, read_header(place, end).previous_ticks
    except NotFound:
        return True  # dropped meanwhile, by a process that has looked
    return manifest.has(base, end, *ticks)

"""What a log directory knows of its archive: `archived.json` beside each log, a copy of the log's manifest.

It is never ahead of the store, because it is written after the manifest was read or swapped there, and it never goes
back. No segment is dropped from the local disk before the copy that names it is durable, so readers find what was
dropped without a request to the store. Safe from any thread and process.
"""

from __future__ import annotations

from headwater.errors import Corrupt, HeadwaterError, Unsupported
from headwater.format import history as format
from headwater.format import settings
from headwater.format.history import HistoryManifest, LocalManifest
from headwater.storage.lockfile import locked
from headwater.storage.place import LogDirectory


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
        hint = "headwater archive DATA writes it again from the archive"
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

"""What a log directory remembers of its archive: `archived.json` beside each log, a copy of the log's manifest.

It is never ahead of the store, because it is written after the manifest was read or swapped there, and it never goes
back. No segment is dropped from the local disk before the note that names it is durable, so readers find what was
dropped without asking the store. Safe from any thread and process.
"""

from __future__ import annotations

from headwater.errors import Corrupt, HeadwaterError
from headwater.format import archive as format
from headwater.format import settings
from headwater.format.archive import ArchiveNote, SegmentManifest
from headwater.storage.lockfile import locked
from headwater.storage.place import LogDirectory


def read(place: LogDirectory) -> ArchiveNote | None:
    """What is known to be archived of a log; None if nothing is. Raises Corrupt."""
    path = place.archived
    try:
        note = settings.decode(place.disk.read_file(path), ArchiveNote)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except HeadwaterError as error:
        facts = {"path": str(path), "position": 0, "size": 0}
        hint = "headwater archive DATA makes it again from the archive"
        reason = error.facts.get("reason") or error.message
        raise type(error)(f"{path}: {reason}", hint=hint, code=error.code, **facts) from None
    format.check(note, place.uuid, str(path))
    return note


def remember(place: LogDirectory, manifest: SegmentManifest) -> None:
    """Note what a manifest in the store told, durably, unless more is noted already."""
    with locked(place.path / "archived.lock", place.disk, place.clock, place.limits.lock_wait_s):
        try:
            known = read(place)
        except Corrupt:
            known = None  # the store tells it anew
        if known is None or known.end < manifest.end:
            note = ArchiveNote(
                topic=manifest.topic, uuid=manifest.uuid, partition=manifest.partition, segments=manifest.segments
            )
            place.make_room(place.archived)
            place.disk.replace(place.archived, settings.encode(note))

"""What an archive of a log directory holds, and the names of its objects (docs/FORMAT.md, "Archive").

`ArchiveAddress` is the directory's `archive.json`. The other types are records in the object store; `ArchiveNote` is
the copy of a manifest that the directory keeps. An archive may come from elsewhere: `check` refuses a manifest whose
names could lead out of a directory.
"""

from __future__ import annotations

from bisect import bisect_left
from uuid import UUID

import msgspec

from headwater.errors import Corrupt
from headwater.format.names import directory_of, file_of, log_uuid, offset_of

FORMAT = 1
ROOT = "archive.json"  # the key of the record that says whose archive it is
FOLDER = "archive"
DIGEST_CHARACTERS = 16  # of the SHA-256 of a file, in the key of its object


class ArchiveAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`archive.json`: where the archive of a log directory is."""

    format: int = FORMAT
    url: str


class Root(msgspec.Struct, frozen=True):
    """Whose archive it is: the uuid of the log directory."""

    uuid: str


class ArchivedFile(msgspec.Struct, frozen=True):
    """One file of a segment, byte by byte as it is on disk. `name` is its path below the directory of its log."""

    name: str
    bytes: int
    sha256: str


class ArchivedSegment(msgspec.Struct, frozen=True):
    """A segment that is in the archive as a whole."""

    base: int
    end: int
    previous_ticks: int  # of the last event before it; 0 if there is none
    first_ticks: int
    last_ticks: int
    file_id: int  # of its .log
    files: list[ArchivedFile]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def file(self, name: str) -> ArchivedFile | None:
        """The file of this name; None if there is none."""
        return next((file for file in self.files if file.name == name), None)

    def same_events(self, other: ArchivedSegment) -> bool:
        """Whether both hold the same events; they may be packed differently. Ticks never come twice in a log."""
        return (self.base, self.end, self.previous_ticks, self.last_ticks) == (
            other.base,
            other.end,
            other.previous_ticks,
            other.last_ticks,
        )


class SegmentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The archived segments of one log, ascending, without a gap."""

    topic: str
    uuid: str  # of the topic
    partition: int
    segments: list[ArchivedSegment]

    @property
    def end(self) -> int:
        """Where the archived events end; -1 if there are none."""
        return self.segments[-1].end if self.segments else -1

    def at(self, base: int) -> ArchivedSegment | None:
        """The segment that begins with this offset; None if there is none."""
        number = bisect_left(self.segments, base, key=lambda segment: segment.base)
        found = self.segments[number] if number < len(self.segments) else None
        return found if found is not None and found.base == base else None


class ArchiveNote(SegmentManifest, frozen=True, kw_only=True):
    """`archived.json` beside a log: what its manifest told when it was looked at last, never more."""

    format: int = FORMAT


def topic_key(topic: str) -> str:
    """The record of a topic: a `Topic`, as in its topic.json."""
    return f"{FOLDER}/{directory_of(topic)}/topic"


def log_folder(topic: str, uuid: str, partition: int) -> str:
    return f"{FOLDER}/{directory_of(topic)}/{uuid}/{partition}"


def manifest_key(topic: str, uuid: str, partition: int) -> str:
    return f"{log_folder(topic, uuid, partition)}/manifest"


def file_key(manifest: SegmentManifest, file: ArchivedFile) -> str:
    """The object of a file. Its key tells its bytes, so that another file of the same name never takes its place."""
    stem, _, suffix = file.name.rpartition(".")
    digest = file.sha256[:DIGEST_CHARACTERS]
    return f"{log_folder(manifest.topic, manifest.uuid, manifest.partition)}/{stem}-{digest}.{suffix}"


def blob_name(base: int, offset: int) -> str:
    return f"{file_of(base, 'blobs')}/{file_of(offset, 'blob')}"


def check(manifest: SegmentManifest, log: bytes, where: str) -> None:
    """Raise Corrupt if a manifest is not of this log (its uuid), has a gap, or a file that a segment cannot have."""
    problem = "" if _log_of(manifest) == log else "it belongs to another log"
    for number, segment in enumerate(() if problem else manifest.segments):
        before = manifest.segments[number - 1] if number else None
        if segment.base < 0 or segment.end <= segment.base or (before is not None and before.end != segment.base):
            problem = f"segment {segment.base} does not follow the one before it"
        elif segment.first_ticks <= segment.previous_ticks or segment.last_ticks < segment.first_ticks:
            problem = f"the ticks of segment {segment.base} do not grow"
        elif segment.file(file_of(segment.base, "log")) is None:
            problem = f"segment {segment.base} has no log"
        elif not all(_is_file_of(segment, file) for file in segment.files):
            problem = f"segment {segment.base} has a file that it cannot have"
        if problem:
            break
    if problem:
        raise Corrupt(f"{where}: {problem}", path=where, position=0, size=0, reason=problem)


def _log_of(manifest: SegmentManifest) -> bytes | None:
    try:
        return log_uuid(UUID(manifest.uuid), manifest.partition)
    except (ValueError, OverflowError):
        return None


def _is_file_of(segment: ArchivedSegment, file: ArchivedFile) -> bool:
    folder, slash, name = file.name.partition("/")
    if not slash:
        own = file.name in (file_of(segment.base, "log"), file_of(segment.base, "index"))
        right = own or file.name == file_of(segment.end, "producers")
    else:
        offset = offset_of(name, "blob")
        right = folder == file_of(segment.base, "blobs") and offset is not None
        right = right and segment.base <= (offset or 0) < segment.end
    return right and file.bytes >= 0 and len(file.sha256) == 64 and file.sha256.isalnum()

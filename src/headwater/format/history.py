"""The records of an archive, the names of its objects and the columns of its files (docs/FORMAT.md, "Archive").

A file is in the archive when the manifest of its log names it, and only then. An archive may come from elsewhere:
`check` refuses a manifest that cannot be right. Columns need the `arrow` extra.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from headwater.errors import Corrupt, Unsupported
from headwater.format.arrow import pyarrow
from headwater.format.names import directory_of, log_uuid, node_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.format.settings import TopicRecord

FORMAT = 1
FORM = "parquet"  # distinguishes an archive from one of segments, which earlier versions wrote
RECORDS = "_headwater"  # the folder of all that is not a table: readers of tables pass over names that begin so
ROOT = f"{RECORDS}/archive.json"
OLD_ROOT = "archive.json"  # of an archive of segments
DIGEST_CHARACTERS = 16  # of the SHA-256 of a file, in the key of its object
SUFFIXES = ("parquet", "index", "producers", "blob")
COLUMNS = ("topic", "partition", "offset", "time", "id", "type", "key", "data", "meta", "content", "ticks")


@cache
def schema() -> pa.Schema:
    """Return the columns that every file has, in types that Spark, DuckDB and Polars read without a cast."""
    pa = pyarrow()
    types = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "data": pa.binary(),
        "ticks": pa.int64(),
    }
    return pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])  # type: ignore[no-any-return]  # lazy


class ArchiveAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`archive.json`: where the archive of a log directory is."""

    format: int = FORMAT
    form: str
    url: str


class ArchiveRoot(msgspec.Struct, frozen=True):
    """The record that makes a place an archive: the uuid of the log that it belongs to."""

    uuid: str
    form: str = ""


class ArchivedFile(msgspec.Struct, frozen=True):
    """One object of an archive, by its name, size and checksum."""

    name: str
    bytes: int
    sha256: str


class ArchivedBlob(msgspec.Struct, frozen=True):
    """A huge event whose data is too large for a column: a blob file of its own. In the table, its data is null."""

    offset: int
    reference: tuple[int, int, int]  # as in the batch: size, bytes of a chunk, checksum of the table of checksums
    file: ArchivedFile


class HistoryFile(msgspec.Struct, frozen=True):
    """One Parquet file: all events of one partition from `start` to before `end`, in order; and what is beside it.

    It has no row for an offset that is `lost`: a repair of the log gave it up. First and last ticks are those of rows,
    and 0 where there is none.
    """

    start: int
    end: int
    rows: int
    previous_ticks: int  # that the log had reached before it
    first_ticks: int
    last_ticks: int
    end_ticks: int  # that the log had reached at its end: more than the last ones if lost events follow them
    log_bytes: int  # of its batches in the log
    file: ArchivedFile
    index: ArchivedFile  # which keys and types are in it
    producers: ArchivedFile | None = None  # what was remembered of producers at `end`
    blobs: list[ArchivedBlob] = []
    lost: list[tuple[int, int]] = []

    @property
    def files(self) -> list[ArchivedFile]:
        """Return all of its objects, the Parquet file first."""
        beside = [self.index, *([self.producers] if self.producers is not None else [])]
        return [self.file, *beside, *(blob.file for blob in self.blobs)]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class HistoryManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one log, ascending, without a gap."""

    topic: str
    uuid: str  # of the topic
    partition: int
    parts: list[HistoryFile]

    @property
    def start(self) -> int:
        """Return where the archived events begin; -1 if there are none."""
        return self.parts[0].start if self.parts else -1

    @property
    def end(self) -> int:
        """Return where the archived events end; -1 if there are none."""
        return self.parts[-1].end if self.parts else -1

    @property
    def end_ticks(self) -> int:
        """Return the ticks that the log had reached at the end; 0 if nothing is archived."""
        return self.parts[-1].end_ticks if self.parts else 0

    @property
    def node(self) -> int:
        """Return what the ids of its events share."""
        return node_of(log_uuid(UUID(self.uuid), self.partition))

    def at(self, start: int) -> HistoryFile | None:
        """Return the file that begins with this offset; None if there is none."""
        number = bisect_left(self.parts, start, key=lambda part: part.start)
        found = self.parts[number] if number < len(self.parts) else None
        return found if found is not None and found.start == start else None

    def has(self, start: int, end: int, previous_ticks: int, end_ticks: int) -> bool:
        """Tell whether files hold these offsets, and no others, between the same ticks, which a log never has twice."""
        first = self.at(start)
        last = bisect_left(self.parts, end, key=lambda part: part.end)
        return (
            first is not None
            and first.previous_ticks == previous_ticks
            and last < len(self.parts)
            and (self.parts[last].end, self.parts[last].end_ticks) == (end, end_ticks)
        )


class LocalManifest(HistoryManifest, frozen=True, kw_only=True):
    """`archived.json` beside a log: what its manifest held when it was read last, never more."""

    format: int = FORMAT


def nothing(topic: TopicRecord, partition: int) -> HistoryManifest:
    """Return the manifest of a log of which nothing is archived."""
    return HistoryManifest(topic=topic.name, uuid=topic.uuid, partition=partition, parts=[])


def old_form(where: str) -> Unsupported:
    """Return the error for an archive, or what a directory knows of one, that an earlier version wrote."""
    return Unsupported(
        f"{where} belongs to an archive in an earlier format, which this version cannot read",
        hint="restore it with the version that wrote it, then archive the restored log to a new location",
        code="archive_form_old",
    )


def folder_of(topic: str) -> str:
    """Return the folder of a topic. It never begins with "_", which readers of tables pass over."""
    name = directory_of(topic)
    return f"%5F{name[1:]}" if name.startswith("_") else name


def topic_key(topic: str) -> str:
    return f"{RECORDS}/{folder_of(topic)}/topic.json"


def table_folder(topic: str, uuid: str) -> str:
    """Return the folder of the Parquet files of a topic."""
    return f"{folder_of(topic)}/{uuid}"


def record_folder(topic: str, uuid: str) -> str:
    """Return the folder of the manifests of a topic, and of what is beside its files."""
    return f"{RECORDS}/{table_folder(topic, uuid)}"


def manifest_key(topic: str, uuid: str, partition: int) -> str:
    return f"{record_folder(topic, uuid)}/{partition}.json"


def file_name(partition: int, start: int, end: int, suffix: str) -> str:
    return f"{partition}-{start:020d}-{end:020d}.{suffix}"


def blob_name(partition: int, offset: int) -> str:
    return file_name(partition, offset, offset + 1, "blob")


def file_key(log: HistoryManifest, file: ArchivedFile) -> str:
    """Return the key of an object. It names the bytes, so that another file of the same name never takes its place."""
    stem, _, suffix = file.name.rpartition(".")
    folder = table_folder if suffix == "parquet" else record_folder
    return f"{folder(log.topic, log.uuid)}/{stem}-{file.sha256[:DIGEST_CHARACTERS]}.{suffix}"


def place_in(key: str) -> tuple[int, int] | None:
    """Return the partition and the first offset that the key of a file names; None if it is no such key."""
    parts = key.rpartition("/")[2].split("-")
    right = len(parts) == 4 and all(part.isascii() and part.isdecimal() for part in parts[:2])
    return (int(parts[0]), int(parts[1])) if right and key.rpartition(".")[2] in SUFFIXES else None


def check(manifest: HistoryManifest, log: bytes, where: str) -> None:
    """Raise Corrupt if a manifest is not of this log (its uuid), has a gap, or a file that it cannot have."""
    problem = "" if _log_of(manifest) == log else "it belongs to another log"
    end, ticks = manifest.start, 0
    for part in () if problem else manifest.parts:
        if part.start < 0 or part.start != end or part.end <= part.start:
            problem = f"the file at offset {part.start} does not follow the one before it"
        elif part.rows != part.end - part.start - sum(hi - lo for lo, hi in part.lost) or part.rows < 0:
            problem = f"the file at offset {part.start} has a different number of rows than offsets"
        elif not _ticks_grow(part, ticks):
            problem = f"the ticks of the file at offset {part.start} do not increase"
        elif not all(_is_right(file, name) for file, name in _names(manifest.partition, part)):
            problem = f"the file at offset {part.start} has an invalid name"
        if problem:
            break
        end, ticks = part.end, part.end_ticks
    if problem:
        raise Corrupt(f"{where}: {problem}", path=where, position=0, size=0, reason=problem)


def _log_of(manifest: HistoryManifest) -> bytes | None:
    try:
        return log_uuid(UUID(manifest.uuid), manifest.partition)
    except (ValueError, OverflowError):
        return None


def _ticks_grow(part: HistoryFile, ticks: int) -> bool:
    if part.rows and not part.previous_ticks < part.first_ticks <= part.last_ticks <= part.end_ticks:
        return False
    return ticks <= part.previous_ticks < part.end_ticks


def _names(partition: int, part: HistoryFile) -> Iterator[tuple[ArchivedFile, str]]:
    """Yield the objects of a file, and the names that they must have."""
    for file, suffix in ((part.file, "parquet"), (part.index, "index"), (part.producers, "producers")):
        if file is not None:
            yield file, file_name(partition, part.start, part.end, suffix)
    for blob in part.blobs:
        inside = part.start <= blob.offset < part.end
        yield blob.file, blob_name(partition, blob.offset) if inside else ""


def _is_right(file: ArchivedFile, name: str) -> bool:
    digest = len(file.sha256) == 64 and file.sha256.isascii() and file.sha256.isalnum()
    return file.name == name and file.bytes >= 0 and digest

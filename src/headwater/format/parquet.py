"""What an archive of Parquet files holds, and the names of its objects (docs/FORMAT.md, "Parquet archive").

A file is in the archive when the manifest of its log names it, and only then. An archive may come from elsewhere:
`check` refuses a manifest that cannot be one. Needs the `arrow` extra where columns are asked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from headwater.errors import Corrupt
from headwater.format.archive import DIGEST_CHARACTERS, ArchivedFile
from headwater.format.arrow import pyarrow
from headwater.format.names import directory_of, log_uuid, node_of
from headwater.format.settings import TopicRecord

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "parquet:"  # of an address
RECORDS = "_headwater"  # the folder of all that is not a table: Spark passes over names that begin so
ROOT = f"{RECORDS}/archive.json"
COLUMNS = ("topic", "partition", "offset", "time", "id", "type", "key", "data", "meta", "content", "ticks")


@cache
def schema() -> pa.Schema:
    """The columns of every file, in the types that Spark, DuckDB and Polars have: none needs a cast."""
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


class ParquetBlob(msgspec.Struct, frozen=True):
    """A huge event whose data is too large for a column, as an object of its own. In the table, its data is null."""

    offset: int
    file: ArchivedFile


class ParquetFile(msgspec.Struct, frozen=True):
    """One Parquet file: all events of one partition from `start` to before `end`, in order.

    It has fewer rows than offsets where a repair of the log gave up damaged events. Ticks are 0 where there is no row.
    """

    start: int
    end: int
    rows: int
    first_ticks: int
    last_ticks: int
    file: ArchivedFile
    blobs: list[ParquetBlob] = []

    @property
    def files(self) -> list[ArchivedFile]:
        """The Parquet file, then those of huge events."""
        return [self.file, *(blob.file for blob in self.blobs)]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class ParquetManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one log, ascending, without a gap."""

    topic: str
    uuid: str  # of the topic
    partition: int
    parts: list[ParquetFile]

    @property
    def start(self) -> int:
        """Where the archived events begin; -1 if there are none."""
        return self.parts[0].start if self.parts else -1

    @property
    def end(self) -> int:
        """Where the archived events end; -1 if there are none."""
        return self.parts[-1].end if self.parts else -1

    @property
    def last_ticks(self) -> int:
        """The ticks of the last event in it; 0 if there is none."""
        return next((part.last_ticks for part in reversed(self.parts) if part.rows), 0)

    @property
    def node(self) -> int:
        """What the ids of its events share."""
        return node_of(log_uuid(UUID(self.uuid), self.partition))


def nothing(topic: TopicRecord, partition: int) -> ParquetManifest:
    """The manifest of a log of which nothing is archived."""
    return ParquetManifest(topic=topic.name, uuid=topic.uuid, partition=partition, parts=[])


def folder_of(topic: str) -> str:
    """The folder of a topic's files. It never begins with "_", which readers of tables pass over."""
    name = directory_of(topic)
    return f"%5F{name[1:]}" if name.startswith("_") else name


def topic_key(topic: str) -> str:
    return f"{RECORDS}/{folder_of(topic)}/topic.json"


def manifest_key(topic: str, partition: int) -> str:
    return f"{RECORDS}/{folder_of(topic)}/{partition}.json"


def part_name(partition: int, start: int, end: int) -> str:
    return f"{partition}-{start:020d}-{end:020d}.parquet"


def blob_name(partition: int, offset: int) -> str:
    return f"{partition}-{offset:020d}.blob"


def file_key(topic: str, file: ArchivedFile) -> str:
    """The object of a file. Its key tells its bytes, so that another of the same name never takes its place."""
    stem, _, suffix = file.name.rpartition(".")
    folder = folder_of(topic) if suffix == "parquet" else f"{RECORDS}/{folder_of(topic)}"
    return f"{folder}/{stem}-{file.sha256[:DIGEST_CHARACTERS]}.{suffix}"


def place_in(key: str) -> tuple[int, int] | None:
    """The partition and the first offset that the key of a file or a blob tells; None if it is no such key."""
    parts = key.rpartition("/")[2].split("-")
    numbers = parts[:2]
    right = len(parts) in (3, 4) and all(part.isascii() and part.isdecimal() for part in numbers)
    return (int(numbers[0]), int(numbers[1])) if right and key.endswith((".parquet", ".blob")) else None


def check(manifest: ParquetManifest, topic: TopicRecord, partition: int, where: str) -> None:
    """Raise Corrupt if a manifest is not of this log, has a gap, or a file that it cannot have."""
    problem = ""
    if (manifest.topic, manifest.uuid, manifest.partition) != (topic.name, topic.uuid, partition):
        problem = "it belongs to another log"
    end, ticks = manifest.start, 0
    for part in () if problem else manifest.parts:
        if part.start < 0 or part.start != end or part.end <= part.start:
            problem = f"the file at offset {part.start} does not follow the one before it"
        elif not 0 <= part.rows <= part.end - part.start:
            problem = f"the file at offset {part.start} has more rows than offsets"
        elif part.rows and not ticks < part.first_ticks <= part.last_ticks:
            problem = f"the ticks of the file at offset {part.start} do not grow"
        elif not all(_is_right(file, name) for file, name in _files(partition, part)):
            problem = f"the file at offset {part.start} has a name that it cannot have"
        if problem:
            break
        end, ticks = part.end, part.last_ticks or ticks
    if problem:
        raise Corrupt(f"{where}: {problem}", path=where, position=0, size=0, reason=problem)


def _files(partition: int, part: ParquetFile) -> list[tuple[ArchivedFile, str]]:
    """The files of a part, and the names that they must have."""
    blobs = [(blob.file, blob_name(partition, blob.offset)) for blob in part.blobs]
    return [(part.file, part_name(partition, part.start, part.end)), *blobs]


def _is_right(file: ArchivedFile, name: str) -> bool:
    return file.name == name and file.bytes >= 0 and len(file.sha256) == 64 and file.sha256.isalnum()

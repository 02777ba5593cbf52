"""Archives as tables, made by what Spark's tasks do, one after the other in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import headwater
from headwater.format.history import HistoryManifest, file_key
from headwater.format.settings import TopicRecord
from headwater.history.records import HistoryStore, open_history
from headwater.info import ArchivedRange
from headwater.spark import archiving

COLUMNS = ("topic", "partition", "offset", "time", "id", "type", "key", "data", "meta", "content", "ticks")

Run = Callable[[Any, Any, Iterable[Any]], Iterable[Any]]


def run_here(_spark: Any, places: Any, tasks: Iterable[Any]) -> Iterable[Any]:
    return (archiving.write((places, task)) for task in tasks)


def archive(data: Path | str, target: Path | str, *, run: Run = run_here, **options: Any) -> list[ArchivedRange]:
    """Archive as on Spark, without it. Of a bucket, files are of about 400 bytes of the log by default."""
    no_spark: Any = None
    with patch.object(archiving, "_run_all", run):
        found: list[ArchivedRange] = archiving.archive(
            no_spark, str(data), str(target), **({"file_bytes": 400} | options)
        )
    return found


def opened(target: Path) -> HistoryStore:
    return open_history(str(target))


def manifests(target: Path, topic: str = "t") -> list[HistoryManifest]:
    store = opened(target)
    [found] = store.topics(topic)
    return [store.manifest(found, partition) for partition in range(found.partitions)]


def described(hw: headwater.Store, topic: str = "t") -> TopicRecord:
    found = hw.directory._catalogue.find(topic)
    assert isinstance(found, TopicRecord)
    return found


def files(target: Path, topic: str = "t") -> list[Path]:
    """The files that manifests name, in order."""
    return [target / file_key(each, part.file) for each in manifests(target, topic) for part in each.parts]


def archived(target: Path, topic: str = "t") -> pa.Table:
    """All that manifests name, as one table."""
    return pa.concat_tables([pq.read_table(file) for file in files(target, topic)])


def logged(hw: headwater.Store, topic: str = "t") -> pa.Table:
    """The same columns of the log itself, event by event, partition after partition."""
    events = sorted(hw.read(topic), key=lambda event: (event.partition, event.offset))
    rows = [
        (
            event.topic,
            event.partition,
            event.offset,
            event.time,
            str(event.id),
            event.type,
            event.key,
            b"".join(event.chunks()),
            None if event.raw_meta is None else event.raw_meta.decode(),
            event.content,
            event.ticks,
        )
        for event in events
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in COLUMNS]
    types: dict[str, Any] = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "ticks": pa.int64(),
    }
    types |= {"key": pa.binary(), "data": pa.binary()}
    arrays = [pa.array(column, types.get(name, pa.string())) for name, column in zip(COLUMNS, columns, strict=True)]
    return pa.Table.from_arrays(arrays, names=list(COLUMNS))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record of an archive, with a checksum that is right."""
    from crc32c import crc32c

    record = json.loads(path.read_bytes())
    del record["crc"]
    change(record)
    plain = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    path.write_text(json.dumps(record | {"crc": f"{crc32c(plain):08x}"}))

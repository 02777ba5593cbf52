"""One table over the archive and the live log: `headwater.spark.table(spark, "data", "orders")`.

What a manifest names is read by Spark's own Parquet reader, what comes behind it by the source, joined at the exact
offset of each partition. Files of an archive never change and are never deleted, and the source begins where the
manifest ended when it was read: so the table is exact also while others archive, append, or have retention delete.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.address import absolute
from headwater.errors import NotFound
from headwater.format import history as format
from headwater.format.history import HistoryFile, HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history import files
from headwater.history.records import open_history, url_of
from headwater.spark import archiving
from headwater.spark.reading.scan import SCHEMA
from headwater.spark.session import open_place
from headwater.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headwater.store import Store


DIRECTORY = "objects://"
_GLOB = str.maketrans({char: f"\\{char}" for char in "\\*?[]{}"})


def table(spark: SparkSession, address: str, topic: str, archive: str | None = None) -> DataFrame:
    """Return all events of a topic, archived and live, with the columns of the source, each exactly once.

    `archive` is the address of its archive; left out, it is the one that the log remembers, and if it has none, the log
    alone is the table. What retention has deleted in the log is in it if it was archived. Raises NotFound for a missing
    topic, and if retention has deleted what was not archived yet; Conflict if the archive is not that of this log.
    """
    address = absolute(address)
    with open_place(address) as hw:
        hw.describe(topic)  # raises if it is not there
        url = url_of(archive) if archive is not None else hw.archive_url
        manifests = [] if url is None else _manifests(hw, url, topic, needed=archive is not None)
    live = spark.read.format("headwater").option("topic", topic)
    ends = {str(each.partition): each.end for each in manifests}
    if url is None or not ends:
        return live.load(address)
    return _archived(spark, url, manifests).union(live.option("start", json.dumps(ends)).load(address))


def _manifests(hw: Store, url: str, name: str, *, needed: bool) -> list[HistoryManifest]:
    """Return the manifests of partitions that have archived events."""
    with contextlib.closing(open_history(url)) as store:
        try:
            store.owner()
            [topic] = store.topics(name)
        except NotFound:
            if needed:
                raise
            return []
        if not needed and topic.uuid != hw.describe(name).uuid:
            return []  # of a topic that was deleted and made again, nothing is archived yet
        return [manifest for manifest in archiving.look_at_archive(hw, store, topic)[1] if manifest.parts]


def _archived(spark: SparkSession, url: str, manifests: list[HistoryManifest]) -> DataFrame:
    if url.startswith(DIRECTORY):
        root = url.removeprefix(DIRECTORY).rstrip("/")
        keys = [format.file_key(each, part.file) for each in manifests for part in each.parts]
        return spark.read.schema(SCHEMA).parquet(*(f"file://{root}/{key}".translate(_GLOB) for key in keys))
    return _in_workers(spark, url, manifests)


def _in_workers(spark: SparkSession, url: str, manifests: list[HistoryManifest]) -> DataFrame:
    """Return the archive of a bucket, which Spark cannot read itself: tasks fetch files and return Arrow."""
    works = [msgspec.json.encode((_topic(each), each.partition, part)) for each in manifests for part in each.parts]
    rows = spark.sparkContext.parallelize([(bytearray(work),) for work in works], len(works))
    frame = spark.createDataFrame(rows, "work binary")
    return frame.mapInArrow(partial(_rows, url, [field.split()[0] for field in SCHEMA.split(",")]), SCHEMA)


def _topic(log: HistoryManifest) -> TopicRecord:
    return TopicRecord(name=log.topic, uuid=log.uuid, partitions=log.partition + 1)


def _rows(url: str, columns: list[str], works: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the rows of files, each fetched and verified first; runs in a worker."""
    with contextlib.closing(open_history(url)) as store:
        for batch in works:
            for work in filter(None, batch.column(0).to_pylist()):
                topic, partition, part = msgspec.json.decode(work, type=tuple[TopicRecord, int, HistoryFile])
                log = format.nothing(topic, partition)
                where = files.where_is(store.store, log, part.file)
                with files.fetched(store.store, log, part.file) as path:
                    for rows in files.rows(path, part, where):
                        yield rows.select(columns)

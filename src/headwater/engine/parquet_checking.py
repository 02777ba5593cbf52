"""`check` over an archive of Parquet files: of one topic, or of all. It needs no log."""

from __future__ import annotations

from headwater.engine.archiving import Progress, advancing
from headwater.engine.checking import CheckReport
from headwater.errors import Corrupt
from headwater.format import parquet as format
from headwater.format.parquet import ParquetManifest
from headwater.format.settings import TopicRecord
from headwater.limits import DEFAULTS, Limits
from headwater.storage.archive.archive import reaching
from headwater.storage.check import Counts, Finding
from headwater.storage.parquet.archive import ParquetStore, open_parquet
from headwater.storage.parquet.check import check


def check_parquet(
    address: str, topic: str | None = None, *, limits: Limits = DEFAULTS, progress: Progress | None = None
) -> CheckReport:
    """Fetch and verify every file of the archive at `parquet:…`; raises NotFound if there is none, Unavailable.

    In the report, `segments` are files, and `batches` what of them was looked at at a time.
    """
    archive = open_parquet(address, limits=limits)
    report, counts = CheckReport(), Counts()
    try:
        with reaching(archive.store.url):
            archive.owner()
            topics = [archive.topic(topic)] if topic is not None else archive.topics()
            logs = [(each, _manifests(archive, each, report)) for each in topics]
            parts = [part for _, manifests in logs for manifest in manifests for part in manifest.parts]
            advance = advancing(sum(part.bytes for part in parts), progress)
            for each, manifests in logs:
                report.topics += 1
                report.partitions += each.partitions
                if len(manifests) == each.partitions:
                    report.findings += check(archive, each, manifests, counts, advance)
    finally:
        archive.close()
    report.add(counts)
    return report


def _manifests(archive: ParquetStore, topic: TopicRecord, report: CheckReport) -> list[ParquetManifest]:
    """The manifests of a topic that can be read; what is wrong with the others goes into the report."""
    found: list[ParquetManifest] = []
    for partition in range(topic.partitions):
        try:
            found.append(archive.manifest(topic, partition))
        except Corrupt as error:
            where = f"{archive.store.url}/{format.manifest_key(topic.name, partition)}"
            report.findings.append(
                Finding(topic.name, partition, where, 0, 0, error.facts.get("reason", error.message))
            )
    return found

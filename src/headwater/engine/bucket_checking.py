"""`check` over the topics of a bucket."""

from __future__ import annotations

from headwater.engine.bucket_catalogue import BucketCatalog
from headwater.engine.checking import CheckReport
from headwater.history.archiver import Progress, advancing
from headwater.storage.bucket.check import check, size_of
from headwater.storage.check import Counts, Finding


def check_bucket(catalogue: BucketCatalog, name: str | None, progress: Progress | None) -> CheckReport:
    """Verify one topic, or all."""
    report, counts = CheckReport(), Counts()
    topics, broken = catalogue.survey(name)
    for error in broken:
        path = str(error.facts.get("path") or catalogue.url)
        report.findings.append(Finding(path, -1, path, 0, int(error.facts.get("size") or 0), error.message))
    places = [catalogue.place(topic, partition) for topic in topics for partition in range(topic.partitions)]
    advance = advancing(sum(map(size_of, places)), progress)
    for place in places:
        report.findings += check(place, counts, advance)
    report.topics, report.partitions = len(topics), len(places)
    report.add(counts)
    return report

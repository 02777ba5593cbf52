"""`check`, `repair` and `reindex` over the topics of a log directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headwater.directory import check as log_check
from headwater.directory import sealer
from headwater.directory.catalog import DirectoryCatalog
from headwater.directory.journal import Journal
from headwater.directory.log_directory import LogDirectory
from headwater.directory.repair import Action
from headwater.errors import Corrupt, HeadwaterError, Unsupported
from headwater.format.names import topic_of
from headwater.format.settings import TopicRecord
from headwater.log.check_report import CheckReport, Counts, Finding, Progress, advancing


def check(catalogue: DirectoryCatalog, journal: Journal, name: str | None, progress: Progress | None) -> CheckReport:
    """Verify one topic, or all."""
    report = CheckReport()
    counts = Counts()
    topics, broken = catalogue.survey(name)
    report.findings += [_of_settings(error) for error in broken]
    places = list(_places(catalogue, topics))
    advance = advancing(sum(_segment_bytes(place) for place in places), progress)
    for place in places:
        report.findings += log_check.check(place, counts, advance)
    if name is None:
        report.findings += _left_behind(journal)
    report.topics, report.partitions = len(topics), len(places)
    report.add(counts)
    return report


def reindex(places: list[LogDirectory], progress: Progress | None) -> int:
    """Make the index of every finished segment again; returns how many were made."""
    finished = [(place, base) for place in places for base in place.segments()[:-1]]
    sizes = [place.disk.file_size(place.segment(base)) for place, base in finished]
    advance = advancing(sum(sizes), progress)
    made = 0
    for (place, base), size in zip(finished, sizes, strict=True):
        made += sealer.reindex(place, base)
        advance(size)
    return made


def _left_behind(journal: Journal) -> Iterator[Finding]:
    """Journals of processes that are gone, which opening the directory could not finish."""
    for path, count in journal.abandoned():
        what = f"{count} committed, kept until all their logs are intact" if count else "none committed"
        problem = f"transactions of a process that died: {what}"
        yield Finding("journal", -1, str(path), 0, 0, problem, damage=False)


def repair(catalogue: DirectoryCatalog, name: str | None, mend: Callable[[LogDirectory], list[Action]]) -> list[Action]:
    """Return what is done to one topic, or all, by `mend`.

    And what no repair can do, which stays to be done by a person.
    """
    topics, broken = catalogue.survey(name)
    what = "restore this file from a backup"
    actions = [Action(finding.topic, -1, finding.path, what, manual=True) for finding in map(_of_settings, broken)]
    for place in _places(catalogue, topics):
        try:
            actions += mend(place)
        except (Corrupt, Unsupported) as error:  # one topic's damage must not keep another from being repaired
            what = f"{error.facts.get('reason') or error.message}: restore it from a backup, or delete the topic"
            path = str(error.facts.get("path") or place.path)
            actions.append(Action(place.topic, place.partition, path, what, manual=True))
    return actions


def _places(catalogue: DirectoryCatalog, topics: list[TopicRecord]) -> Iterator[LogDirectory]:
    for topic in topics:
        for partition in range(topic.partitions):
            yield catalogue.place(topic, partition)


def _of_settings(error: HeadwaterError) -> Finding:
    path, facts = str(error.path), error.facts
    name = topic_of(Path(path).parent.name) or Path(path).parent.name
    return Finding(name, -1, path, facts.get("position", 0), facts.get("size", 0), error.message)


def _segment_bytes(place: LogDirectory) -> int:
    sizes = (place.disk.file_size(place.segment(base)) for base in place.segments())
    return sum(sizes)

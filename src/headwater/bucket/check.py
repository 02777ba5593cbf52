"""`check` of a bucket: verifies every checksum and invariant of its logs, and changes nothing.

Fetches every object, and continues after damage, so that one run finds all of it. May run while other processes append,
compact and trim: if something is wrong and `meta` has changed meanwhile, the log is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import msgspec

from headwater.bucket.catalog import BucketCatalog
from headwater.bucket.meta import Knowledge, Meta, ObjectSegment
from headwater.bucket.object_blobs import ObjectBlob
from headwater.bucket.object_place import ObjectPlace
from headwater.errors import Corrupt, HeadwaterError, NotFound, Unsupported
from headwater.format import object as format
from headwater.format.batch import BLOB
from headwater.format.object import ObjectHead
from headwater.format.segment import SegmentWindow
from headwater.info import CheckReport, Counts, Finding, Progress, advancing

LOOKS_MAX = 3  # damage that is still there then was not caused by compaction or retention


def check_bucket(catalogue: BucketCatalog, name: str | None, progress: Progress | None) -> CheckReport:
    """Verify one topic, or all; returns what was found."""
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


class _Link(msgspec.Struct, frozen=True):
    """The end of a walk so far: that of the last object, with its nonce and ticks; None where they are not known."""

    end: int
    nonce: str | None
    ticks: int | None


def check(place: ObjectPlace, counts: Counts, progress: Callable[[int], None]) -> Iterator[Finding]:
    """Yield everything that is wrong with one log, or worth knowing. `progress` is called with the fetched bytes."""
    knowledge = Knowledge(place)
    try:
        meta, findings, found = knowledge.look(), list[Finding](), Counts()
        for _ in range(LOOKS_MAX):
            found = Counts()
            findings = list(_walk(place, meta, found, progress))
            seen, meta = meta, knowledge.look()
            if not findings or meta == seen:
                break
    except NotFound:
        yield Finding(
            place.topic, place.partition, place.path(place.meta), 0, 0, "the meta record of the log is missing"
        )
        return
    except (Corrupt, Unsupported) as error:
        yield _of(place, place.meta, 0, error)
        return
    counts.segments += found.segments
    counts.batches += found.batches
    counts.events += found.events
    counts.bytes += found.bytes
    yield from findings
    yield from _garbage(place, meta)


def size_of(place: ObjectPlace) -> int:
    """Return about how many bytes a check fetches."""
    return sum(each.size for prefix in (place.segments, place.events) for each in place.store.list(prefix))


def _walk(place: ObjectPlace, meta: Meta, counts: Counts, progress: Callable[[int], None]) -> Iterator[Finding]:
    link = _Link(meta.trim.offset, meta.trim.nonce, meta.trim.ticks)
    for segment in meta.segments:
        key = place.segment(segment.base, segment.end, segment.nonce)
        link = yield from _check_object(place, key, link, segment.end, counts, segment)
        counts.segments += 1
        progress(segment.bytes)
    reached = meta.reached
    if meta.segments and (link.end != reached.offset or link.nonce not in (None, reached.nonce)):
        problem = f"the record says that offset {reached.offset} follows the segments, but they end at {link.end}"
        yield Finding(place.topic, place.partition, place.path(place.meta), 0, 0, problem)
        link = _Link(reached.offset, reached.nonce, reached.ticks)
    listed = list(place.store.list(place.events, place.events_at(reached.offset - 1) if reached.offset else ""))
    bases = [int(each.key.removeprefix(place.events)) for each in listed]
    for number, each in enumerate(listed):
        end = bases[number + 1] if number + 1 < len(bases) else None
        link = yield from _check_object(place, each.key, link, end, counts)
        progress(each.size)


def _check_object(
    place: ObjectPlace, key: str, link: _Link, end: int | None, counts: Counts, segment: ObjectSegment | None = None
) -> Generator[Finding, None, _Link]:
    """Yield what is wrong with one object; return where the walk is after it."""
    base = segment.base if segment is not None else int(key.removeprefix(place.events))
    if base != link.end:
        yield Finding(
            place.topic, place.partition, place.path(key), 0, 0, f"offsets {link.end} to {base - 1} are missing"
        )
    size = 0
    try:
        stored = place.store.get(key)
        if stored is None:
            yield Finding(place.topic, place.partition, place.path(key), 0, 0, "the object is missing")
            return _Link(end if end is not None else base, None, None)
        size = len(stored.data)
        head, position = format.decode(stored.data, place.path(key))
        yield from (
            Finding(place.topic, place.partition, place.path(key), 0, position, problem)
            for problem in _wrong(place, head, base, end, link, segment, size - position)
        )
        counts.bytes += size
        _check_batches(place, key, head, position, stored.data, counts)
        if segment is not None:
            _check_tables(place, key, head, position, stored.data)
    except (Corrupt, Unsupported) as error:
        yield _of(place, key, size, error)
        return _Link(end if end is not None else base, None, None)
    return _Link(head.end, head.nonce, head.ticks)


def _wrong(
    place: ObjectPlace,
    head: ObjectHead,
    base: int,
    end: int | None,
    link: _Link,
    segment: ObjectSegment | None,
    left: int,
) -> Iterator[str]:
    """Yield each contradiction between a head and what it should say."""
    if head.log != place.uuid.hex():
        yield "the object belongs to another log"
    if head.base != base or (end is not None and head.end != end) or (head.end <= head.base and not head.closed):
        yield f"the object holds offsets {head.base} to {head.end}, but should hold {base} to {end}"
    if link.nonce is not None and base == link.end and head.previous != link.nonce:
        yield "the object does not follow the one before it"
    if link.ticks is not None and head.previous_ticks < link.ticks:
        yield "ticks do not increase from one object to the next"
    if head.size > left:
        yield "the object is cut off"
    if segment is not None and (head.ticks, head.previous_ticks) != (segment.ticks, segment.previous_ticks):
        yield "the object is not the segment that the record names"


def _check_batches(
    place: ObjectPlace, key: str, head: ObjectHead, position: int, data: memoryview, counts: Counts
) -> None:
    """Verify all batches, and the huge events that they name; raises Corrupt."""
    window = SegmentWindow(data[: position + head.size], 0, place.path(key))
    offset, ticks = head.base, head.previous_ticks
    for batch in window.batches(position, head.base):
        batch.validate()
        if batch.base_ticks <= ticks:
            raise Corrupt(
                f"the ticks of offset {batch.base_offset} do not increase", position=batch.position, size=batch.size
            )
        if batch.flags & BLOB:
            id = head.blobs.get(str(batch.base_offset), "missing")
            for _ in ObjectBlob(place, id, batch.base_offset, batch.blob_reference(), lambda: 0).chunks():
                pass
        offset, ticks = batch.end_offset, batch.last_ticks
        counts.batches += 1
        counts.events += batch.count
    if (offset, ticks) != (head.end, head.ticks) and not head.closed:
        raise Corrupt(f"the object ends at offset {offset} instead of {head.end}", position=position, size=head.size)


def _check_tables(place: ObjectPlace, key: str, head: ObjectHead, position: int, data: memoryview) -> None:
    """Verify the tables of a segment: its batches, and the objects it was made of; raises Corrupt."""
    window = SegmentWindow(data[: position + head.size], 0, place.path(key))
    found = [(each.base_offset, each.position, each.base_ticks) for each in window.batches(position, head.base)]
    if found != head.batches:
        raise Corrupt("the table of batches is wrong", position=0, size=position)
    table = format.decode_table(data[position + head.size :], place.path(key))
    if len(table) != head.objects or head.nonce not in table.values() or min(table) != head.base:
        raise Corrupt("the table of objects is wrong", position=position + head.size, size=len(table))


def _garbage(place: ObjectPlace, meta: Meta) -> Iterator[Finding]:
    """Yield a note of the objects that will be deleted as garbage."""
    named = {place.segment(each.base, each.end, each.nonce) for each in meta.segments}
    end = place.events_at(meta.reached.offset)
    sizes = [each.size for each in place.store.list(place.segments) if each.key not in named]
    sizes += [each.size for each in place.store.list(place.events) if each.key < end]
    if sizes:
        problem = f"{len(sizes)} objects of {sum(sizes)} bytes are garbage, which compaction deletes later"
        yield Finding(place.topic, place.partition, place.path(place.events), 0, 0, problem, damage=False)


def _of(place: ObjectPlace, key: str, size: int, error: HeadwaterError) -> Finding:
    facts = error.facts
    position, length = int(facts.get("position") or 0), int(facts.get("size") or size)
    problem = str(facts.get("reason") or error.message)
    return Finding(place.topic, place.partition, str(facts.get("path") or place.path(key)), position, length, problem)

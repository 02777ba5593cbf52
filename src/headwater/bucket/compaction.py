"""Compaction: many small objects of events become one segment (docs/BUCKET.md, "Compaction, retention and collection").

The segment is put under a key of its own, then `meta` is swapped: from then on it holds those offsets. The swap is the
proof that nothing was freed meanwhile, so no clock is trusted here: it succeeds only where `meta` still ends where the
segment begins. Of two who compact at once, one wins; the other takes its own segment away. The objects stay until they
are collected.

The end of the log may be compacted like the rest. What writers and readers need to go on from there, the nonce, ticks
and producers of the last object, is in `meta`. So a log that is quiet becomes segments as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import chain as chained
from typing import NamedTuple

import msgspec

from headwater.bucket.chain import ObjectCache
from headwater.bucket.meta import Knowledge, Meta, ObjectSegment, Point
from headwater.bucket.object_place import ObjectPlace
from headwater.bucket.object_store import ObjectEntry
from headwater.errors import Corrupt
from headwater.format import object as format
from headwater.format.batch import BLOB, Batch
from headwater.format.object import ObjectHead
from headwater.format.segment import SegmentWindow
from headwater.log.packing import Pause, packed, runs

NONCE_BYTES = 16
TICKS_PER_MS = 10_000

Pool = Callable[[], Executor]


class _Source(NamedTuple):
    """An object that goes into a segment: its head, where its batches begin, and all its bytes."""

    key: str
    head: ObjectHead
    position: int
    data: memoryview


class _CompactionRaceError(Exception):
    """Another process compacted, trimmed or collected what was being read."""


def compact(
    place: ObjectPlace,
    knowledge: Knowledge,
    pool: Pool,
    upto: int | None = None,
    pause: Pause = lambda: None,
    cache: ObjectCache | None = None,
) -> int:
    """Make segments of what is worth it, durably; returns how many. With `upto`, of everything below that offset.

    `pause` is called between pieces of work, and may raise to stop: nothing is half done then. Raises Corrupt where the
    objects do not follow one another: damage is never packed over. What is in the `cache` is not fetched.
    """
    made = 0
    while upto is None or knowledge.look().reached.offset < upto:
        try:
            if not _compact_once(place, knowledge, pool, pause, cache or ObjectCache(0), all=upto is not None):
                break
        except _CompactionRaceError:
            if upto is None:
                break  # the process that was quicker goes on
            continue
        made += 1
    return made


def _compact_once(
    place: ObjectPlace, knowledge: Knowledge, pool: Pool, pause: Pause, cache: ObjectCache, *, all: bool
) -> bool:
    """Make one segment; False if nothing is worth it."""
    meta = knowledge.look()
    objects = _objects(place, meta)
    if not _worth(place, objects, all=all):
        return False
    merged = _merged(place, meta, sum(each.size for each in objects))
    keys = [place.segment(each.base, each.end, each.nonce) for each in merged] + [each.key for each in objects]
    sources = []
    for source in _read(place, meta, merged, keys, pool, cache):
        sources.append(source)
        pause()
    if len(sources) == len(merged):
        return False  # what is behind the segments is only the mark that the topic is deleted
    segment = _put(place, sources, pause)
    pause()
    _name(place, knowledge, meta, merged, segment, sources[-1].head)
    return True


def _objects(place: ObjectPlace, meta: Meta) -> list[ObjectEntry]:
    """Return the objects behind what is compacted, as many as one segment takes."""
    limits, size = place.limits, 0
    found: list[ObjectEntry] = []
    start = meta.reached.offset
    for each in place.store.list(place.events, place.events_at(start - 1) if start else ""):
        if found and (
            size + each.size > limits.segment_bytes
            or len(found) >= limits.compact_objects_max
            or (each.modified - found[0].modified).total_seconds() * 1000 > limits.segment_age_ms
        ):
            break
        found.append(each)
        size += each.size
    return found


def _worth(place: ObjectPlace, objects: list[ObjectEntry], *, all: bool) -> bool:
    """Enough objects, or enough bytes: each segment costs requests, and a place in `meta`."""
    limits = place.limits
    if all:
        return bool(objects)
    enough = limits.compact_objects and len(objects) >= limits.compact_objects
    return bool(enough or sum(each.size for each in objects) * 2 > limits.segment_bytes)


def _merged(place: ObjectPlace, meta: Meta, size: int) -> list[ObjectSegment]:
    """Return the last segments, if they are so small that they should become one with what is added.

    Each is at most twice as large as all that is behind it, so every event is rewritten a few times at most while
    segments grow to their size, and `meta` names few small ones. What spans too much time stays
    apart: it could not be trimmed.
    """
    limits, found = place.limits, list[ObjectSegment]()
    if meta.compacted.offset != meta.reached.offset:
        return found
    for each in reversed(meta.segments):
        old = place.clock.ticks() - (each.previous_ticks or each.ticks) > limits.segment_age_ms * TICKS_PER_MS
        if each.bytes > 2 * size or size + each.bytes > limits.segment_bytes or old:
            break
        found.insert(0, each)
        size += each.bytes
    return found


def _get(place: ObjectPlace, cache: ObjectCache, key: str) -> memoryview | None:
    data = cache.get(key)
    if data is None:
        stored = place.store.get(key)
        data = None if stored is None else stored.data
    return data


def _read(
    place: ObjectPlace, meta: Meta, merged: list[ObjectSegment], keys: list[str], pool: Pool, cache: ObjectCache
) -> Iterator[_Source]:
    """Yield the objects, each verified to follow the one before. Ends at the mark that the topic is deleted."""
    expected, nonce = (merged[0].base, None) if merged else (meta.reached.offset, meta.reached.nonce)
    for key, data in zip(keys, pool().map(partial(_get, place, cache), keys), strict=True):
        if data is None:
            raise _CompactionRaceError
        head, position = format.decode(data, place.path(key))
        follows = head.base == expected and (nonce is None or head.previous == nonce)
        if head.log != place.uuid.hex() or position + head.size > len(data) or not follows:
            if Knowledge(place).look().reached.offset != meta.reached.offset:
                raise _CompactionRaceError  # a place was freed, and a sleeper put something there
            raise _broken(place.path(key), len(data))
        if head.closed:
            return
        yield _Source(key, head, position, data)
        expected, nonce = head.end, head.nonce


def _put(place: ObjectPlace, sources: list[_Source], pause: Pause) -> ObjectSegment:
    """Put a segment that holds all batches of some objects, durably; nobody knows of it yet."""
    first, last = sources[0].head, sources[-1].head
    blobs: list[int] = []
    batches = list(
        chained.from_iterable(packed(run, place) for run in runs(_batches(place, sources, blobs), place, pause))
    )
    head = ObjectHead(
        log=first.log,
        base=first.base,
        end=last.end,
        nonce=last.nonce,
        previous=first.previous,
        previous_ticks=first.previous_ticks,
        ticks=last.ticks,
        blobs={offset: id for source in sources for offset, id in source.head.blobs.items()},
        producers=last.producers,
    )
    table = b"".join(_table(place, source) for source in sources)
    pieces = format.encode_segment(head, batches, table)
    nonce = place.clock.random_bytes(NONCE_BYTES).hex()
    size = place.store.put_pieces(place.segment(head.base, head.end, nonce), pieces)
    return ObjectSegment(head.base, head.end, nonce, size, head.previous_ticks, head.ticks, sum(blobs))


def _batches(place: ObjectPlace, sources: list[_Source], blobs: list[int]) -> Iterator[Batch]:
    """Yield all batches in order; notes the bytes of huge events."""
    for source in sources:
        end = source.position + source.head.size
        window = SegmentWindow(source.data[:end], 0, place.path(source.key))
        offset = source.head.base
        for batch in window.batches(source.position, offset):
            if batch.flags & BLOB:
                blobs.append(batch.blob_reference()[0])
            offset = batch.end_offset
            yield batch
        if offset != source.head.end:
            raise _broken(window.path, len(source.data))


def _table(place: ObjectPlace, source: _Source) -> bytes:
    """Return which objects it is, or was made of: a writer that slept may ask whether its own is among them."""
    if not source.head.objects:
        return format.encode_table([(source.head.base, source.head.nonce)])
    stored = source.data[source.position + source.head.size :]
    return format.encode_table(format.decode_table(stored, place.path(source.key)).items())


def _name(
    place: ObjectPlace,
    knowledge: Knowledge,
    seen: Meta,
    merged: list[ObjectSegment],
    segment: ObjectSegment,
    last: ObjectHead,
) -> None:
    """Have `meta` name a segment instead of those that were merged, durably; raises _Raced.

    Not if a collector was there since `meta` was seen: it may have doomed the segment, which nobody named, and deleted
    it.
    """
    key = place.segment(segment.base, segment.end, segment.nonce)
    tries = 0

    def change(meta: Meta) -> Meta | None:
        nonlocal tries
        kept = meta.segments[: len(meta.segments) - len(merged)]
        if (meta.reached, meta.mark) != (seen.reached, seen.mark) or meta.segments[len(kept) :] != merged:
            return None
        tries += 1
        point = Point(last.end, last.nonce, last.ticks, last.producers)
        return msgspec.structs.replace(meta, compacted=point, segments=[*kept, segment])

    if segment in knowledge.change(change).segments:  # also if the answer to a try was lost
        return
    if not tries:
        # Certainly nobody ever saw it. After a try, it may have been named and merged with others since: then it has
        # to stay for those who still believe in it, and is collected.
        place.store.delete([key])
    raise _CompactionRaceError


def _broken(path: str, size: int) -> Corrupt:
    return Corrupt(
        f"an object does not follow the one before it: {path}",
        hint="run 'headwater check'",
        path=path,
        position=0,
        size=size,
        reason="the chain is broken",
    )

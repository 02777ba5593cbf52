"""Collection: deleting what compaction and retention have turned into garbage, long after `meta` has said so.

In two steps, by whoever comes along: what is superfluous is noted in `meta`, with the time of the store; when that has
stood for `collect_s`, it is deleted. Nobody believes in it any more then (docs/BUCKET.md, "The rules"). What was noted
never comes back: offsets below the mark are below it for ever, and a compactor that finds another mark than before it
put its segment does not have that named. So a collector may die or sleep anywhere, and two may run at once. The clocks
of those who collect do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice

import msgspec

from headwater.bucket.meta import Knowledge, Mark, Meta, read_head
from headwater.bucket.object_place import ObjectPlace
from headwater.bucket.object_store import ObjectEntry, ObjectStore
from headwater.errors import Unavailable

DOOMED_MAX = 1000  # keys that `meta` notes at once: everybody reads them; more is noted the next time
DELETED_AT_ONCE = 1000  # as many as a request of S3 takes


def collect(place: ObjectPlace, knowledge: Knowledge) -> int:
    """Delete what may be deleted by now, and note what may be later; returns how many objects went."""
    meta = knowledge.look()
    segments, blobs = list(place.store.list(place.segments)), list(place.store.list(place.blobs))
    now = time_of(place.store, place.stamp)
    unnamed = [*_unnamed_segments(place, meta, segments, now), *_unnamed_blobs(place, meta, blobs, now)]
    ripe = _ms(now) - meta.mark.at >= place.limits.collect_s * 1000
    gone = 0
    if ripe:
        doomed = set(meta.mark.doomed)
        dead = [key for key in unnamed if place.short(key) in doomed]
        unnamed = [key for key in unnamed if place.short(key) not in doomed]
        gone = delete_all(place.store, (*_below(place, meta.mark.offset), *dead))
        if meta.reached.offset > meta.mark.offset or unnamed:
            _note(place, knowledge, meta, Mark(meta.reached.offset, _ms(now), _short(place, unnamed)))
    return gone


def all_older(store: ObjectStore, prefix: str, now: datetime, age_s: float) -> bool:
    """Return whether everything below a prefix is so old: nobody is just about to name it."""
    return all(_older(each, now, age_s) for each in store.list(prefix))


def time_of(store: ObjectStore, key: str) -> datetime:
    """Return the time of the store, by putting something there. What happened before this call has an earlier one."""
    store.put(key, b"{}\n")
    for each in store.list(key):
        if each.key == key:
            return each.modified
    raise Unavailable(f"{store.url} does not list {key}, which was just written", code="store_unavailable")


def delete_all(store: ObjectStore, keys: Iterable[str]) -> int:
    """Delete objects, some at a time; returns how many."""
    rest, gone = iter(keys), 0
    while some := list(islice(rest, DELETED_AT_ONCE)):
        store.delete(some)
        gone += len(some)
    return gone


def _below(place: ObjectPlace, offset: int) -> Iterator[str]:
    """Yield the objects of events below an offset: they are in segments, or trimmed, or a sleeper put them there."""
    end = place.events_at(offset)
    for each in place.store.list(place.events):
        if each.key >= end:
            break
        yield each.key


def _unnamed_segments(place: ObjectPlace, meta: Meta, found: list[ObjectEntry], now: datetime) -> list[str]:
    """Segments that `meta` does not name: of those who were second, died, merged them or trimmed them.

    Young ones are left: the process that put one may be about to have it named.
    """
    named = {place.segment(each.base, each.end, each.nonce) for each in meta.segments}
    return [each.key for each in found if each.key not in named and _older(each, now, place.limits.collect_s)]


def _unnamed_blobs(place: ObjectPlace, meta: Meta, found: list[ObjectEntry], now: datetime) -> list[str]:
    """Return huge events that no head names. Those that are not old may belong to an upload that goes on."""
    old = [each.key for each in found if _older(each, now, place.limits.blob_orphan_s)]
    if not old:
        return []
    named: set[str] = set()
    keys = [place.segment(each.base, each.end, each.nonce) for each in meta.segments if each.blobs]
    reached = meta.reached.offset
    keys += [each.key for each in place.store.list(place.events, place.events_at(reached - 1) if reached else "")]
    for key in keys:
        head = read_head(place, key)
        if head is None:  # compacted or trimmed meanwhile: what it named cannot be told now
            return []
        named.update(place.blob(id) for id in head[0].blobs.values())
    return [key for key in old if key not in named]


def _note(place: ObjectPlace, knowledge: Knowledge, seen: Meta, mark: Mark) -> None:
    """Have `meta` say what is garbage, unless another collector was quicker."""

    def change(meta: Meta) -> Meta | None:
        named = {place.short(place.segment(each.base, each.end, each.nonce)) for each in meta.segments}
        if meta.mark != seen.mark or named.intersection(mark.doomed):
            return None
        return msgspec.structs.replace(meta, mark=mark)

    knowledge.change(change)


def _short(place: ObjectPlace, keys: list[str]) -> list[str]:
    return [place.short(key) for key in keys[:DOOMED_MAX]]


def _older(each: ObjectEntry, now: datetime, age_s: float) -> bool:
    return (now - each.modified).total_seconds() >= age_s


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)

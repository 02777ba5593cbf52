"""Retention in a bucket: `meta` says from where on a log is kept, before anything of it is deleted.

Whole segments go, the oldest first, by the same rules as in a directory. What is not compacted yet counts as the active
segment: it stays, unless all of it is too old. Deleting is the collector's.
"""

from __future__ import annotations

import msgspec

from headwater.bucket.chain import Chain
from headwater.bucket.meta import Meta, ObjectSegment, Point, read_head
from headwater.bucket.object_place import ObjectPlace
from headwater.format.batch import corrupt
from headwater.info import DeletedSegment
from headwater.log.topic_rules import TICKS_PER_MS, Rules, surplus


class _Piece(msgspec.Struct, frozen=True):
    """A segment, or all that is not compacted yet; that has a `point` to go on from."""

    base: int
    end: int
    bytes: int
    ticks: int
    point: Point | None = None


def trim(place: ObjectPlace, chain: Chain, rules: Rules, *, dry_run: bool = False) -> list[DeletedSegment]:
    """Trim what need not be kept, durably; returns what went, or would go.

    Readers of this process see it at once, all others within `knowledge_s`: NotFound with the code `offset_gone`.
    """
    found: list[_Piece] = []
    if not rules.bounded:
        return []
    active = _active(place, chain)

    def change(meta: Meta) -> Meta | None:
        found[:] = _due(place, meta, active, rules)
        if not found:
            return None
        point = _point(place, meta, found[-1])
        kept = [segment for segment in meta.segments if segment.end > point.offset]
        return msgspec.structs.replace(meta, trim=point, segments=kept)

    if dry_run:
        found[:] = _due(place, chain.knowledge.look(), active, rules)
    else:
        chain.knowledge.change(change)
    return [DeletedSegment(place.topic, place.partition, each.base, each.end, each.bytes) for each in found]


def _point(place: ObjectPlace, meta: Meta, last: _Piece) -> Point:
    """Return what the process that goes on behind a piece must know."""
    if last.point is not None or last.end == meta.compacted.offset:
        return last.point or meta.compacted
    segment = meta.segment_of(last.end - 1)
    assert segment is not None
    key = place.segment(segment.base, segment.end, segment.nonce)
    found = read_head(place, key)
    if found is None:
        raise corrupt("a segment is missing", place.path(key), 0, segment.bytes, (segment.base, segment.end))
    return Point(last.end, found[0].nonce, found[0].ticks, found[0].producers)


def _active(place: ObjectPlace, chain: Chain) -> _Piece:
    """Return all that is behind the segments, as one piece."""
    tip = chain.advance()
    reached = chain.knowledge.meta().reached.offset
    listed = place.store.list(place.events, place.events_at(reached - 1) if reached else "")
    point = Point(tip.end, tip.nonce, tip.ticks, tip.producers)
    return _Piece(reached, tip.end, sum(each.size for each in listed), tip.ticks, point)


def _due(place: ObjectPlace, meta: Meta, active: _Piece, rules: Rules) -> list[_Piece]:
    finished = [_piece(segment) for segment in meta.segments]
    total = sum(each.bytes for each in finished) + active.bytes
    now = place.clock.ticks()
    due = surplus(finished, total, len(finished) + 1, rules, now, lambda piece: piece.ticks)
    active = msgspec.structs.replace(active, base=meta.reached.offset)
    age_ms = rules.settings.retention_age_ms
    old = age_ms and active.ticks < now - age_ms * TICKS_PER_MS and rules.free(active.end)
    if old and len(due) == len(finished) and active.end > active.base:
        due.append(active)
    return due


def _piece(segment: ObjectSegment) -> _Piece:
    return _Piece(segment.base, segment.end, segment.bytes + segment.blobs, segment.ticks)

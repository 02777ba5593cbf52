"""Reading segments as objects: their heads, and which objects each of them was made of.

Readers need the batches alone (`reader.py`). This is for code that must know what became of an object of events.
"""

from __future__ import annotations

from headwater.bucket.meta import Knowledge, Meta, ObjectSegment
from headwater.bucket.object_place import ObjectPlace
from headwater.format import object as format
from headwater.format.object import ObjectHead

HEAD_BYTES = 16 * 1024  # enough for most heads in one request


def packed_in(place: ObjectPlace, meta: Meta, base: int, nonce: str) -> bool:
    """Return whether the object of events with this nonce was at `base`, and is in a segment now.

    False also if what was there is trimmed: nobody can say any more what it was.
    """
    while (segment := meta.segment_of(base)) is not None:
        found = table_of(place, segment)
        if found is not None:
            return found.get(base) == nonce
        meta = Knowledge(place).look()  # it was merged with others meanwhile
    return False


def read_head(place: ObjectPlace, key: str) -> tuple[ObjectHead, int] | None:
    """Return the head of an object, verified, and where its batches begin; None if it is not there."""
    data = place.store.get_range(key, 0, HEAD_BYTES)
    if data is not None and (size := format.head_bytes(data)) > len(data) >= format.PREFIX_BYTES:
        data = place.store.get_range(key, 0, size)
    return None if data is None else format.decode(data, place.path(key))


def table_of(place: ObjectPlace, segment: ObjectSegment) -> dict[int, str] | None:
    """Return the nonces of the objects that a segment was made of, by their first offsets; None if it is not there."""
    key = place.segment(segment.base, segment.end, segment.nonce)
    found = read_head(place, key)
    if found is None:
        return None
    head, start = found
    stored = place.store.get_range(key, start + head.size, format.TABLE_ENTRY_BYTES * head.objects + 4)
    return None if stored is None else format.decode_table(stored, place.path(key))

"""All limits and defaults, each with its reason. `headwater.open(..., limits=Limits(...))` changes them."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Fixed by the format: changing these changes docs/FORMAT.md.
PARTITIONS_MAX = 4096  # a directory with a lock and a tail each; above this, more topics serve better
TYPE_BYTES_MAX = 255  # a type is a name, and the index keeps each one
BLOB_CHUNK_BYTES = MIB  # the unit of checksums in a blob: what a reader must hold to hand out verified bytes
DATA_BYTES_CEILING = 4 * GIB - 1  # protocols carry an event's length as u32
BATCH_BYTES_CEILING = 1 * GIB  # offsets in a column are i32, as in Arrow's binary


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one opened log accepts and how it behaves. Bytes unless the name says otherwise."""

    topic_name_bytes_max: int = KIB
    key_bytes_max: int = KIB
    meta_bytes_max: int = 64 * KIB  # headers, not payload
    data_bytes_max: int = 10 * MIB  # a topic may allow more when it is made, up to 4 GiB - 1
    blob_bytes_min: int = MIB  # data above this goes to a blob file, so that a batch stays cheap to hold
    blob_bytes_in_memory: int = 10 * MIB  # up to this, reading an event also loads its blob; above, stream it
    batch_events_max: int = 100_000  # one append_many per partition; append_arrow splits
    batch_bytes_max: int = 64 * MIB  # what a reader must be able to hold at once
    open_topics_max: int = 1024  # each open partition holds three file descriptors and a map
    commit_bytes_max: int = 4 * MIB  # how much the leader of a group takes in one commit, to bound latency

    segment_bytes: int = 64 * MIB  # the unit of sealing, retention and archiving
    segment_age_ms: int = 7 * 24 * 3600 * 1000  # so that a quiet log is sealed and archived at some time
    pack_bytes: int = 512 * KIB  # sealing makes batches of about this: large enough to vectorise, small to look up
    pack_events: int = 65_536  # and up to this many events

    lock_wait_s: float = 30.0  # a writer that waits longer than this for the lock gives up: Unavailable


DEFAULTS = Limits()

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
CONSUMER_MEMBERS_MAX = 128  # who read as one consumer at once; each looks at all of them when it renews its leases
CONSUMER_NAME_BYTES_MAX = 64  # escaped, it fits a directory's name without being shortened, so that it can be read back

# Fixed by the message format of Puro, whose README says "1 kilobyte" and "10 megabyte".
PURO_TOPIC_BYTES_MAX = KIB
PURO_KEY_BYTES_MAX = KIB
PURO_VALUE_BYTES_MAX = 10 * MIB

# Of what a replica asks its source.
REPLICA_BYTES_MAX = 32 * MIB  # of batches in one answer, beside one that may be larger: both sides hold it in memory
REPLICA_LOGS_MAX = 16_384  # that one question names: each is looked at until there is something
REPLICA_WAIT_MS_MAX = 20_000  # for which a question may wait: below what proxies and clients take for silence

# Of tables, in which other systems read a topic.
COLUMN_DATA_BYTES_MAX = 64 * MIB  # of an event, to be a value of a column: it is held in memory; larger data is null
SPLIT_BYTES = 64 * MIB  # of one: a segment, and some hundred milliseconds of work
SPLITS_MAX = 100_000  # of a partition: they are made and told in one piece, and are larger where there would be more

# What a filter may ask for. It comes from outside, and is run for every event: these bound its memory and its time.
PATTERN_BYTES_MAX = KIB  # RE2 bounds the time of a pattern, this its memory
PATTERN_STEPS_MAX = 2000  # of the compiled pattern: at worst, RE2 takes this many for each byte of a text
MATCH_BYTES_MAX = 256 * KIB  # of names, texts and numbers in it: a list of ids fits, a table does not
MATCH_DEPTH_MAX = 32  # parts of a path and levels of nesting: matches are compiled and run by recursion
MATCH_TERMS_MAX = 256  # comparisons; each may be made for each event
MATCH_VALUES_MAX = 10_000  # operands, as in the list of an `$in`
MATCH_PATTERNS_MAX = 8  # each may hold the 8 MiB that RE2 takes for one

# Frames over TCP.
FRAME_DEPTH_MAX = 100  # levels of documents and arrays: they are decoded by recursion
FRAME_FIELDS_BYTES_MAX = MIB  # of documents and arrays in any frame but EMIT: they become objects, all at once
FRAME_BYTES_MAX = 16 * MIB + 64 * KIB  # the largest document, and what is around it

# Views.
DOCUMENT_BYTES_MAX = 16 * MIB  # as in other document stores: a fold decodes and encodes all of it for each event
BINDER_NAME_BYTES_MAX = 64  # escaped, it fits a file's name without being shortened, so that it can be read back
DOCUMENT_ID_BYTES_MAX = KIB  # as a key's: it is one, as a rule
BINDER_INDEXES_MAX = 32  # each costs a write for each document that is changed
QUARANTINED_MAX = 1000  # events that a projection may pass over: more means that its fold is wrong, not they
VIEW_NAME_BYTES_MAX = 48  # with what stands before it, it is the name of a consumer
QUESTION_BYTES_MAX = MIB  # of a query with a name and its arguments, on its way to the application
ANSWER_BYTES_MAX = 32 * MIB  # of what such a query returns: two processes hold it in memory
FIELD_BYTES_MAX = KIB  # of the path of a field that is indexed or sorted by: it names a column
FIND_FIELDS_MAX = 256  # paths that a find may ask for: each is looked up in each document
FIND_SORTS_MAX = 8  # fields that a find may sort by: each is a key for each document
FIND_SORTED_MAX = 5_000_000  # documents that are sorted without an index: about 1 GiB of keys


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
    open_topics_max: int = 1024  # kept open though nobody uses them, at some 6 KiB a partition; more are closed
    commit_bytes_max: int = 4 * MIB  # how much the leader of a group takes in one commit, to bound latency

    transaction_bytes_max: int = 64 * MIB  # it is held in memory, and written to the journal as a whole
    transaction_events_max: int = 100_000

    segment_bytes: int = 64 * MIB  # the unit of sealing, retention and archiving
    segment_age_ms: int = 7 * 24 * 3600 * 1000  # so that a quiet log is sealed and archived at some time
    pack_bytes: int = 512 * KIB  # sealing makes batches of about this: large enough to vectorise, small to look up
    pack_events: int = 65_536  # and up to this many events

    producers_max: int = 10_000  # producers that a partition remembers; the one that was silent longest is forgotten
    producer_answers_max: int = 5  # answers kept for each: a producer has one request in flight, and a retry or two
    producer_age_ms: int = 7 * 24 * 3600 * 1000  # silent for this long while others appended: it does not retry
    producer_id_bytes_max: int = 255

    lease_ms: int = 10_000  # how long a dead reader keeps its partitions; long enough for a stall of a busy machine
    ack_ms: int = 100  # acks are stored this often: what a crash may deliver again, against a write for each
    bucket_ack_ms: int = 1000  # the same for cursors in a bucket or a table, where each write is paid for
    failures_max: int = 5  # an event that failed so often is dead-lettered, so that the others behind it are handled
    retry_ms: int = 100  # before the first retry; doubled for each further one
    retry_ms_max: int = 10_000  # so that an event that may fail often is still tried now and then
    unacked_max: int = 200_000  # events that were handed out and not acked: each is remembered

    # The archive of a directory.
    archive_cache_bytes: int = GIB  # fetched segments that a log directory keeps: a read back and forth stays local
    archive_transfers: int = 4  # files that go to or come from an archive at once: a few fill most networks
    archive_retry_s: float = 10.0  # the process that reads waits so long for an archive that is out of reach
    archive_look_s: float = 1.0  # how often an archiver looks for finished segments: a look costs little

    # Appends in the background.
    linger_ms: int | None = None  # how long `append_later` gathers events; None: 100 in a bucket, 5 elsewhere
    linger_bytes: int = 4 * MIB  # or until there are so many bytes
    buffer_bytes: int = 64 * MIB  # what may be pending, of a store, or of a partition of a bucket; then callers wait

    # In a bucket.
    object_bytes: int = 8 * MIB  # about how much goes into one object, unless one append has more
    knowledge_s: float = 60.0  # how old a look at what was compacted and trimmed may be, from the look to the answer
    collect_s: float = 600.0  # what is garbage is deleted after this: far above what anybody believes, or waits for
    compact_objects: int = 256  # so many objects become a segment, in the background; 0: only when `seal` is called
    compact_objects_max: int = 10_000  # of one segment: each is a request, and must be read before it is out of date
    blob_orphan_s: float = 86_400.0  # a huge event that no object names is deleted after this: its upload may take long
    cache_bytes: int = 64 * MIB  # of objects that were read, kept in memory
    fetch_threads: int = 8  # objects that are fetched at once by one opened bucket
    fetch_bytes: int = 8 * MIB  # of a large object in one request
    follow_ms: int = 20  # a follower that has caught up looks again after this, and ever more rarely
    follow_ms_max: int = 1000  # down to this: a look each second costs about a dollar a month
    object_producers_max: int = 100  # producers that the objects of a partition take along: each is in every head

    lock_wait_s: float = 30.0  # a writer that waits longer than this for the lock gives up: Unavailable

    store_retry_s: float = 60.0  # an object store that fails for longer than this is Unavailable
    store_request_s: float = 30.0  # of one request: 64 MiB need 2 MiB/s; some servers let contenders wait for seconds
    store_connect_s: float = 5.0


DEFAULTS = Limits()


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a server takes from outside, for each connection and in all. Bytes unless the name says otherwise."""

    connections_max: int = 10_000  # each holds a descriptor and about 20 KiB
    header_bytes_max: int = 32 * KIB  # of a request's line and headers: a long match in the address fits
    header_s: float = 10.0  # from the first byte of a request to the end of its headers: no slow trickle
    body_idle_s: float = 60.0  # an upload may take long, but not stand still
    idle_s: float = 75.0  # how long a connection may wait for its next request
    write_s: float = 60.0  # how long a client may take nothing of an answer that waits for it
    item_bytes_max: int = DATA_BYTES_CEILING  # one item, streamed; a topic may allow less
    body_bytes_max: int = 64 * MIB  # a body that is held in memory: several events, a transaction
    arrow_events_max: int = 1_000_000  # rows of one Arrow stream, which is appended in several batches
    held_bytes_max: int = 256 * MIB  # all bodies that are held in memory at once; above, 503
    write_buffer_bytes: int = 256 * KIB  # what may wait for a client; a stream stops there until there is room
    pipelined_max: int = 64  # requests of one connection that wait for their turn; above, it is not read any more
    threads: int = 16  # that read and append for requests; what is live needs none while it waits

    feed_chunk_bytes: int = (
        64 * KIB
    )  # of events that a stream writes at once: what a slow client may hold beyond its room
    feed_recent_bytes: int = MIB  # of chunks kept for subscribers that are a little behind, and need not read for that
    feed_recent_max: int = 1024  # of those chunks
    watch_threads: int = (
        16  # that sleep until a topic has more; above, several topics share one, and 128 logs are polled
    )

    awaited_topics_max: int = 1024  # streams that wait for a topic to be made: each is looked up ten times a second

    frame_bytes_max: int = FRAME_BYTES_MAX  # over TCP; it is held in memory as a whole
    frames_waiting_max: int = 16_384  # frames of one connection that wait for their turn; above, it is not read
    frames_waiting_bytes: int = 4 * MIB  # the same in bytes, beside one frame that may be larger
    subscriptions_max: int = 256  # of one connection: each has a task, and a cursor
    subscription_unacked_max: int = 1000  # RECEV frames that a client has not acknowledged; then it waits
    connection_queries_max: int = 16  # of one connection: each holds a moment of its binder
    query_unacked_max: int = 100  # QUERYRESULT frames that a client has not acknowledged
    sessions_max: int = 64  # transactions of one connection; what is in them counts as held in memory

    users_file_bytes_max: int = 16 * MIB  # it is held in memory, and read again when it changes
    users_look_s: float = 1.0  # how long a right that was taken away may still be used
    user_name_bytes_max: int = 64  # it stands in every line of the access log
    user_decisions_max: int = 4096  # topics of which it is remembered whether a user may do something to them
    password_bytes_min: int = 8  # as NIST SP 800-63B asks
    password_bytes_max: int = KIB
    password_checks_max: int = 2  # at once: each takes a core for a fifth of a second, and 16 MiB
    password_queue_max: int = 8  # in work or waiting for that, each in a thread: half of `threads`; above, 503
    password_failures_max: int = 10  # of one address; then it may try once in `password_retry_s`
    password_retry_s: float = 6.0
    password_addresses_max: int = 10_000  # whose failures are remembered
    proofs_max: int = 1000  # right passwords that a connection remembers to have seen
    certificate_look_s: float = 60.0  # how often to look for a new certificate: they are renewed days before they end

    replicas_max: int = 8  # that copy at the same time: each has a thread while it waits
    members_max: int = 256  # clients that have joined consumers: two threads each, and what `member_bytes_max` allows
    member_events_max: int = 10_000  # sent to a member and not acked; then it waits. Enough to hide a slow network
    member_bytes_max: int = 16 * MIB  # the same in bytes of data: what a client must be able to hold
    lease_ms_max: int = 600_000  # of a remote member: a longer one would outlive its server by more than that
    query_bytes_max: int = MIB  # of the body of a query: a match of the largest kind fits, with room
    query_s: float = 30.0  # how long the application may take for a query with a name
    queries_max: int = 32  # of those that wait for the application; each may hold an answer
    view_wait_s_max: float = 60.0  # how long a request may wait for a projection: clients ask again
    application_start_s: float = 60.0  # that an application may take to be imported, and to open the log
    acks_bytes_max: int = MIB  # of one request that acks: some 50,000 events, each named alone


SERVER_DEFAULTS = ServerLimits()

"""`Remote`: the backend behind a server at http:// or https://. Safe from any thread.

It connects when it is first used. An append is retried if its response is lost; the producer makes the retry
idempotent. If the response stays away: Unavailable with the code `answer_lost`, whose `producer` says under which id
the event may have been appended (docs/CLIENT.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID
from weakref import WeakSet

import msgspec

from headwater.append_queue import AppendQueue, QueuedAppend
from headwater.backend import Kind, Lack
from headwater.errors import NotFound
from headwater.event import Durability, Event, Ref, Refs, ticks_of
from headwater.format import given
from headwater.format.events import EventBatch
from headwater.format.producers import Producer
from headwater.format.settings import Retention, TopicSettings
from headwater.info import DeletedSegment, Split, TopicInfo
from headwater.limits import DATA_BYTES_CEILING, DEFAULTS, Limits
from headwater.position import Positions
from headwater.remote.appending import RemoteAppender
from headwater.remote.committer import JoinedConsumer, RemoteCommitter
from headwater.remote.reading import RemoteBatches, RemoteFollow, events_of, position_query
from headwater.remote.transport import NOTHING, Transport
from headwater.requests import Append, AppendMany, Read, wants_sync
from headwater.transaction import Transaction

_remotes: WeakSet[Remote] = WeakSet()  # which take other producers in a forked child

_decode_topic = msgspec.json.Decoder(TopicInfo).decode
_decode_splits = msgspec.json.Decoder(list[Split]).decode
_decode_deleted = msgspec.json.Decoder(list[DeletedSegment]).decode


def _where_it_is(verb: str) -> Lack:
    return Lack(verb, f"run 'headwater {verb}' where the directory is")


class Remote:
    """A server, open."""

    kind: ClassVar[Kind] = "server"
    archive_url = replica = None  # not known from here
    lacks: ClassVar[Mapping[str, Lack]] = {
        "seal": _where_it_is("seal"),
        "reindex": _where_it_is("reindex"),
        "check": _where_it_is("check"),
        "repair": _where_it_is("repair"),
        "archive": _where_it_is("archive"),
        "maintain": Lack("be maintained from here", "maintenance is automatic"),
    }

    def __init__(self, transport: Transport, *, durability: Durability = "fsync", limits: Limits = DEFAULTS) -> None:
        self.transport = transport
        # How large data may be, its topic says, which the server knows.
        self._limits = msgspec.structs.replace(limits, data_bytes_max=DATA_BYTES_CEILING)
        self._durability: Durability = "fsync" if wants_sync(durability) else "os"
        self._appends = RemoteAppender(transport, self._limits)
        self._queue = AppendQueue(self, self._limits)
        self.members: WeakSet[JoinedConsumer] = WeakSet()  # which end with this object
        _remotes.add(self)

    @property
    def address(self) -> str:
        return str(self.transport.address)

    @property
    def uuid(self) -> str:
        told: str = self.transport.json("GET", ("version",), repeat=True)["uuid"]
        return told

    @property
    def limits(self) -> Limits:
        """Return what it accepts; the server may accept less."""
        return self._limits

    # Topics

    def create(self, topic: str, partitions: int, settings: TopicSettings) -> bool:
        asked = {"partitions": partitions, **msgspec.to_builtins(settings)}  # which leaves out what is not chosen
        made: bool = self.transport.json("PUT", ("topic", topic), asked, repeat=True)
        return made

    def topics(self) -> list[str]:
        names: list[str] = self.transport.json("GET", ("topics",), repeat=True)
        return names

    def describe(self, topic: str) -> TopicInfo:
        return _decode_topic(self.transport.call("GET", ("topic", topic), repeat=True).body)

    def delete(self, topic: str) -> None:
        delete(self.transport, ("topic", topic))

    # Appending

    def append(self, request: Append) -> Ref:
        return self._appends.one(request, self._reached(request.sync))

    def append_many(self, request: AppendMany) -> Refs:
        if not request.count:
            return Refs(request.topic, self._reached(request.sync), ())
        return self._appends.many(request, self._reached(request.sync))

    def append_later(self, request: Append) -> QueuedAppend:
        self.transport.check_open()
        return self._queue.add(request)

    def flush(self) -> None:
        self._queue.flush()

    def transaction(self, sync: bool | None, producer: Producer | None) -> Transaction:
        self.transport.check_open()
        return Transaction(RemoteCommitter(self, self._appends, self._reached(sync), producer))

    def producers(self, topic: str, partition: int) -> None:
        """Return None: the producers of a server are not known from here."""

    def remember_archive(self, url: str) -> None:
        """Do nothing: a server has no place for it."""

    def sync(self, topic: str) -> None:
        self.transport.call("POST", ("topic", topic, "sync"), repeat=True)

    # Reading

    def read(self, request: Read) -> Iterator[Event]:
        return events_of(self._batches(request, {"order": "time"}), reverse=request.reverse)

    def read_batches(self, request: Read) -> Iterator[EventBatch]:
        return self._batches(request)

    def follow(self, request: Read, timeout: float | None) -> RemoteFollow:
        def wait(offsets: list[int]) -> RemoteBatches:
            following = msgspec.structs.replace(request, start=offsets)
            return self._batches(following, {"wait_for_more": True}, uuid=there.uuid)

        there = self._batches(request)
        return RemoteFollow(there, wait, timeout, self.transport)

    def splits(
        self, topic: str, start: Positions, end: Positions, partition: int | None, split_bytes: int
    ) -> list[Split]:
        query = position_query(start, end) | {"partition": partition, "split_bytes": split_bytes}
        return _decode_splits(self.transport.call("GET", ("topic", topic, "splits"), query, repeat=True).body)

    def version(self, topic: str, key: bytes, partition: int | None) -> int | None:
        query = {"key": key, "partition": partition}
        found: int | None = self.transport.json("GET", ("topic", topic, "version"), query, repeat=True)
        return found

    def retain(
        self,
        topic: str,
        before: int | datetime | None,
        partition: int | None,
        dry_run: bool,
        changes: Retention,
    ) -> list[DeletedSegment]:
        if isinstance(before, datetime):
            ticks_of(before)  # which refuses one without a zone
        asked = {"before": before, "partition": partition, "dry_run": dry_run, "changes": changes}
        body = msgspec.json.encode(asked)
        return _decode_deleted(self.transport.call("POST", ("topic", topic, "retain"), body=body, repeat=dry_run).body)

    def after_fork(self) -> None:
        """Use other producers in a forked child, where this is called automatically."""
        self._appends.after_fork()
        self._queue.after_fork()

    def close(self) -> None:
        """Close consumers and all connections. May be called twice."""
        try:
            for member in list(self.members):
                member.close()
            self._queue.close()
        finally:
            self.transport.close()

    def _batches(self, request: Read, query: Mapping[str, Any] = NOTHING, uuid: UUID | None = None) -> RemoteBatches:
        """Begin a read. `uuid` is that of the topic, where it must be the same as before."""
        asked = {
            **position_query(request.start, request.end),
            "reverse": request.reverse or None,
            "type": request.type,
            "key": request.key,
            "match": None if request.match is None else given.encode_json(request.match),
            **query,
        }
        memory = self._limits.blob_bytes_in_memory
        return RemoteBatches(self.transport, request.topic, asked, request.partition, memory, uuid)

    def _reached(self, sync: bool | None) -> Durability:
        """Return the durability that an append waits for."""
        return self._durability if sync is None else "fsync" if sync else "os"


def delete(transport: Transport, path: tuple[str, ...]) -> None:
    """Delete something. After a retry, because the response was lost, it may be gone already."""
    try:
        transport.call("DELETE", path, repeat=True)
    except NotFound as error:
        if not error.facts.get("again"):
            raise


def _after_fork() -> None:
    for remote in list(_remotes):
        remote.after_fork()


os.register_at_fork(after_in_child=_after_fork)

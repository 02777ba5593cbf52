"""What a replica asks a server (docs/HTTP.md, "Replication"): its topics, what follows, producers, huge events."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from headwater.event import Blob
from headwater.format import producers, replication
from headwater.format.batch import Batch
from headwater.format.names import log_uuid
from headwater.format.producers import ProducerState
from headwater.format.replication import LogRequest, ReplicationRequest, ReplicationResponse, TopicState
from headwater.remote.reading import RemoteBlob
from headwater.remote.transport import JSON, Transport

_encode = msgspec.json.Encoder().encode


class RemoteSource:
    """A server as a source. Safe from any thread; raises what any request may, and Corrupt for a damaged answer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._uuids: dict[str, str] = {}  # of topics, as they were last told

    @property
    def uuid(self) -> str:
        """Return what identifies the log that is served."""
        told: str = self._transport.json("GET", ("version",), repeat=True)["uuid"]
        return told

    def topics(self) -> list[TopicState]:
        """Return all topics that one may read."""
        found = replication.decode_topics(self._transport.call("GET", ("replication", "topics"), repeat=True).body)
        self._uuids = {topic.name: topic.uuid for topic in found}
        return found

    def more(self, logs: Sequence[LogRequest], bytes_max: int, wait_s: float) -> ReplicationResponse:
        """Return what follows in these logs, as soon as there is anything."""
        asked = ReplicationRequest(list(logs), bytes_max, int(wait_s * 1000))
        path, headers = ("replication", "batches"), {"Content-Type": JSON}
        answer = self._transport.call("POST", path, body=_encode(asked), headers=headers, repeat=True)
        return replication.decode(answer.body, logs)

    def blob(self, topic: str, partition: int, batch: Batch) -> Blob:
        """Return the data of a huge event."""
        return RemoteBlob(self._transport, topic, partition, batch.base_offset, batch.blob_reference())

    def producers(self, topic: str, partition: int) -> dict[str, ProducerState]:
        """Return what is remembered of the producers of a log."""
        query = {"partition": partition}
        answer = self._transport.call("GET", ("topic", topic, "producers"), query, repeat=True)
        uuid = log_uuid(UUID(self._uuids[topic]), partition)
        return producers.decode(answer.body, uuid, int(answer.headers.get("headwater-from", "-1")))

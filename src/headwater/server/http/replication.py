"""The API for replicas: topics, the next batches of logs, and the state of producers."""

from __future__ import annotations

from functools import partial

import msgspec

from headwater.errors import Invalid
from headwater.format import producers, replication
from headwater.limits import PARTITIONS_MAX, REPLICA_BYTES_MAX, REPLICA_LOGS_MAX, REPLICA_WAIT_MS_MAX
from headwater.server.access import require
from headwater.server.http.message import Request, Response, json
from headwater.server.service import Service
from headwater.server.wire.decoding import decoded

_QUESTION_BYTES_MAX = 8 * 1024 * 1024


async def list_topics(service: Service, request: Request) -> Response:
    """Return all topics that the user may read, and where their logs begin and end."""
    found = await service.blocking(service.replicas.source.topics, lambda name: request.user.may("read", name))
    return json(msgspec.to_builtins(found))


async def batches(service: Service, request: Request) -> Response:
    """Return the batches that follow in some logs."""
    asked = decoded(replication.decode_question, await request.body(_QUESTION_BYTES_MAX))
    if len(asked.logs) > REPLICA_LOGS_MAX:
        raise Invalid(f"the request names {len(asked.logs)} logs; the limit is {REPLICA_LOGS_MAX}", code="bad_body")
    for name in {wanted.topic for wanted in asked.logs}:
        require(request.user, request.action(), name)
    bytes_max, wait_s = min(asked.bytes_max, REPLICA_BYTES_MAX), min(asked.wait_ms, REPLICA_WAIT_MS_MAX) / 1000
    ask = partial(service.replicas.source.more, asked.logs, bytes_max, wait_s)
    answer = await service.loop.run_in_executor(service.replicas.threads, ask)
    body = await service.blocking(replication.encode, answer)
    return Response(200, (("content-type", replication.MEDIA_TYPE),), body)


async def remembered(service: Service, request: Request) -> Response:
    """Return the producers that one log remembers, as a snapshot as of its end."""
    partition = request.query.number("partition", 0, most=PARTITIONS_MAX) or 0

    def read() -> tuple[int, bytes]:
        log = service.backend.partition_log(request.name, partition)
        end, known = log.producers()
        return end, producers.encode(log.place.uuid, end, known)

    end, snapshot = await service.blocking(read)
    return Response(200, (("content-type", "application/octet-stream"), ("headwater-from", str(end))), snapshot)

"""Events that could not be handled: moved to `<topic>.dead` with the error, and brought back from there.

A dead event keeps type, key, data, content and meta; its meta says what became of it, under names that begin with
`dead_`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.consumers.log_consumer import LogConsumer
from headwater.errors import Invalid, NotFound, TooLarge
from headwater.event import Event
from headwater.format import given
from headwater.format.settings import TopicSettings
from headwater.log.log_backend import LogBackend
from headwater.requests import Append, Consume

SUFFIX = ".dead"
PREFIX = "dead_"
REPLAY = "headwater.replay"  # the consumer that remembers what was brought back
ERROR_CHARACTERS_MAX = 1000


def set_aside(backend: LogBackend[Any], consumer: LogConsumer, event: Event, error: object) -> None:
    """Append an event to the dead ones and move the cursor past it, in one transaction.

    One that is huge, or has older ones before it that are not acked, and all where transactions cannot ack, is appended
    first: a process that dies before its ack is stored sets it aside again.
    """
    topic = event.topic + SUFFIX
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    meta = {
        PREFIX + "error": text[:ERROR_CHARACTERS_MAX].encode(errors="replace").decode(),
        PREFIX + "topic": event.topic,
        PREFIX + "partition": str(event.partition),
        PREFIX + "offset": str(event.offset),
        PREFIX + "consumer": consumer.name,
        PREFIX + "failures": str(consumer.failures(event)),
    }
    if topic not in backend.topics():
        data_bytes_max = backend.topic(event.topic).settings.data_bytes_max
        backend.create(topic, 1, TopicSettings(data_bytes_max=data_bytes_max))
    try:
        _append_and_ack(backend, consumer, topic, event, event.meta | meta)
    except TooLarge as refused:
        if refused.limit != "meta_bytes_max":
            raise
        _append_and_ack(backend, consumer, topic, event, meta)  # what became of it matters more than its own meta


def replay(backend: LogBackend[Any], join: Callable[[Consume], LogConsumer], topic: str, consumer: str | None) -> int:
    """Append the dead events of a topic to it again, and return how many; a second time brings back only newer ones.

    With `consumer`, only what that one dead-lettered; the others are then passed over for good.
    """
    partitions = backend.topic(topic).partitions
    brought = 0
    try:
        dead = join(Consume(REPLAY, topic + SUFFIX))
    except NotFound:
        return 0
    with dead:
        for event in dead.drain():
            meta = event.meta
            if consumer is None or meta.get(PREFIX + "consumer") == consumer:
                number = int(meta.get(PREFIX + "partition", "0"))
                own = {name: value for name, value in meta.items() if not name.startswith(PREFIX)}
                partition = number if event.key is None and number < partitions else None
                _append_and_ack(backend, dead, topic, event, own, partition)
                brought += 1
            else:
                dead.ack(event)
    return brought


def _append_and_ack(
    backend: LogBackend[Any],
    consumer: LogConsumer,
    topic: str,
    event: Event,
    meta: dict[str, str],
    partition: int | None = None,
) -> None:
    """Append an event to another topic, and ack it here: in one transaction if that can be."""
    data = event.data if event.data is not None else event.chunks()
    kept: dict[str, Any] = {
        "type": given.encode_type(event.type),
        "key": event.key,
        "meta": given.encode_meta(meta, backend.limits),
        "partition": partition,
        "sync": True,
        "as_stored": True,  # also if it was stored before its content was checked
    }
    request = Append(topic, data, event.content, **kept)
    try:
        if consumer.transactional and event.data is not None and len(event.data) <= backend.limits.blob_bytes_min:
            with backend.transaction(None, None) as tx:
                tx.add(request)
                tx.ack(event, consumer=consumer)
            return
    except Invalid as error:
        if error.code != "ack_order":
            raise
    backend.append(request)
    consumer.ack(event)
    consumer.store()

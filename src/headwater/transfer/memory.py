"""The events of a batch with their data in memory, which is what a line, a message or a row holds."""

from __future__ import annotations

from headwater.errors import TooLarge
from headwater.event import Event
from headwater.format.events import EventBatch


def events_of(batch: EventBatch) -> list[Event]:
    """Return the events. Raises TooLarge for a huge one rather than write it without its data."""
    events = batch.events()
    if len(events) == 1 and events[0].data is None:
        raise too_large(events[0], "blob_bytes_in_memory", batch.log.blob_bytes_in_memory)
    return events


def too_large(event: Event, limit: str, maximum: int) -> TooLarge:
    """That an event does not fit into an export, with its place."""
    hints = {"blob_bytes_in_memory": "raise that limit, or leave the event out and save its data separately"}
    return TooLarge(
        f"event {event.partition}:{event.offset} of topic {event.topic!r} has {event.size} bytes of data, "
        f"and an export can hold up to {maximum}",
        hint=hints.get(limit, "use another format"),
        limit=limit,
        maximum=maximum,
        size=event.size,
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
    )

"""A function that is woken by a bucket: an AWS Lambda handler that drains one topic for one consumer.

Set in the environment of the function:

    HEADWATER_LOG          s3://bucket/prefix, the log
    HEADWATER_TOPIC        the topic
    HEADWATER_CONSUMER     the consumer's name
    HEADWATER_COORDINATOR  dynamodb://table?region=…, if cursors are to be kept there instead of in the bucket
    HEADWATER_LEASE_MS     how long what a killed invocation held stays held (10000)

and replace `handle` by what is to be done with an event. It may be called more than once for the same event: make it
idempotent, for instance by the event's topic, partition and offset.

The bucket may notify the function itself, or a queue (SQS) that the function reads. docs/BUCKET.md, "A function that is
woken by the bucket", has the notification's filter, the rights that are needed, and why nothing is left behind.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import headwater

RESERVE_S = 5.0  # of the time that is left, for committing and giving everything back
EVENTS_OBJECT = re.compile(r"topics/(?P<topic>[^/]+)/[^/]+/events/[0-9]+/[0-9]{20}")


class MoreWaits(Exception):
    """Something is still waiting. Raised so that Lambda invokes the function again."""


def handle(event: headwater.Event) -> None:
    """What is to be done with an event. If it raises, the event comes again, and is set aside after a few times."""
    print(json.dumps({"topic": event.topic, "partition": event.partition, "offset": event.offset}))


def handler(notification: dict[str, Any], context: Any) -> dict[str, Any]:
    """Drain the topic, if a notification tells of an object of its events.

    When more is waiting than there was time for, or another invocation holds it, a queue's messages are told to come
    again; without a queue, MoreWaits has Lambda invoke the function again, a minute later.
    """
    topic = os.environ["HEADWATER_TOPIC"]
    if not any(wakes(key, topic) for key in created(notification)):
        return {"handled": 0, "more": False, "batchItemFailures": []}
    seconds = max(0.0, context.get_remaining_time_in_millis() / 1000 - RESERVE_S)
    lease_ms = int(os.environ.get("HEADWATER_LEASE_MS", "10000"))
    drained = log().drain(os.environ["HEADWATER_CONSUMER"], topic, handle, seconds=seconds, lease_ms=lease_ms)
    messages = [{"itemIdentifier": message["messageId"]} for message in queued(notification)]
    if drained.more and not messages:
        raise MoreWaits(f"{drained.handled} events were handled, and more is waiting")
    return {
        "handled": drained.handled,
        "more": drained.more,
        "batchItemFailures": messages if drained.more else [],
    }


@functools.cache
def log() -> Any:
    """The log, which stays open while this instance of the function is warm."""
    coordinator = os.environ.get("HEADWATER_COORDINATOR") or None
    return headwater.open(os.environ["HEADWATER_LOG"], mode="existing", coordinator=coordinator)


def created(notification: dict[str, Any]) -> Iterator[str]:
    """The keys of objects that a notification says were made in the log's bucket; those of a queue's messages, too."""
    bucket = urlsplit(os.environ["HEADWATER_LOG"]).netloc
    for record in records(notification):
        if record.get("eventSource") == "aws:sqs":
            yield from created(told(record))
        elif str(record.get("eventName", "")).startswith("ObjectCreated:"):
            place = record.get("s3", {})
            if place.get("bucket", {}).get("name") == bucket and "key" in place.get("object", {}):
                yield unquote_plus(place["object"]["key"])


def wakes(key: str, topic: str) -> bool:
    """Whether a key is that of an object of the topic's events: no record, segment or hint, and of no other log."""
    prefix = urlsplit(os.environ["HEADWATER_LOG"]).path.strip("/")
    found = EVENTS_OBJECT.fullmatch(key.removeprefix(f"{prefix}/") if prefix else key)
    return found is not None and unquote(found["topic"]) == topic


def queued(notification: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages, if a queue brought them."""
    return [record for record in records(notification) if record.get("eventSource") == "aws:sqs"]


def records(notification: Any) -> list[dict[str, Any]]:
    """The records of a notification; none of what is not one, such as the test event when it is set up."""
    found = notification.get("Records", []) if isinstance(notification, dict) else []
    return [record for record in found if isinstance(record, dict)] if isinstance(found, list) else []


def told(message: dict[str, Any]) -> dict[str, Any]:
    """The notification in a queue's message; an empty one if there is none."""
    try:
        found = json.loads(message.get("body", "{}"))
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""Draining a topic on a server for one consumer, and going again (docs/CONSUMERS.md)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headwater.consumers.remote_consumer import RemoteConsumer
from headwater.errors import Fenced
from headwater.event import Event


def drain(consumer: RemoteConsumer, handler: Callable[[Event], object], seconds: float | None) -> int:
    """Hand events to `handler` until the consumer has caught up, or the time is over; returns how many were handled.

    All acks are durable when it returns, and the consumer is closed.
    """
    until_s = None if seconds is None else time.monotonic() + seconds
    end = None if seconds is None else threading.Timer(seconds, consumer.stop)
    if end is not None:
        end.start()
    handled = 0
    try:
        with consumer:
            for event in consumer.drain():
                if until_s is not None and time.monotonic() >= until_s:
                    break
                handled += _handled(consumer, handler, event)
    finally:
        if end is not None:
            end.cancel()
    return handled


def _handled(consumer: RemoteConsumer, handler: Callable[[Event], object], event: Event) -> bool:
    try:
        handler(event)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told with the event
        failed: Exception | None = error
    else:
        failed = None
    try:
        if failed is not None:
            consumer.fail(event, failed)
        else:
            consumer.ack(event)
    except Fenced:  # another process has it now
        return False
    return failed is None

"""Draining a topic for one consumer and going again: for a function that is woken when there is something to do.

Whoever drains is a guest: it takes what is free and behind, hands all of it to a handler, commits and gives everything
back. Nothing is left behind in silence: what is waiting is looked for after everything was given back. So of two who
drain at once, the one that looks last sees what the other one had just missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headwater.consumers.leases import Leases
from headwater.consumers.log_consumer import LogConsumer
from headwater.disk.disk import Clock
from headwater.errors import Fenced
from headwater.event import Event
from headwater.info import DrainResult
from headwater.log.log import Log


def drain(
    join: Callable[[Leases], LogConsumer],
    leases: Leases,
    logs: Sequence[Log],
    handler: Callable[[Event], object],
    seconds: float | None,
    clock: Clock,
) -> DrainResult:
    """Hand the events of these logs to `handler` until the consumer has caught up, or the time is over.

    Without `seconds`, caught up means: with what was there at the call. With them, it looks again when it is there.
    """
    until_s = math.inf if seconds is None else clock.monotonic() + seconds
    handled = 0
    behind = _behind(leases, logs)
    if not behind:
        return DrainResult(0, False)
    with join(leases) as consumer:
        while behind:
            some = _handle(consumer, behind, handler, until_s, clock)
            handled += some
            if seconds is None or not some or clock.monotonic() >= until_s:
                break
            places = consumer.places
            ends = _ends([log for log in logs if log.partition in places])
            behind = {number: end for number, end in ends.items() if end > places[number]}
    # After everything was given back: what came before that, this look finds; what comes later finds it free.
    return DrainResult(handled, bool(_behind(leases, logs)))


def _handle(
    consumer: LogConsumer, ends: dict[int, int], handler: Callable[[Event], object], until_s: float, clock: Clock
) -> int:
    """Handle events up to these ends; returns how many."""
    handled = 0
    for event in consumer.catch_up(ends, until_s):
        if clock.monotonic() >= until_s:  # it was not handled, and comes again
            break
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
                handled += 1
        except Fenced:  # another process has it now
            continue
    return handled


def _ends(logs: Sequence[Log]) -> dict[int, int]:
    return {log.partition: log.end() for log in logs}


def _behind(leases: Leases, logs: Sequence[Log]) -> dict[int, int]:
    """Return the partitions in which something waits, and their ends. One whose cursor cannot be read is among them."""
    stored = leases.peek([log.partition for log in logs])
    ends = _ends(logs)
    return {number: end for number, end in ends.items() if number not in stored or stored[number].cursor < end}

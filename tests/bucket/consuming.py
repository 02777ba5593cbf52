"""A program that reads as a member of a consumer until it is told to end, and notes what it was granted and handed.

`python consuming.py <log> <coordinator or -> <file> <lease_ms> [<stop_at>]`. With `stop_at`, it stops itself when it is
handed an event with that offset, until somebody lets it go on. Lines of the file: `grant partition fence owner`,
`event partition offset fence`, `refused partition offset`, each written at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

import headwater
from headwater.consumers.coordinated_leases import CoordinatedLeases
from headwater.consumers.leases import Round


def main(log: str, coordinator: str, file: str, lease_ms: str, stop_at: str = "-1") -> None:
    notes = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))

    def note(*words: object) -> None:
        os.write(notes, (" ".join(map(str, words)) + "\n").encode())

    tend = CoordinatedLeases.tend

    def noted(self: CoordinatedLeases, held: dict[int, int], *, claim: bool) -> Round:
        found = tend(self, held, claim=claim)
        for each in found.claimed:
            note("grant", each.partition, each.standing.fence, self.id.hex())
        return found

    CoordinatedLeases.tend = noted  # type: ignore[method-assign]
    limits = headwater.Limits(bucket_ack_ms=50, follow_ms=20, follow_ms_max=200, lease_ms=int(lease_ms))
    given: Any = {"coordinator": None if coordinator == "-" else coordinator, "limits": limits}
    note("begun")
    while not over:
        with (
            contextlib.suppress(headwater.Unavailable),  # the servers are shaky
            headwater.open(log, **given) as hw,
            hw.consumer("c", "t", timeout=0.5) as consumer,
        ):
            while not over:
                for event in consumer:
                    fence = consumer.fences.get(event.partition, 0)
                    note("event", event.partition, event.offset, fence)
                    if event.offset == int(stop_at):
                        os.kill(os.getpid(), signal.SIGSTOP)
                    try:
                        consumer.ack(event)
                    except headwater.Fenced:
                        note("refused", event.partition, event.offset)
                    if over:
                        break


if __name__ == "__main__":
    main(*sys.argv[1:])

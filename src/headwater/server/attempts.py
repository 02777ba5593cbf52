"""Limits attempts to guess passwords: failures of each address, and concurrent checks.

Each address has an allowance of failures that refills with time. Memory use is bounded. Safe from any
thread.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
from collections.abc import Iterator
from threading import BoundedSemaphore, Lock

from headwater.disk.disk import Clock
from headwater.errors import Unavailable
from headwater.limits import ServerLimits


class Attempts:
    """The failures of each address, and turns to check a password."""

    def __init__(self, limits: ServerLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._mutex = Lock()  # protects what follows
        self._free_at: dict[
            str, float
        ] = {}  # when all failures of an address are forgotten; the last to fail at the end
        self._queue = BoundedSemaphore(limits.password_queue_max)
        self._checks = BoundedSemaphore(limits.password_checks_max)

    @contextlib.contextmanager
    def turn(self, address: str) -> Iterator[None]:
        """Wait for a turn to check a password; raises Unavailable if there were too many failures, or too many wait."""
        self._admit(_network(address))
        if not self._queue.acquire(blocking=False):
            raise Unavailable("too many passwords are waiting to be checked", hint="try again soon", code="overloaded")
        try:
            with self._checks:
                yield
        finally:
            self._queue.release()

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        network, now = _network(address), self._clock.monotonic()
        with self._mutex:
            since = max(self._free_at.pop(network, now), now)
            self._free_at[network] = since + self._limits.password_retry_s
            if len(self._free_at) > self._limits.password_addresses_max:
                self._free_at.pop(next(iter(self._free_at)))

    def _admit(self, network: str) -> None:
        allowed = self._limits.password_retry_s * (self._limits.password_failures_max - 1)
        wait_s = self._free_at.get(network, -math.inf) - self._clock.monotonic() - allowed
        if wait_s > 0:
            raise Unavailable(
                f"too many wrong passwords from {network}",
                hint=f"wait {math.ceil(wait_s)} s; tokens are not limited",
                code="too_many_failures",
                retry_s=math.ceil(wait_s),
            )


def _network(address: str) -> str:
    """Whose failures are counted together: one address, or the 2^64 of IPv6 that one customer has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found.packed, 64), strict=False))

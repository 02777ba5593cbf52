"""The settings of `headwater serve`."""

from __future__ import annotations

import msgspec

from headwater.limits import MIB, SERVER_DEFAULTS, ServerLimits


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """The topic behind `/api/events`, and its retention."""

    topic: str = "events"
    segments: int = 16  # with the size below, a gigabyte of the newest events
    segment_bytes: int = 64 * MIB


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server. `origins` are the web origins that may call it from a browser, "*" for all."""

    bus: Bus = Bus()
    origins: tuple[str, ...] = ()
    limits: ServerLimits = SERVER_DEFAULTS
    app: str | None = None  # a module with an application, which is run beside the server
    heartbeat_s: float = 5.0  # how often an idle stream says that it is alive: some clients give up after 10 s
    check_host: bool = False  # refuse names that are not this machine's own: a web site could take one to get in

"""The table of handlers by frame type. The connection itself handles EMIT, CONNECT and frames without a response."""

from __future__ import annotations

from headwater.server.tcp import querying, sessions, subscribing
from headwater.server.tcp.connection import Handler

HANDLERS: dict[str, Handler] = {
    "COMMITTX": sessions.commit,
    "QUERY": querying.query,
    "SUBSCRIBE": subscribing.subscribe,
    "UNSUBSCRIBE": subscribing.unsubscribe,
}

"""The table of requests: who answers which frame. EMIT, CONNECT and what has no answer are the connection's own."""

from __future__ import annotations

from headwater.server.tcp import querying, sessions, subscribing
from headwater.server.tcp.connection import Handler

HANDLERS: dict[str, Handler] = {
    "COMMITTX": sessions.commit,
    "QUERY": querying.query,
    "SUBSCRIBE": subscribing.subscribe,
    "UNSUBSCRIBE": subscribing.unsubscribe,
}

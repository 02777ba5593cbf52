"""The handlers of frames by type, and those of CONNECT and PING themselves.

The connection handles EMIT (emit.py) and the frames without a response (acks.py) itself. Belongs to the loop's thread.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import headwater
from headwater.errors import Unsupported
from headwater.format import protocol
from headwater.server.tcp import querying, sessions, subscribing
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import OK, FrameFields, response

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection


async def connect(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """Check the protocol version and authenticate the client; raises Denied, Unsupported and Invalid."""
    fields = FrameFields("CONNECT", frame, ("version", "username", "password", "token"))
    if connection.connected:
        raise fields.wrong("may be sent only once")
    version = fields.text("version", needed=True) or ""
    if version.partition(".")[0] != protocol.VERSION.partition(".")[0]:
        raise Unsupported(
            f"unsupported protocol version {version[:40]!r}",
            hint=f"use version {protocol.VERSION}",
            code="unsupported_version",
        )
    headers = _credentials(fields)
    service = connection.service
    user = service.access.known(headers, connection.client)
    if user is None:
        user = await service.blocking(service.access.check, headers, connection.client)
    connection.headers, connection.user_name = headers, user.name
    connection.connected = True
    told: dict[str, Any] = {"version": protocol.VERSION, "server": f"headwater/{headwater.__version__}"}
    told["uuid"] = str(service.backend.uuid)
    if service.ignored(headers):
        told["credentialsChecked"] = False
    return AnswerSlot(response(**told))


def _credentials(fields: FrameFields) -> dict[str, str]:
    """Return the credentials of a CONNECT as the headers of an HTTP request."""
    name, password, token = fields.text("username"), fields.text("password"), fields.text("token")
    if token is not None:
        if name is not None or password is not None:
            raise fields.wrong("has a token and a user", hint="give only one of them")
        return {"authorization": f"Bearer {token}"}
    if name is None and password is None:
        return {}
    if name is None or password is None or ":" in name:
        raise fields.wrong("needs both 'username' and 'password'", hint="the name must not contain a colon")
    return {"authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}


def ping(connection: TcpConnection, frame: dict[str, Any]) -> bytes:
    """Return the response to a PING, which has no fields."""
    del connection
    FrameFields("PING", frame, ())
    return OK


Handler = Callable[["TcpConnection", dict[str, Any]], Awaitable[AnswerSlot]]

AT_ONCE: dict[str, Callable[[TcpConnection, dict[str, Any]], bytes]] = {
    "PING": ping,
    "STARTTX": sessions.start,
    "ABORTTX": sessions.abort,
}
"""Handlers that return their response without waiting for anything."""

HANDLERS: dict[str, Handler] = {
    "COMMITTX": sessions.commit,
    "QUERY": querying.query,
    "SUBSCRIBE": subscribing.subscribe,
    "UNSUBSCRIBE": subscribing.unsubscribe,
}
"""Handlers that wait for something, and have the connection for themselves meanwhile."""

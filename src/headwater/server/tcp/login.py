"""CONNECT: the protocol version, and the client's credentials."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import headwater
from headwater.errors import Unsupported
from headwater.format import protocol
from headwater.server.tcp.answers import response
from headwater.server.tcp.fields import FrameFields
from headwater.server.tcp.slots import AnswerSlot

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection


async def connect(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """Tell the connection who is at its other end; raises Denied, and what else is against it."""
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
    """What CONNECT says of who it is, as the headers of HTTP would."""
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

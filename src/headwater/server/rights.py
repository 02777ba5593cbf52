"""The table of rights that HTTP requests and TCP frames need, shared by both protocols.

docs/SECURITY.md lists the same, and a test compares them. Where the right is of something that is not in the address
of a request, as of each topic of a transaction, its handler asks for it, by the name of its row here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headwater.server.scopes import ACTIONS, Action

Needed = Action | Literal["user"] | None
Of = Literal["", "topic", "each topic", "bus", "all topics", "binder", "query"]


class Right(NamedTuple):
    """The right that a request needs: an action on a resource; "user" needs only authentication, None nothing."""

    needed: Needed
    of: Of = ""


_OPEN = Right(None)
_USER = Right("user")
_READ = Right("read", "topic")
_APPEND = Right("append", "topic")
_ADMIN = Right("admin", "topic")
_BINDER = Right("read", "binder")

RIGHTS: dict[str, Right] = {
    "GET /topics": _USER,  # of which it lists those that the user may read, as the other lists do
    "PUT /topic/{name}": _APPEND,
    "GET /topic/{name}": _READ,
    "DELETE /topic/{name}": _ADMIN,
    "GET /topic/{name}/version": _READ,
    "POST /topic/{name}/sync": _APPEND,
    "POST /topic/{name}/retain": _ADMIN,
    "POST /topic/{name}/replay": _ADMIN,
    "POST /topic/{name}/items": _APPEND,
    "GET /topic/{name}/items": _READ,
    "GET /topic/{name}/splits": _READ,
    "GET /topic/{name}/producers": _READ,
    "GET /replication/topics": _USER,
    "POST /replication/batches": Right("read", "each topic"),
    "POST /transaction": Right("append", "each topic"),
    "POST /transaction with acks": Right("read", "each topic"),
    "GET /consumers": _USER,
    "POST /consumer/{name}/{topic}/items": _READ,
    "POST /consumer/{name}/{topic}/acks": _READ,
    "POST /consumer/{name}/{topic}/acks with seek": _ADMIN,
    "POST /consumer/{name}/{topic}/seek": _ADMIN,
    "DELETE /consumer/{name}/{topic}": _ADMIN,
    "POST /api/events": Right("append", "bus"),
    "GET /api/events": Right("read", "bus"),
    "GET /binders": _USER,
    "GET /binders/{binder}": _BINDER,
    "POST /binders/{binder}/query": _BINDER,
    "GET /binders/{binder}/changes": _BINDER,
    "POST /binders/{binder}/index": Right("admin", "binder"),
    "GET /binders/{binder}/{id}": _BINDER,
    "GET /views": _USER,
    "POST /query/{query}": Right("read", "query"),
    "GET /health": _OPEN,
    "GET /version": _OPEN,
    "GET /metrics": Right("read", "all topics"),
    "GET /openapi.json": _OPEN,
    "CONNECT": _OPEN,
    "PING": _USER,
    "EMIT": _APPEND,
    "STARTTX": _USER,
    "ABORTTX": _USER,
    "COMMITTX": Right("append", "each topic"),
    "SUBSCRIBE": _READ,
    "SUBSCRIBE with binder": _BINDER,
    "ACKEV": _USER,
    "UNSUBSCRIBE": _USER,
    "UNSUBSCRIBE with delete": _ADMIN,
    "QUERY": _BINDER,
    "QUERYACK": _USER,
}


def action_of(request: str) -> Action:
    """Return the action that a request needs which needs one; `request` is the name of a row."""
    needed = RIGHTS[request].needed
    assert needed in ACTIONS
    return needed

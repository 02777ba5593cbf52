"""`GET /topic/{name}/items`: the events of a topic in the format that `Accept` names, to an end, or as they come."""

from __future__ import annotations

from headwater.errors import Unsupported
from headwater.server.http.message import Request, Response
from headwater.server.store import Store


async def read(store: Store, request: Request) -> Response:
    """The events that the query asks for."""
    raise Unsupported("reading is not there yet")

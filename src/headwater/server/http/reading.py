"""`GET /topic/{name}/items`: the events of a topic in the format that `Accept` names."""

from __future__ import annotations

from headwater.server.http.message import Request, Response
from headwater.server.store import Store


async def read(store: Store, request: Request) -> Response:
    """The events that the query asks for."""
    raise NotImplementedError

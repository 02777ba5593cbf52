"""Views over HTTP: the state of projections and functions, and named queries, which the application answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from headwater.errors import NotFound
from headwater.server.http.message import JSON, Request, Response, json
from headwater.server.service import Service
from headwater.server.wire.decoding import decoded
from headwater.server.wire.encodings import HUGE_BYTES, SLICE_BYTES

_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


async def list_views(service: Service, request: Request) -> Response:
    """Return how each projection and function is, of those whose topic the user may read."""
    found = await service.blocking(service.store.views)
    return json([each for each in found if request.user.may("read", each.topic)])


async def ask(service: Service, request: Request) -> Response:
    """Ask a query with a name."""
    arguments = decoded(_decode_arguments, await request.body(service.limits.query_bytes_max) or b"{}")
    if service.application is None:
        raise NotFound(
            f"no query {request.name!r}: the server runs no application",
            hint="start it with --app",
            code="no_such_query",
        )
    answer = await service.application.ask(request.name, arguments)
    if len(answer) <= HUGE_BYTES:
        return Response(200, (("content-type", JSON),), answer)
    service.budget.check(len(answer))
    return Response(200, (("content-type", JSON),), _slices(service, answer))


async def _slices(service: Service, answer: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a large answer in slices. It cannot be made again, so it counts as held in memory until it is sent."""
    service.budget.count(len(answer))
    try:
        for at in range(0, len(answer), SLICE_BYTES):
            yield answer[at : at + SLICE_BYTES]
    finally:
        service.budget.count(-len(answer))

"""The event bus at `/api/events`: publish an event with a type, and follow all events live, as server-sent events.

It is one topic, made with its first event, which keeps its newest segments. One that is there is used as it is.
"""

from __future__ import annotations

from headwater.errors import Invalid, NotFound
from headwater.event import Ref
from headwater.requests import Append
from headwater.server.http import sse
from headwater.server.http.message import Request, Response, json
from headwater.server.service import Service

_LINE_ENDS = frozenset("\r\n\0")  # what the name of a server-sent event cannot hold


async def publish(service: Service, request: Request) -> Response:
    """Append an event; answered with its id when it is durable."""
    type = request.query.text("type")
    if not type:
        raise Invalid("the parameter 'type' is missing", hint="add it, as in ?type=placed", code="bad_parameter")
    if not _LINE_ENDS.isdisjoint(type):
        raise Invalid("a type on the bus must be a single line", code="bad_parameter")
    data = await request.body(service.backend.limits.data_bytes_max)
    try:
        ref = await _append(service, type, data)
    except NotFound:
        await service.make(service.settings.bus.topic)
        ref = await _append(service, type, data)
    except Invalid as error:
        if error.code != "not_utf8":
            raise
        hint = "the bus carries text; encode other bytes, for example as base64"
        raise Invalid(error.message, hint=hint, code="not_utf8") from error
    return json({"id": str(ref.id)})


async def follow(service: Service, request: Request) -> Response:
    """Return the events after the last that the client had, or from the oldest on, then those that come.

    Before the first event there is no bus; a GET makes none, but waits for it.
    """
    query = request.query
    last, pattern = query.text("lastEventId"), query.text("typeMatcher")
    try:
        return await sse.respond(service, request, service.settings.bus.topic, last=last, type=pattern, bus=True)
    except NotFound as error:
        if error.code != "topic_not_found":
            raise
        return sse.respond_later(service, request, service.settings.bus.topic, last=last, type=pattern)


async def _append(service: Service, type: str, data: bytes) -> Ref:
    topic = service.settings.bus.topic
    request = Append.of(topic, data, service.backend.limits, type=type, content="text")
    if len(data) > service.backend.limits.blob_bytes_min:  # too large to wait in memory for a commit with others
        return await service.blocking(service.backend.append, request)
    return await service.commits.append(request)

"""The event bus at `/api/events`: publish an event with a type, and follow all events live, as server-sent events.

It is one topic, made with its first event, which keeps its newest segments. One that is there is used as it is.
"""

from __future__ import annotations

from headwater.errors import Invalid, NotFound
from headwater.event import Ref
from headwater.requests import Append
from headwater.server.http import sse
from headwater.server.http.message import Request, Response, json
from headwater.server.store import ServedLog

_LINE_ENDS = frozenset("\r\n\0")  # what the name of a server-sent event cannot hold


async def publish(store: ServedLog, request: Request) -> Response:
    """Append an event; answered with its id when it is durable."""
    type = request.query.text("type")
    if not type:
        raise Invalid("the parameter 'type' is missing", hint="say what happened: ?type=placed", code="bad_parameter")
    if not _LINE_ENDS.isdisjoint(type):
        raise Invalid("a type on the bus is one line", code="bad_parameter")
    data = await request.body(store.engine.limits.data_bytes_max)
    try:
        ref = await _append(store, type, data)
    except NotFound:
        await store.make(store.settings.bus.topic)
        ref = await _append(store, type, data)
    except Invalid as error:
        if error.code != "not_utf8":
            raise
        hint = "the bus carries text; encode other bytes, for example as base64"
        raise Invalid(error.message, hint=hint, code="not_utf8") from error
    return json({"id": str(ref.id)})


async def follow(store: ServedLog, request: Request) -> Response:
    """The events after the last that the client had, or from the oldest on, then those that come.

    Before the first event there is no bus; a GET makes none, but waits for it.
    """
    query = request.query
    last, pattern = query.text("lastEventId"), query.text("typeMatcher")
    try:
        return await sse.respond(store, request, store.settings.bus.topic, last=last, type=pattern, bus=True)
    except NotFound as error:
        if error.code != "topic_not_found":
            raise
        return sse.respond_later(store, request, store.settings.bus.topic, last=last, type=pattern)


async def _append(store: ServedLog, type: str, data: bytes) -> Ref:
    topic = store.settings.bus.topic
    request = Append.of(topic, data, store.engine.limits, type=type, content="text")
    if len(data) > store.engine.limits.blob_bytes_min:  # too large to wait in memory for a commit with others
        return await store.blocking(store.engine.submit, request)
    return await store.commits.append(request)

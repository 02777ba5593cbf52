"""Appends of one small item, answered without a task and by the thread that committed them.

A request that has arrived whole is checked and decoded by the same functions as any other (`HttpApplication`,
`appending.item_of`). If it is one small item and its user is known, it is submitted at once, and the committing thread
writes the response. Everything else is left to a task, which also reports what is wrong. Belongs to the loop's thread,
except `PromptAppends.write`.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.event import id_text
from headwater.log.pending import PendingAppend
from headwater.server import prompt
from headwater.server.commits import Group
from headwater.server.http import appending
from headwater.server.http.message import Request, whole

if TYPE_CHECKING:
    from headwater.server.http.app import HttpApplication
    from headwater.server.http.protocol import ServerConnection

_PLACE = (
    b"headwater-durability: %b\r\nheadwater-partition: %d\r\nheadwater-id: %b%%03x%b\r\ncontent-length: %%d\r\n\r\n%%b"
)


class PromptAppends:
    """The appends of one server that need no task."""

    def __init__(self, app: HttpApplication) -> None:
        self._app = app
        self._backend = app.service.backend
        self._access = app.service.access
        self._commits = app.service.commits
        self._metrics = app.service.metrics
        self._body_bytes_max = app.service.limits.body_bytes_max
        app.service.commits.write_answers(self.write)

    def take(self, connection: ServerConnection, request: Request, data: bytes) -> PromptAnswer | None:
        """Submit the append of one small item; None if the request needs a task, which also says what is wrong."""
        if request.failure is not None or len(data) > self._body_bytes_max:
            return None
        try:
            route = self._app.route_of(request)
            if route.handler is not appending.append:
                return None
            user = self._access.known(request.headers, request.client)
            if user is None:
                return None
            request.user = user
            self._app.authorize(request, route)
            content, options = appending.content_of(request), appending.options_of(request)
            asked = appending.item_of(request, data, content, options, self._backend.limits)
            if asked is None:
                return None
            waiting = self._backend.prepare(asked)
            answer = PromptAnswer(self, connection, request, waiting)
            if extra := self._app.headers_of(request):
                answer.headers = b"".join([f"{name}: {value}\r\n".encode("latin-1") for name, value in extra])
            self._commits.submit(waiting, answer)
        except (HeadwaterError, MemoryError):
            return None
        return answer

    def write(self, group: Group) -> None:
        """Make and write the responses of a group that was committed. Called in the thread that did it."""
        form, kind, ready = b"", None, []
        for waiting, answer in group:
            rows = waiting.rows
            if answer.__class__ is not PromptAnswer or rows.error is not None:
                continue
            ticks = rows.ticks
            if (ticks >> 12, rows.sync, waiting.log) != kind:
                form, kind = _form(waiting), (ticks >> 12, rows.sync, waiting.log)
            number = b"%d" % rows.offset
            answer.made = answer.connection.prompt_head + answer.headers + form % (ticks & 0x0FFF, len(number), number)
            ready.append(answer)
        prompt.write(ready)

    def finish(self, answer: PromptAnswer) -> None:
        """Do what is left when a response was written, or could not be."""
        answer.finished = True
        rows, connection, response = answer.waiting.rows, answer.connection, None
        if answer.written:
            connection.answered_promptly()
        elif rows.error is None:
            connection.answer_promptly(answer.made[answer.sent :])
        else:
            response = self._app.failure(rows.error)
            response.headers = (*response.headers, *self._app.headers_of(answer.request))
            connection.answer_at_once(response)
        request, seconds = answer.request, perf_counter() - answer.begun
        status = 200 if response is None else response.status
        sent = len(b"%d" % rows.offset) if response is None else len(whole(response))
        self._metrics.bytes_sent += sent
        self._metrics.route(request.method, request.pattern).answered(status, seconds)
        self._app.ended(request, status, answer.received, sent, seconds)


class PromptAnswer:
    """The response to one append. Called on the loop when the append has its offset or has failed."""

    __slots__ = (
        *("appends", "begun", "connection", "headers", "received", "request", "waiting", "way"),
        *("finished", "made", "sent", "written"),
    )

    def __init__(
        self, appends: PromptAppends, connection: ServerConnection, request: Request, waiting: PendingAppend
    ) -> None:
        self.appends = appends
        self.waiting = waiting
        self.connection = connection
        self.request = request
        self.received = waiting.rows.size
        self.headers = b""
        self.begun = perf_counter()
        self.way = connection.way()  # None if only the loop may write
        self.made = b""
        self.sent = 0  # bytes that were written
        self.written = False  # whether all were
        self.finished = False

    def __call__(self, _: PendingAppend) -> None:
        if not self.finished:
            self.appends.finish(self)


def _form(waiting: PendingAppend) -> bytes:
    """Return a response with gaps. The ids of a group differ in their last digits of time only."""
    log, rows = waiting.log, waiting.rows
    id = id_text(rows.ticks, log.node).encode()
    return _PLACE % (b"fsync" if rows.sync else b"os", log.place.partition, id[:15], id[18:])

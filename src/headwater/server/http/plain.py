"""Plain appends: the common request that appends one small item, answered without a task.

A client repeats the same head while only the body changes. So parsed heads are cached by their bytes, and a request
that starts with a known head is not parsed again. Access is checked for each request. Belongs to the loop's thread.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError
from headwater.event import Content, id_text
from headwater.log.pending import PendingAppend
from headwater.requests import Append
from headwater.server import prompt
from headwater.server.commits import Group
from headwater.server.http.appending import CONTENT_BY_MEDIA
from headwater.server.http.message import QueryParameters, whole
from headwater.server.http.target import parts_of
from headwater.server.rights import action_of

if TYPE_CHECKING:
    from headwater.server.http.app import HttpApplication
    from headwater.server.http.protocol import ServerConnection

PATTERN = "/topic/{name}/items"
APPEND = action_of(f"POST {PATTERN}")
PARAMETERS = ("type", "key", "partition", "durability")
HEADS_MAX = 4096  # heads that are remembered: one for each client and length of body
HEAD_BYTES_MAX = 1024  # so that they take 4 MiB at most
SLOW_HEADERS = frozenset(
    (
        "origin",
        "sec-fetch-site",
        "headwater-producer",
        "headwater-epoch",
        "headwater-seq",
        "headwater-meta",
        "ce-specversion",
        "content-encoding",
        "expect",
    )
)
_PLACE = (
    b"headwater-durability: %b\r\nheadwater-partition: %d\r\nheadwater-id: %b%%03x%b\r\ncontent-length: %%d\r\n\r\n%%b"
)


class PlainHead:
    """The parsed head of a plain append. `length` is that of the body."""

    __slots__ = ("content", "headers", "length", "options", "topic", "url")

    def __init__(
        self, url: bytes, headers: dict[str, str], topic: str, content: Content, options: dict[str, Any]
    ) -> None:
        self.url = url
        self.headers = headers
        self.topic = topic
        self.content = content
        self.options = options
        self.length = 0


class PlainAppends:
    """The plain appends of one server."""

    def __init__(self, app: HttpApplication) -> None:
        self._app = app
        self._backend = app.service.backend
        self._access = app.service.access
        self._commits = app.service.commits
        self._metrics = app.service.metrics
        self._answered = app.service.metrics.route("POST", PATTERN).answered
        self._heads: dict[bytes, PlainHead] = {}
        app.service.commits.write_answers(self.write)

    def find(self, connection: ServerConnection, data: bytes, end: int) -> PlainHead | None:
        """What a head means that ends at `end`, if the data is a whole request with a head that was seen before."""
        sent = data[:end]
        head = self._heads.get(sent)
        if head is None and sent == connection.secret_head[0]:
            head = connection.secret_head[1]
        return head if head is not None and len(data) - end == head.length else None

    def remember(self, connection: ServerConnection, data: bytes, head: PlainHead) -> None:
        """Remember the head that a request began with. The data is what came of it at once: not always all of it.

        One with a password or token is the connection's own, and forgotten with it.
        """
        end = data.find(b"\r\n\r\n") + 4
        if "key" in head.options:
            return  # it will be another one next time
        if end <= HEAD_BYTES_MAX and head.headers.get("content-length") == str(len(data) - end):
            head.length = len(data) - end
            if "authorization" in head.headers:
                connection.secret_head = data[:end], head
                return
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[data[:end]] = head

    def learn(self, url: bytes, headers: dict[str, str]) -> PlainHead | None:
        """What the head of a POST means; None if it is not that of a plain append."""
        content = CONTENT_BY_MEDIA.get(headers.get("content-type", ""))
        if content is None or not SLOW_HEADERS.isdisjoint(headers) or "host" not in headers:
            return None
        if self._app.service.ignored(headers):  # which the answer says
            return None
        try:
            path, raw_query = parts_of(url)
            if len(path) != 3 or path[0] != "topic" or path[2] != "items" or not path[1]:
                return None
            query = QueryParameters(raw_query).only(*PARAMETERS)
            options = {
                "type": query.text("type"),
                "key": query.data("key"),
                "partition": query.number("partition"),
                "durability": query.choice("durability", ("fsync", "os")),
            }
        except HeadwaterError:
            return None
        given = {name: value for name, value in options.items() if value is not None}
        return PlainHead(url, headers, path[1], content, given)

    def take(self, connection: ServerConnection, head: PlainHead, data: bytes) -> bool:
        """Append an item, and answer it with its group. False if it must be answered in full: that tells why."""
        client = connection.client
        user = self._access.known(head.headers, client)
        if user is None:
            return False
        if user is not connection.granted_user or head is not connection.granted_head:
            if not user.may(APPEND, head.topic) or not self._app.host_is_fine(head.headers, client):
                return False
            connection.granted_user, connection.granted_head = user, head
        try:
            limits = self._backend.limits
            waiting = self._backend.prepare(Append.of(head.topic, data, limits, content=head.content, **head.options))
            answer = PlainAnswer(self, connection, head, user.name, waiting)
            self._commits.submit(waiting, answer)
        except (HeadwaterError, MemoryError):
            return False
        connection.plain_answer = answer
        return True

    def write(self, group: Group) -> None:
        """Make and write the answers of a group that was committed. Called in the thread that did it."""
        form, kind, ready = b"", None, []
        for waiting, answer in group:
            rows = waiting.rows
            if answer.__class__ is not PlainAnswer or rows.error is not None:
                continue
            ticks = rows.ticks
            if (ticks >> 12, rows.sync) != kind:
                form, kind = _form(waiting), (ticks >> 12, rows.sync)
            number = b"%d" % rows.offset
            answer.made = answer.connection.plain_head + form % (ticks & 0x0FFF, len(number), number)
            ready.append(answer)
        prompt.write(ready)

    def finish(self, answer: PlainAnswer) -> None:
        """Do what is left when an answer was written, or could not be."""
        answer.finished = True
        rows, connection, response = answer.waiting.rows, answer.connection, None
        if answer.written:
            connection.answered_plainly()
        elif rows.error is None:
            connection.answer_plainly(answer.made[answer.sent :])
        else:
            response = self._app.failure(rows.error)
            connection.answer_at_once(response)
        status = 200 if response is None else response.status
        seconds = perf_counter() - answer.begun
        self._answered(status, seconds)
        access_log = self._metrics.access_log
        if access_log is not None:
            asked = connection.client.address, answer.user, "POST", answer.head.url.decode("latin-1"), PATTERN
            sent = len(str(rows.offset)) if response is None else len(whole(response))
            access_log.note(*asked, status, rows.size, sent, seconds)


class PlainAnswer:
    """The answer to one plain append. Called on the loop when the append has its offset or has failed."""

    __slots__ = (
        *("begun", "connection", "head", "plain", "user", "waiting", "way"),
        *("finished", "made", "sent", "written"),
    )

    def __init__(
        self, plain: PlainAppends, connection: ServerConnection, head: PlainHead, user: str, waiting: PendingAppend
    ) -> None:
        self.plain = plain
        self.waiting = waiting
        self.connection = connection
        self.head = head
        self.user = user
        self.begun = perf_counter()
        self.way = connection.way()  # None if only the loop may write
        self.made = b""
        self.sent = 0  # bytes that were written
        self.written = False  # whether all were
        self.finished = False

    def __call__(self, _: PendingAppend) -> None:
        if not self.finished:
            self.plain.finish(self)


def _form(waiting: PendingAppend) -> bytes:
    """Return an answer with gaps. The ids of a group differ in their last digits of time only."""
    log, rows = waiting.log, waiting.rows
    id = id_text(rows.ticks, log.node).encode()
    return _PLACE % (b"fsync" if rows.sync else b"os", log.place.partition, id[:15], id[18:])

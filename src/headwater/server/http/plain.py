"""Plain appends: one small item to a topic, as most requests are, answered without a task of their own.

A client sends the same head again and again, while only the body changes. So what the bytes of a head mean is
remembered, and a request that begins with them is not parsed any more. Who may do it is asked each time. Belongs to the
loop's thread.
"""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headwater.engine.waiting import Waiting
from headwater.errors import HeadwaterError
from headwater.event import Content, id_text
from headwater.server.http.appending import CONTENT_BY_MEDIA
from headwater.server.http.message import Query, whole
from headwater.server.http.target import parts_of
from headwater.storage.log import LocalLog

if TYPE_CHECKING:
    from headwater.server.http.app import App
    from headwater.server.http.protocol import Connection

PATTERN = "/topic/{name}/items"
PARAMETERS = ("type", "key", "partition", "durability")
HEADS_MAX = 4096  # heads that are remembered: one for each client and length of body
HEAD_BYTES_MAX = 1024  # so that they take 4 MiB at most
SLOW_HEADERS = frozenset(
    (
        "origin",
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

_log = logging.getLogger("headwater.server")


class Head:
    """What the head of a plain append means. `length` is that of the body."""

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

    def __init__(self, app: App) -> None:
        self._app = app
        self._engine = app.store.engine
        self._access = app.store.access
        self._commits = app.store.commits
        self._metrics = app.store.metrics
        self._answered = app.store.metrics.route("POST", PATTERN).answered
        self._heads: dict[bytes, Head] = {}
        self._ready: list[tuple[Connection, bytes]] = []  # answers that are to be written with their group
        self._kind: tuple[LocalLog, bool, int] | None = None
        self._form = b""  # of answers of that kind
        app.store.commits.after_group(self._send)

    def find(self, data: bytes, end: int) -> Head | None:
        """What a head means that ends at `end`, if the data is a whole request with a head that was seen before."""
        head = self._heads.get(data[:end])
        return head if head is not None and len(data) - end == head.length else None

    def remember(self, data: bytes, head: Head) -> None:
        """Remember the head that a request began with. The data is what came of it at once: not always all of it."""
        end = data.find(b"\r\n\r\n") + 4
        if "key" in head.options:
            return  # it will be another one next time
        if end <= HEAD_BYTES_MAX and head.headers.get("content-length") == str(len(data) - end):
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head.length = len(data) - end
            self._heads[data[:end]] = head

    def learn(self, url: bytes, headers: dict[str, str]) -> Head | None:
        """What the head of a POST means; None if it is not that of a plain append."""
        content = CONTENT_BY_MEDIA.get(headers.get("content-type", ""))
        if content is None or not SLOW_HEADERS.isdisjoint(headers) or "host" not in headers:
            return None
        try:
            path, raw_query = parts_of(url)
            if len(path) != 3 or path[0] != "topic" or path[2] != "items" or not path[1]:
                return None
            query = Query(raw_query).only(*PARAMETERS)
            options = {
                "type": query.text("type"),
                "key": query.data("key"),
                "partition": query.number("partition"),
                "durability": query.choice("durability", ("fsync", "os")),
            }
        except HeadwaterError:
            return None
        given = {name: value for name, value in options.items() if value is not None}
        return Head(url, headers, path[1], content, given)

    def take(self, connection: Connection, head: Head, data: bytes) -> bool:
        """Append an item, and answer it with its group. False if it must be answered in full: that tells why."""
        client = connection.client
        user = self._access.known(head.headers, client)
        if user is None:
            return False
        if user is not connection.granted_user or head is not connection.granted_head:
            if not user.may("append", head.topic) or not self._app.host_is_fine(head.headers, client):
                return False
            connection.granted_user, connection.granted_head = user, head
        try:
            waiting = self._engine.prepare(head.topic, data, content=head.content, **head.options)
            self._commits.submit(waiting, partial(self._answer, connection, head, user.name, perf_counter()))
        except HeadwaterError:
            return False
        return True

    def _answer(self, connection: Connection, head: Head, user: str, begun: float, waiting: Waiting) -> None:
        rows, response = waiting.rows, None
        if rows.error is None:
            self._ready.append((connection, self._place(waiting)))
        else:
            response = self._app.failure(rows.error)
            connection.answer_at_once(response)
        status = 200 if response is None else response.status
        seconds = perf_counter() - begun
        self._answered(status, seconds)
        access_log = self._metrics.access_log
        if access_log is not None:
            asked = connection.client.address, user, "POST", head.url.decode("latin-1"), PATTERN
            sent = len(str(rows.offset)) if response is None else len(whole(response))
            access_log.note(*asked, status, rows.size, sent, seconds)

    def _place(self, waiting: Waiting) -> bytes:
        """The rest of an answer: where the event is. The ids of a group differ in their last digits of time only."""
        log, rows = waiting.log, waiting.rows
        ticks = rows.ticks
        kind = log, rows.sync, ticks >> 12
        if kind != self._kind:
            id = id_text(ticks, log.node).encode()
            self._kind = kind
            self._form = _PLACE % (b"fsync" if rows.sync else b"os", log.place.partition, id[:15], id[18:])
        number = b"%d" % rows.offset
        return self._form % (ticks & 0x0FFF, len(number), number)

    def _send(self) -> None:
        """Write the answers of a group one after the other: clients that are awake need not be woken for each."""
        ready, self._ready = self._ready, []
        for connection, place in ready:
            try:
                connection.answer_plainly(place)
            except Exception:  # noqa: BLE001  # the others must be answered too
                _log.exception("an append cannot be answered")

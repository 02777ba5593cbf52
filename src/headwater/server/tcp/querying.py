"""QUERY: matching documents from one snapshot of a binder, sent as fast as the client acknowledges them.

A `QueryResults` holds one moment of its binder (`Binder.results`), from QUERY to its last result, and reads from it
some documents at a time in a worker's thread. They are sent as they are stored, large ones slice by slice. Belongs to
the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from bson.int64 import Int64

from headwater.errors import Conflict, HeadwaterError, Unavailable
from headwater.format import protocol
from headwater.limits import KIB
from headwater.server.rights import binder_scope
from headwater.server.tcp.acks import ConnectionPart
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import INT32, FrameFields, told, too_many
from headwater.server.tcp.subscription import stopping
from headwater.server.wire.pieces import slices
from headwater.views.finding import Results
from headwater.views.stored_documents import LargeDocument, StoredDocument

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

NAMES = ("queryID", "binder", "matcher", "sort", "limit", "skip")
PIECE_BYTES = 64 * KIB  # of results that are read at once: what a slow client holds beyond what was sent to it

T = TypeVar("T")
_log = logging.getLogger("headwater.server")


async def query(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """Handle QUERY: return the number of results, then send them."""
    fields = FrameFields("QUERY", frame, NAMES)
    id = fields.integer("queryID", least=-INT32 - 1, most=INT32, needed=True) or 0
    name = fields.text("binder", needed=True) or ""
    asked: dict[str, Any] = {
        "match": fields.document("matcher", needed=True),
        "sort": fields.value("sort") if "sort" in fields else (),
        "skip": fields.integer("skip") or 0,
        "limit": fields.integer("limit"),
    }
    _check_number(connection, id)
    await connection.require("QUERY", binder_scope(name))
    binder = connection.service.views.binder(name)
    querying = QueryResults(connection, id)
    count = await querying.open(lambda: binder.results(over=lambda: querying.closed, **asked))
    answer = protocol.encode("QUERYRESPONSE", {"queryID": id, "numResults": Int64(count)})
    return AnswerSlot(answer, querying.begin)


class QueryResults(ConnectionPart):
    """A running query."""

    def __init__(self, connection: TcpConnection, id: int) -> None:
        self.id = id
        self.closed = False
        self._connection = connection
        self._service = connection.service
        self._results: Results | None = None
        self._held = 0  # in memory, for which documents there are
        self._busy = False  # a worker's thread, or what is being sent, uses the results
        self._sending = False  # a large result
        self._task: asyncio.Task[None] | None = None
        self._unacked = 0
        self._timer: asyncio.TimerHandle | None = None  # while results are unacknowledged
        self._news: asyncio.Future[None] | None = None  # what it waits for: an acknowledgement

    async def open(self, ask: Callable[[], Results]) -> int:
        """Run the query and return the number of results. Raises what is wrong with it."""
        try:
            await self._work(self._open, ask)
            assert self._results is not None
            self._connection.hold(self._results.held)
            self._held = self._results.held
        except BaseException:  # also when the client goes meanwhile
            self.close()
            raise
        count = self._results.count
        if count:
            self._connection.parts["QUERYACK", self.id] = self
        else:
            self.close()
        return count

    def begin(self) -> None:
        """Send the results: the client has the number of them."""
        if not self.closed:
            self._task = self._connection.loop.create_task(self._run())

    def acknowledge(self, fields: FrameFields) -> None:
        """Process a QUERYACK: the client has received one more result."""
        del fields
        if self._unacked:
            self._unacked -= 1
            self._wait_for_acks()
            news, self._news = self._news, None
            if news is not None and not news.done():
                news.set_result(None)

    def stop(self) -> None:
        self.end(stopping())

    def end(self, error: BaseException) -> None:
        """End the query with an error, which is sent to the client."""
        if not self.closed:
            if isinstance(error, HeadwaterError):
                self._service.metrics.failed(error.code)
            self._connection.out.write(protocol.encode("QUERYEND", {"queryID": self.id, **told(error)}))
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._forget()
        self._connection.hold(-self._held)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if not self._busy:
            self._let_go()

    def _forget(self) -> None:
        """Release the id of the query, and ignore further acknowledgements."""
        if self._connection.parts.get(("QUERYACK", self.id)) is self:
            del self._connection.parts["QUERYACK", self.id]

    # Sending

    async def _run(self) -> None:
        try:
            await self._send()
        except HeadwaterError as error:
            self.end(error)
        except Exception as bug:  # noqa: BLE001  # a bug of ours must be heard of at the other end
            _log.exception("a query failed")
            self.end(bug)
        else:
            self.close()

    async def _send(self) -> None:
        """Send all results, as many at a time as may be unacknowledged and the connection has room for."""
        assert self._results is not None
        left = self._results.count
        ready: deque[bytes | Iterator[bytes]] = deque()
        while left:
            room = await self._room()
            if not ready:
                ready.extend(await self._work(self._read))
                if not ready:
                    raise Unavailable("documents disappeared during the query", code="internal")
                continue  # while they were read, the client may have stopped taking them
            first = ready.popleft()
            if not isinstance(first, bytes):
                left -= 1
                await self._send_large(first, last=not left)
                continue
            some = [first]
            while ready and len(some) < room and isinstance(ready[0], bytes):
                some.append(ready.popleft())  # type: ignore[arg-type]
            left -= len(some)
            if not self._unacked:
                self._unacked = len(some)
                self._wait_for_acks()
            else:
                self._unacked += len(some)
            self._connection.out.write(b"".join(some))

    async def _send_large(self, pieces: Iterator[bytes], *, last: bool) -> None:
        """Send a large result, slice by slice. The time for its acknowledgement begins when it is sent."""
        out = self._connection.out
        async with out.turn:
            await out.room()
            first = await self._work(next, pieces)  # raises what keeps it from being sent
            if last:
                self._forget()  # the client may use its number again as soon as it has the whole result
            self._unacked += 1
            self._sending = True
            self._wait_for_acks()
            try:
                await self._use(out.send_huge(chain((first,), pieces)))
            finally:
                self._sending = False
        self._wait_for_acks()

    async def _room(self) -> int:
        """Wait until results may be sent; return how many."""
        while True:
            await self._connection.out.room()
            room = self._connection.limits.query_unacked_max - self._unacked
            if room > 0:
                return room
            self._news = self._connection.loop.create_future()
            await self._news

    def _wait_for_acks(self) -> None:
        """Set the deadline for the next acknowledgement, if there are unacknowledged results.

        None while a large result is being sent: the connection has its own time for that.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._unacked and not (self._sending or self.closed):
            self._timer = self._connection.loop.call_later(self._connection.limits.write_s, self._late)

    def _late(self) -> None:
        seconds = self._connection.limits.write_s
        hint = "send QUERYACK for each result"
        self.end(Unavailable(f"no result was acknowledged for {seconds:g} s", hint=hint, code="timeout"))

    # Reading, in a worker's thread

    async def _work(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that uses the results, in a worker thread."""
        return await self._use(self._service.blocking(function, *args))

    async def _use(self, using: Coroutine[Any, Any, T]) -> T:
        """Wait for a function that uses the results. Releases them when it ends, if the query is over by then."""
        self._busy = True
        task = self._connection.loop.create_task(using)
        task.add_done_callback(self._worked)
        return await asyncio.shield(task)

    def _worked(self, done: asyncio.Task[Any]) -> None:
        self._busy = False
        if not done.cancelled():
            done.exception()  # there may be no waiter left
        if self.closed:
            self._let_go()

    def _let_go(self) -> None:
        if self._results is not None:
            self._service.later(self._results.close)

    def _open(self, ask: Callable[[], Results]) -> None:
        self._results = ask()

    def _read(self) -> list[bytes | Iterator[bytes]]:
        """Return the frames of the next results; that of a large one, which is the last, in slices."""
        assert self._results is not None
        frames: list[bytes | Iterator[bytes]] = []
        size = 0
        for each in islice(self._results, self._connection.limits.query_unacked_max):
            if isinstance(each, LargeDocument):
                frames.append(slices(("query", self.id, each.key), partial(_large_frame, self.id, each)))
                break
            frames.append(_frame(self.id, each))
            size += len(each.data)
            if size >= PIECE_BYTES:
                break
        return frames


def _frame(query_id: int, result: StoredDocument) -> bytes:
    protocol.check_depth(result.data, 3)
    fields = {"queryID": query_id, "id": result.id, "version": Int64(result.version)}
    return protocol.encode_around("QUERYRESULT", fields, "result", result.data)


def _large_frame(query_id: int, result: LargeDocument) -> bytes:
    return _frame(query_id, StoredDocument(result.id, result.version, result.load()))


def _check_number(connection: TcpConnection, id: int) -> None:
    """Raise an error if the connection may not start another query with this id."""
    if ("QUERYACK", id) in connection.parts:
        raise Conflict(f"query {id} is still running", hint="use another queryID", code="query_open")
    most = connection.limits.connection_queries_max
    if sum(isinstance(part, QueryResults) for part in connection.parts.values()) >= most:
        raise too_many(
            "queries", "connection_queries_max", most, hint="acknowledge results, or open another connection"
        )

"""Requests to one server: connections that are kept and shared by threads, credentials, retries, errors.

A request is sent again only where that is harmless: it reads, it changes nothing the second time, or it carries a
producer (docs/TRANSACTIONS.md). Safe from any thread; a forked child begins with connections of its own.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import quote
from weakref import WeakSet

import msgspec

from headwater.backoff import delay_s
from headwater.errors import Closed, HeadwaterError
from headwater.remote import failures
from headwater.remote.connection import BrokenConnectionError, HttpConnection, RefusedConnectionError, WrongPort
from headwater.remote.server_address import Credentials, ServerAddress

JSON = "application/json"
IDLE_MAX = 32  # connections that are kept for the next request
BACKOFF_S, BACKOFF_MAX_S = 0.05, 2.0
CONNECT_S = 10.0
# Answers after which the same request may succeed soon: of a server that is busy, or restarts, or of
# what stands before it. Others of these statuses need a person, or tell that something was done.
AGAIN = (502, 503, 504)
BUSY = ("bad_answer", "closed", "overloaded", "stopping")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_transports: WeakSet[Transport] = WeakSet()  # which start over in a forked child
_encode = msgspec.json.Encoder().encode

Query = Mapping[str, object]
NOTHING: Mapping[str, Any] = MappingProxyType({})
NOBODY = Credentials()
Repeat = bool | Callable[[], bool]
"""A rule for retries of a request: always, never, or a function that decides each time."""

Body = bytes | Callable[[], Iterable[bytes]]
"""Bytes, or what gives the pieces of a body, each time it is sent."""


class ResponseReader(Protocol[T_co]):
    """Makes of a connection whose answer has begun what the caller wants; `again`: it may have been asked before."""

    def __call__(self, connection: HttpConnection, *, again: bool) -> T_co: ...


class _Request(NamedTuple):
    """A request, as it is sent each time it is tried."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Body
    changes: bool  # whether it may change something

    def send(self, connection: HttpConnection) -> None:
        """Raises Broken."""
        body = self.body if isinstance(self.body, bytes) else self.body()
        connection.send(self.method, self.target, self.headers, body)

    @property
    def whole(self) -> bool:
        """Return whether it is in memory as a whole."""
        return isinstance(self.body, bytes)


class _Busy(Exception):
    """An answer that asks to try again later."""

    def __init__(self, told: HeadwaterError) -> None:
        super().__init__(str(told))
        self.told = told


class _Retries:
    """The tries of one request. `sent` means that the server may have got it, and so may have carried it out."""

    __slots__ = ("_began_s", "_tries", "changes", "facts", "sent")

    def __init__(self, changes: bool, facts: Mapping[str, Any]) -> None:
        """`changes`: it changes something, so that it matters. `facts` are for the error."""
        self.changes = changes
        self.facts = facts
        self.sent = False
        self._tries = 0
        self._began_s = 0.0

    def pause(self, transport: Transport) -> bool:
        """Sleep before the next try; False if there shall be none."""
        if self._tries == 0:
            self._began_s = time.monotonic()
        self._tries += 1
        return transport.pause(self._tries - 1, self._began_s)


class HttpResponse:
    """A whole response. `again` means that the request was sent more than once, and may have been done before."""

    __slots__ = ("again", "body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes, again: bool) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.again = again

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class ResponseStream:
    """An answer that is read as it comes. Close it; only `cut` may be called from other threads."""

    def __init__(self, transport: Transport, connection: HttpConnection) -> None:
        self._transport = transport
        self._connection = connection
        self.closed = False
        self.headers = connection.headers

    def pieces(self) -> Iterator[bytes]:
        """Yield the body. Raises Broken when the connection fails."""
        self._connection.timeout(None)
        return self._connection.pieces()

    def more(self, wait_s: float | None) -> list[bytes] | None:
        """Return what comes within so many seconds; empty if nothing did, None at the end. Raises Broken."""
        if self.closed:  # the connection may be another's now
            raise BrokenConnectionError("it was closed", sent=True)
        return self._connection.more(wait_s)

    def cut(self) -> None:
        """End it, from any thread: the caller that waits for more finds it Broken."""
        self._transport.cut(self, self._connection)

    def close(self) -> None:
        """Release the connection: it is kept if all was read. May be called twice."""
        if not self.closed:
            self.closed = True
            self._transport.release(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transport:
    """The way to one server. `timeout_s` is for each answer to begin, `retry_s` for trying again after failures."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        credentials: Credentials = NOBODY,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 60.0,
        retry_s: float = 15.0,
    ) -> None:
        self.address = address
        self._tls = tls
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._credentials = credentials
        self._met = False  # whether it ever answered: if not, the first failure is raised at once
        self._begin()
        _transports.add(self)

    def call(
        self,
        method: str,
        path: Iterable[str],
        query: Query = NOTHING,
        *,
        body: Body = b"",
        headers: Mapping[str, str] = NOTHING,
        repeat: Repeat,
        facts: Mapping[str, Any] = NOTHING,
    ) -> HttpResponse:
        """Send a request and read the answer. Raises what the server raised.

        `repeat`: it may be sent again; an error that came then has the fact `again`. Raises Unavailable when the server
        cannot be reached, or, with the code `answer_lost` and the `facts`, when the request may have been done.
        """
        sending = _Request(method, self._target(path, query), headers, body, changes=method != "GET")
        return self._ask(sending, self._whole, repeat=repeat, facts=facts)

    def json(self, method: str, path: Iterable[str], query: Query = NOTHING, *, value: Any = None, repeat: bool) -> Any:
        """Send a request as `call` does, with JSON both ways."""
        if value is None:
            return self.call(method, path, query, repeat=repeat).json()
        return self.call(method, path, query, body=_encode(value), headers={"Content-Type": JSON}, repeat=repeat).json()

    def stream(
        self, path: Iterable[str], query: Query = NOTHING, *, accept: str, body: bytes | None = None
    ) -> ResponseStream:
        """Ask for an answer that is read as it comes; with a JSON `body`, even an empty one, by a POST.

        It may be sent again: it changes nothing that outlives its connection.
        """
        method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": JSON})
        headers["Accept"] = accept
        sending = _Request(method, self._target(path, query), headers, body or b"", changes=False)
        return self._ask(sending, self._begun, repeat=True, facts=NOTHING)

    def pause(self, tries: int, began_s: float) -> bool:
        """Sleep before the next try; False when it has been tried for long enough, or it was closed.

        The first comes at once: a connection that was kept may have been closed meanwhile, and another one does.
        """
        pause_s = delay_s(tries, BACKOFF_S, BACKOFF_MAX_S) if tries else 0.0
        if time.monotonic() + pause_s - began_s > self._retry_s:
            return False
        return not self._closing.wait(pause_s)

    @property
    def met(self) -> bool:
        """Return whether the server ever answered."""
        return self._met

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def check_open(self) -> None:
        """Raise Closed if it was closed."""
        if self.closed:
            raise Closed(f"{self.address} was closed")

    def release(self, connection: HttpConnection) -> None:
        """Keep a connection whose answer was read for the next request; close any other."""
        with self._mutex:
            self._busy.discard(connection)
            if connection.ended and connection.keep and len(self._idle) < IDLE_MAX and not self.closed:
                self._idle.append(connection)
                return
        connection.close()

    def cut(self, stream: ResponseStream, connection: HttpConnection) -> None:
        """End what a stream waits for; nothing if it has released the connection, which may be another's now."""
        with self._mutex:
            if not stream.closed:
                connection.cut()

    def close(self) -> None:
        """Cut all that is under way, and release all connections. May be called twice."""
        self._closing.set()
        with self._mutex:
            idle = list(self._idle)
            self._idle.clear()
            for connection in list(self._busy):
                connection.cut()
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """In a forked child, where it is called by itself: the connections belong to the parent."""
        closed = self.closed
        for connection in (*self._idle, *self._busy):
            connection.close()  # this copy of the descriptor; the parent's stays open
        self._begin()
        if closed:
            self._closing.set()

    def _begin(self) -> None:
        # Protects `_idle` and `_busy`. A stream that the collector finds anywhere releases its connection there.
        self._mutex = threading.RLock()
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._closing = threading.Event()

    def _ask(self, sending: _Request, read: ResponseReader[T], *, repeat: Repeat, facts: Mapping[str, Any]) -> T:
        doubt = _Retries(sending.changes, facts)
        while True:
            # No name must hold an error after its block: error and frame would hold each other, and all that they know,
            # until the collector comes.
            try:
                return self._try(sending, partial(read, again=doubt.sent))
            except BrokenConnectionError as error:
                doubt.sent = doubt.sent or error.sent
                # A server that never answered is not one that restarts: the address may be wrong.
                known = self._met or not isinstance(error, RefusedConnectionError | WrongPort)
                again = known and (_may(repeat) or (not error.sent and sending.whole))
                if not again or not doubt.pause(self):
                    raise self._given_up(error, doubt) from error
            except _Busy as error:
                if not _may(repeat) or not doubt.pause(self):
                    raise self._given_up(error.told, doubt) from error
            except HeadwaterError as error:
                if doubt.sent:
                    error.facts["again"] = True
                raise

    def _given_up(self, reason: Exception, doubt: _Retries) -> HeadwaterError:
        if doubt.sent and doubt.changes:
            return failures.lost(self.address, str(reason), **doubt.facts)
        if isinstance(reason, HeadwaterError):
            return reason
        return Closed(f"{self.address} was closed") if self.closed else failures.unreachable(self.address, str(reason))

    def _try(self, sending: _Request, read: Callable[[HttpConnection], T]) -> T:
        connection = self._connection()
        try:
            connection.timeout(self._timeout_s)
            sending.send(connection)
            connection.receive()
            self._met = True
            if connection.status < 300:
                return read(connection)
            answer = self._whole(connection)
        except BaseException:
            connection.close()
            self.release(connection)
            raise
        raise self._refusal(answer)

    def _refusal(self, answer: HttpResponse) -> Exception:
        error = failures.error_of(answer.status, answer.body, self.address)
        return _Busy(error) if answer.status in AGAIN and error.code in BUSY else error

    def _whole(self, connection: HttpConnection, *, again: bool = False) -> HttpResponse:
        answer = HttpResponse(connection.status, connection.headers, connection.body(), again)
        self.release(connection)
        return answer

    def _begun(self, connection: HttpConnection, *, again: bool) -> ResponseStream:  # noqa: ARG002  # a read changes nothing
        return ResponseStream(self, connection)

    def _connection(self) -> HttpConnection:
        self.check_open()
        while True:
            with self._mutex:
                connection = self._idle.pop() if self._idle else None
                if connection is not None:
                    self._busy.add(connection)
            if connection is None:
                break
            if connection.usable:
                return connection
            connection.close()
            self.release(connection)
        connection = HttpConnection(self.address, self._tls, min(CONNECT_S, self._timeout_s), self._credentials)
        with self._mutex:
            self._busy.add(connection)
        return connection

    def _target(self, path: Iterable[str], query: Query) -> str:
        target = self.address.prefix + "".join(f"/{quote(part, safe='')}" for part in path)
        pairs = "&".join(f"{name}={_value(value)}" for name, value in query.items() if value is not None)
        return f"{target}?{pairs}" if pairs else target


def _may(repeat: Repeat) -> bool:
    return repeat if isinstance(repeat, bool) else repeat()


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value if isinstance(value, bytes) else str(value), safe="")


def _after_fork() -> None:
    for transport in list(_transports):
        transport.after_fork()


os.register_at_fork(after_in_child=_after_fork)

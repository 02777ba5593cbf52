"""Named queries between a server and its application: the messages, and the application's end of the connection.

Messages are JSON, each after its length as a big-endian u32. The application begins, with `Ready` or
`BrokenApplication`. Then the server sends `QueryCall`s, and gets a `QueryReply` or a `QueryFailure` for each, in any
order. Nothing in them is code.

`QueryServer` runs queries, and ends with the server. One thread reads, up to `WORKERS` others run queries. The reading
thread never waits for a result, so that it notices at once when the server ends: its socket closes.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

import msgspec

from headwater import errors
from headwater.errors import HeadwaterError, Invalid, TooLarge, Unavailable
from headwater.format import documents
from headwater.limits import ANSWER_BYTES_MAX, QUESTION_BYTES_MAX
from headwater.store import Store
from headwater.views.app import App

LENGTH = Struct(">I")
MESSAGE_BYTES_MAX = ANSWER_BYTES_MAX + QUESTION_BYTES_MAX
WORKERS = 8  # queries that are answered at once: they share an interpreter with the projections
GRACE_S = 10.0  # how long user code may go on when the server is gone
_log = logging.getLogger("headwater.views")


class WireError(msgspec.Struct, frozen=True):
    """An error as it is sent: its message and facts, without its traceback."""

    kind: str
    code: str
    message: str
    hint: str = ""
    facts: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The application runs, and answers these queries."""

    queries: list[str]


class BrokenApplication(msgspec.Struct, frozen=True, tag="broken"):
    """The application cannot run."""

    error: WireError


class QueryCall(msgspec.Struct, frozen=True):
    """A call of a named query."""

    id: int
    name: str
    arguments: dict[str, Any]


class QueryReply(msgspec.Struct, frozen=True, tag="answered"):
    """The result of a query, as JSON."""

    id: int
    answer: msgspec.Raw


class QueryFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The error of a query."""

    id: int
    error: WireError


Message = Ready | BrokenApplication | QueryReply | QueryFailure

_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_question = msgspec.json.Decoder(QueryCall).decode
_KINDS: dict[str, type[HeadwaterError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HeadwaterError)
}


def framed(message: Message | QueryCall) -> bytes:
    """Return a message behind its length; raises TooLarge."""
    data = _encode(message)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message has {len(data)} bytes", limit="answer_bytes_max", maximum=ANSWER_BYTES_MAX)
    return LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """Return the length of the message that follows; raises Invalid if it cannot be one of ours."""
    (length,) = LENGTH.unpack(head)
    if length > MESSAGE_BYTES_MAX:
        raise Invalid(f"invalid message length: {length} bytes", code="bad_message")
    return int(length)


def message_of(data: bytes) -> Message:
    """Decode a message of the application; raises Invalid."""
    try:
        said: Message = _decode_message(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the application sent an invalid message: {error}", code="bad_message") from error
    return said


def question_of(data: bytes) -> QueryCall:
    """Decode a query of the server; raises Invalid."""
    try:
        return _decode_question(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the server sent an invalid request: {error}", code="bad_message") from error


def wire_error(error: HeadwaterError) -> WireError:
    """Return an error, to be sent."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "headwater.errors"), "")
    return WireError(kind, error.code, error.message, error.hint, error.facts)


def raised_error(sent: WireError) -> HeadwaterError:
    """Return an error that was sent, as it was raised."""
    kind = _KINDS.get(sent.kind, HeadwaterError)
    facts = {name: fact for name, fact in sent.facts.items() if name not in ("message", "hint", "code")}
    return kind(sent.message, hint=sent.hint, code=sent.code, **facts)


class QueryServer:
    """Answers one server. `gone` is called, in another thread, when the server is."""

    def __init__(self, connection: socket.socket, gone: Callable[[], object]) -> None:
        self._connection = connection
        self._gone = gone
        self._sending = threading.Lock()  # one message at a time
        self._waiting: queue.SimpleQueue[QueryCall] = queue.SimpleQueue()
        self._ask: Callable[[QueryCall], Any] | None = None
        threading.Thread(target=self._listen, name="headwater-server", daemon=True).start()

    def ready(self, app: App, hw: Store) -> None:
        """Say that the application runs; from now on it is asked."""
        self._ask = lambda question: ask(app, hw, question.name, question.arguments)
        for number in range(WORKERS):
            threading.Thread(target=self._work, name=f"headwater-query-{number}", daemon=True).start()
        self._send(Ready(sorted(app.queries)))

    def broken(self, error: HeadwaterError) -> None:
        """Say why the application cannot run."""
        self._send(BrokenApplication(wire_error(error)))

    def _listen(self) -> None:
        """Take questions until the server is gone. User code that does not end by then is ended with the process."""
        try:
            while True:
                length = length_of(self._receive(LENGTH.size))
                self._waiting.put(question_of(self._receive(length)))
        except (OSError, HeadwaterError):
            if self._ask is None:  # nothing was begun that must be ended properly
                os._exit(1)
            last = threading.Timer(GRACE_S, os._exit, (1,))
            last.daemon = True
            last.start()
            self._gone()

    def _receive(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            piece = self._connection.recv(min(size, 1 << 20))
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _work(self) -> None:
        assert self._ask is not None
        while True:
            question = self._waiting.get()
            try:
                message: QueryReply | QueryFailure = QueryReply(question.id, msgspec.Raw(encoded(self._ask(question))))
            except HeadwaterError as error:
                message = QueryFailure(question.id, wire_error(error))
            except Exception as error:  # noqa: BLE001  # user code may raise whatever it likes, and must not end us
                _log.warning("the query %r failed", question.name, exc_info=error)
                message = QueryFailure(question.id, wire_error(_failure(question.name, error)))
            self._send(message)

    def _send(self, message: Message) -> None:
        with self._sending:
            try:
                self._connection.sendall(framed(message))
            except OSError:
                return  # the server is gone, which the listening thread hears of


def ask(app: App, hw: Store, name: str, arguments: dict[str, Any]) -> Any:
    """Call a query with a name. Raises NotFound if there is none, Invalid for wrong arguments, and what it raises."""
    return app.ask(hw, name, **arguments)


def encoded(answer: Any) -> bytes:
    """Return the result of a query as JSON; an iterator as an array. Raises TooLarge, or TypeError for other types."""
    if not isinstance(answer, Iterator):
        return _bounded([documents.encode(answer)], b"", b"")

    def each() -> Iterator[bytes]:
        before = b""
        for value in answer:
            yield before + documents.encode(value)
            before = b","

    return _bounded(each(), b"[", b"]")


def _bounded(pieces: Any, begin: bytes, end: bytes) -> bytes:
    held, size = [begin], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise TooLarge(
                "the result of the query is too large",
                hint="limit it",
                limit="answer_bytes_max",
                maximum=ANSWER_BYTES_MAX,
            )
    return b"".join([*held, end])


def _failure(name: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"the query {name!r} failed: {type(error).__name__}: {error}"[:1000],
        hint="see the server's log",
        code="query_failed",
    )

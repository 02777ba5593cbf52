"""The application's end of its connection to a server: runs named queries, and ends with the server.

One thread reads, up to `WORKERS` others run queries. The reading thread never waits for a result, so that it notices
at once when the server ends, however that happens: its socket closes.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headwater.errors import HeadwaterError, TooLarge, Unavailable
from headwater.format import documents
from headwater.limits import ANSWER_BYTES_MAX
from headwater.store import Store
from headwater.views import questions
from headwater.views.app import App
from headwater.views.questions import BrokenApplication, QueryCall, QueryFailure, QueryReply, Ready

WORKERS = 8  # queries that are answered at once: they share an interpreter with the projections
GRACE_S = 10.0  # how long user code may go on when the server is gone

_log = logging.getLogger("headwater.views")


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
        self._send(BrokenApplication(questions.told(error)))

    def _listen(self) -> None:
        """Take questions until the server is gone. User code that does not end by then is ended with the process."""
        try:
            while True:
                length = questions.length_of(self._receive(questions.LENGTH.size))
                self._waiting.put(questions.question_of(self._receive(length)))
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
                message = QueryFailure(question.id, questions.told(error))
            except Exception as error:  # noqa: BLE001  # user code may raise whatever it likes, and must not end us
                _log.warning("the query %r failed", question.name, exc_info=error)
                message = QueryFailure(question.id, questions.told(_failure(question.name, error)))
            self._send(message)

    def _send(self, message: questions.Message) -> None:
        with self._sending:
            try:
                self._connection.sendall(questions.framed(message))
            except OSError:
                return  # the server is gone, which the listening thread hears of


def ask(app: App, hw: Store, name: str, arguments: dict[str, Any]) -> Any:
    """Call a query with a name. Raises NotFound if there is none, Invalid for wrong arguments, and what it raises."""
    return app.ask(hw, name, **arguments)


def encoded(answer: Any) -> bytes:
    """What a query returned, as JSON; an iterator as an array. Raises TooLarge, and TypeError for what JSON lacks."""
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

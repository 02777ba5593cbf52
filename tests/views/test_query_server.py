"""What a server and its application say to each other, and how the application answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import App
from headwater.document import Document
from headwater.errors import HeadwaterError, Invalid, NotFound, TooLarge, Unavailable
from headwater.opening import open_directory
from headwater.views import query_server
from headwater.views.query_server import (
    BrokenApplication,
    QueryCall,
    QueryFailure,
    QueryReply,
    QueryServer,
    Ready,
    WireError,
    encoded,
)
from tests.strategies import unicode_text

told = st.builds(
    WireError,
    st.sampled_from(["NotFound", "Invalid", "nonsense"]),
    unicode_text,
    unicode_text,
    unicode_text,
    st.dictionaries(unicode_text, st.integers(0, 9) | unicode_text, max_size=3),
)
messages = st.one_of(
    st.builds(Ready, st.lists(unicode_text, max_size=3)),
    st.builds(BrokenApplication, told),
    st.builds(QueryFailure, st.integers(0, 2**40), told),
    st.builds(QueryReply, st.integers(0, 2**40), unicode_text.map(lambda text: msgspec.Raw(msgspec.json.encode(text)))),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message: query_server.Message) -> None:
    sent = query_server.framed(message)
    head, data = sent[: query_server.LENGTH.size], sent[query_server.LENGTH.size :]
    assert query_server.length_of(head) == len(data)
    back = query_server.message_of(data)
    if isinstance(message, QueryReply):
        assert isinstance(back, QueryReply)
        assert (back.id, bytes(back.answer)) == (message.id, bytes(message.answer))
    else:
        assert back == message


@given(st.binary(max_size=40))
def test_what_is_no_message_is_refused(data: bytes) -> None:
    for read in (query_server.message_of, query_server.question_of):
        with pytest.raises(Invalid):
            read(data)


def test_a_length_that_no_message_has_is_refused() -> None:
    with pytest.raises(Invalid):
        query_server.length_of(b"\xff\xff\xff\xff")


def test_an_error_is_raised_as_it_was() -> None:
    error = NotFound("no such thing", hint="look elsewhere", code="gone", topic="orders")
    back = query_server.raised_error(query_server.wire_error(error))
    assert (type(back), str(back), back.code, back.facts) == (NotFound, str(error), "gone", {"topic": "orders"})
    assert type(query_server.raised_error(WireError("Stranger", "x", "y"))) is HeadwaterError


def test_documents_and_iterators_are_encoded() -> None:
    document = Document("a", 1, {"n": 2})
    assert encoded(document) == b'{"id":"a","version":1,"data":{"n":2}}'
    assert encoded(iter([document, 3])) == b'[{"id":"a","version":1,"data":{"n":2}},3]'
    assert encoded(iter([])) == b"[]"
    assert encoded(None) == b"null"


def test_an_answer_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_server, "ANSWER_BYTES_MAX", 1000)

    def endless() -> Iterator[int]:
        while True:
            yield 1

    with pytest.raises(TooLarge):
        encoded(endless())


class QueryPeer:
    """The other end of an application's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(20)

    def send(self, id: int, name: str, **arguments: Any) -> None:
        self.connection.sendall(query_server.framed(QueryCall(id, name, arguments)))

    def receive(self) -> query_server.Message:
        length = query_server.length_of(self._exactly(query_server.LENGTH.size))
        return query_server.message_of(self._exactly(length))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.connection.recv(size - len(data))
        return data


def test_queries_are_answered_side_by_side_and_the_end_of_the_server_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "Timer", lambda *_: threading.Thread(target=lambda: None))
    app, held, gone = App(), threading.Event(), threading.Event()

    @app.query("held")
    def wait(views: Any) -> str:  # noqa: ARG001
        held.wait(20)
        return "at last"

    @app.query("twice")
    def twice(views: Any, n: int) -> int:  # noqa: ARG001
        return 2 * n

    @app.query("broken")
    def broken(views: Any) -> int:  # noqa: ARG001
        raise ZeroDivisionError("oh")

    ours, theirs = socket.socketpair()
    with ours, theirs, open_directory(tmp_path / "data") as hw:
        child = QueryServer(theirs, gone.set)
        child.ready(app, hw)
        server = QueryPeer(ours)
        assert server.receive() == Ready(["broken", "held", "twice"])
        server.send(1, "held")
        server.send(2, "twice", n=4)
        found = server.receive()
        assert isinstance(found, QueryReply)
        assert (found.id, bytes(found.answer)) == (2, b"8")
        server.send(3, "broken")
        failed = server.receive()
        assert isinstance(failed, QueryFailure)
        error = query_server.raised_error(failed.error)
        assert isinstance(error, Unavailable)
        assert (error.code, "ZeroDivisionError: oh" in error.message) == ("query_failed", True)
        held.set()
        found = server.receive()
        assert isinstance(found, QueryReply)
        assert (found.id, bytes(found.answer)) == (1, b'"at last"')
        assert not gone.is_set()
        ours.close()
        assert gone.wait(20)

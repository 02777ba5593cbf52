"""STARTTX, COMMITTX, ABORTTX: transactions whose events wait in memory until the client commits them all.

A `Session` is in `connection.sessions` from STARTTX on; the connection's EMITs that name it are added to it. Nothing of
it is on the disk before COMMITTX, so aborting it is to forget it. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headwater.directory.directory import Directory
from headwater.errors import Conflict, HeadwaterError, Invalid, NotFound, TooLarge
from headwater.requests import Append
from headwater.server.access import require
from headwater.server.rights import action_of
from headwater.server.tcp.emit import is_missing
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import INT32, OK, FrameFields, ref_fields, response, too_many
from headwater.transaction import check_data, check_growth

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

EVENT_BYTES = 512  # of memory for the objects of an event, in addition to its data and names
REF_BYTES = 96  # of the answer to a commit, for each event, beside the name of its topic


class Session:
    """The events of one open transaction. What they take counts as held by the connection."""

    __slots__ = ("_absent", "_answer_bytes", "_bytes", "_connection", "held", "requests")

    def __init__(self, connection: TcpConnection) -> None:
        self.requests: list[Append] = []
        self.held = 0
        self._bytes = 0  # of data, keys and meta, as the engine counts them
        self._answer_bytes = REF_BYTES
        self._absent: set[str] = set()  # topics that did not exist when an event was added, and will be created
        self._connection = connection

    def add(self, request: Append) -> None:
        """Add an event, or raise what is wrong with it: then the transaction is unchanged.

        Errors that need waiting, such as a right that must be looked up, are reported by COMMITTX.
        """
        connection, data = self._connection, request.data
        assert isinstance(data, bytes)
        if request.sync is not None or request.producer is not None:
            name = "durability" if request.sync is not None else "producer"
            raise Invalid(
                f"EMIT in a transaction takes no {name!r}: it applies to the whole transaction", code="bad_field"
            )
        service = connection.service
        user = service.access.known(connection.headers, connection.client)
        if user is not None:
            require(user, action_of("EMIT"), request.topic)
        limits = service.backend.limits
        size = len(data) + len(request.key or b"") + len(request.meta or b"")
        check_data(len(data), limits)
        check_growth(self._bytes + size, len(self.requests) + 1, limits)
        named = len(request.topic.encode(errors="replace"))
        answer_bytes = self._answer_bytes + REF_BYTES + named
        if answer_bytes > connection.limits.frame_bytes_max:
            raise _unanswerable(connection.limits.frame_bytes_max)
        self._check_place(service.backend, request)
        held = size + named + len(request.type) + EVENT_BYTES
        connection.hold(held)
        self.requests.append(request)
        self.held += held
        self._bytes += size
        self._answer_bytes = answer_bytes

    def close(self) -> None:
        """Release the memory that it holds. May be called twice."""
        self._connection.hold(-self.held)
        self.held, self.requests = 0, []

    def _check_place(self, backend: Directory, request: Append) -> None:
        """Raise an error if the topic cannot take the event. COMMITTX creates a missing topic."""
        if request.topic in self._absent:
            return
        # With a partition: to ask whose turn it is would pass it on.
        partition = request.partition or 0
        try:
            backend.prepare(Append(request.topic, request.data, request.content, key=request.key, partition=partition))
        except NotFound as error:
            if not is_missing(error):
                raise
            self._absent.add(request.topic)


def start(connection: TcpConnection, frame: dict[str, Any]) -> bytes:
    """Handle STARTTX: open a transaction."""
    session = _session_id("STARTTX", frame)
    if session in connection.sessions:
        raise Conflict(
            f"transaction {session} is already open",
            hint="commit or abort it, or use another session",
            code="transaction_open",
        )
    most = connection.limits.sessions_max
    if len(connection.sessions) >= most:
        raise too_many("transactions", "sessions_max", most, hint="commit or abort some first")
    connection.sessions[session] = Session(connection)
    return OK


def abort(connection: TcpConnection, frame: dict[str, Any]) -> bytes:
    """Handle ABORTTX: drop a transaction."""
    _ended("ABORTTX", connection, frame).close()
    return OK


async def commit(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """Handle COMMITTX: store all events durably, or none; the transaction is closed in both cases.

    Once it has begun it is brought to its end, also when the client leaves meanwhile. Its memory is the server's then,
    no more the connection's, and counts until nobody uses it.
    """
    session = _ended("COMMITTX", connection, frame)
    requests, held, budget = session.requests, session.held, connection.service.budget
    session.close()
    budget.take(held)
    task = connection.loop.create_task(_stored(connection, requests))
    task.add_done_callback(lambda _: budget.give_back(held))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter left
    return AnswerSlot(await asyncio.shield(task))


async def _stored(connection: TcpConnection, requests: list[Append]) -> bytes:
    """Commit a transaction and return the response; raises if it is not stored."""
    service = connection.service
    user = await connection.user()
    topics = list(dict.fromkeys(request.topic for request in requests))
    for topic in topics:
        require(user, action_of("COMMITTX"), topic)
    try:
        return await service.blocking(_commit, service.backend, requests, topics)
    except _MissingTopicsError as error:
        for topic in error.topics:
            await service.make(topic)
    return await service.blocking(_commit, service.backend, requests, [])


class _MissingTopicsError(Exception):
    """Signals that topics must be created first."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__()
        self.topics = topics


def _commit(backend: Directory, requests: list[Append], topics: list[str]) -> bytes:
    """Commit with a few syncs, in a worker thread; raises _Missing if some of `topics` do not exist.

    A topic that is not there and not among them is made as any.
    """
    if absent := [topic for topic in topics if _is_absent(backend, topic)]:
        raise _MissingTopicsError(absent)
    transaction = backend.transaction(None, None)
    for request in requests:
        transaction.add(request)
    return response(refs=[ref_fields(ref) for ref in transaction.commit()])


def _is_absent(backend: Directory, topic: str) -> bool:
    try:
        backend.topic(topic)
    except HeadwaterError as error:
        if not is_missing(error):
            raise
        return True
    return False


def _session_id(type: str, frame: dict[str, Any]) -> int:
    found = FrameFields(type, frame, ("sessID",)).integer("sessID", least=-INT32 - 1, most=INT32, needed=True)
    assert found is not None
    return found


def _ended(type: str, connection: TcpConnection, frame: dict[str, Any]) -> Session:
    """Remove and return the transaction that a frame ends."""
    number = _session_id(type, frame)
    session = connection.sessions.pop(number, None)
    if session is None:
        raise NotFound(f"no open transaction {number}", hint="start it with STARTTX", code="no_transaction")
    return session


def _unanswerable(most: int) -> TooLarge:
    return TooLarge(
        "the answer to COMMITTX would not fit a frame",
        hint="split it into several transactions",
        limit="frame_bytes_max",
        maximum=most,
    )

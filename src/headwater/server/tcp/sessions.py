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
from headwater.server.tcp.answers import OK, ref_fields, response
from headwater.server.tcp.emit import NOTHING, Emit, missing
from headwater.server.tcp.fields import INT32, FrameFields, too_many
from headwater.server.tcp.slots import AnswerSlot
from headwater.transaction import check_data, check_growth

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

EVENT_BYTES = 512  # that an event takes in memory beside its data and names: the objects around them
REF_BYTES = 96  # of the answer to a commit, for each event, beside the name of its topic


class Session:
    """The events of one open transaction. What they take counts as held by the connection."""

    __slots__ = ("_absent", "_answer_bytes", "_bytes", "_connection", "emits", "held")

    def __init__(self, connection: TcpConnection) -> None:
        self.emits: list[Emit] = []
        self.held = 0
        self._bytes = 0  # of data, keys and meta, as the engine counts them
        self._answer_bytes = REF_BYTES
        self._absent: set[str] = set()  # topics that were not there when it was looked, and will be made
        self._connection = connection

    def add(self, emit: Emit) -> None:
        """Take one event more, or raise what is wrong with it: then the transaction is as it was before.

        Errors that need waiting, such as a right that must be looked up, are reported by COMMITTX.
        """
        connection, shape = self._connection, emit.shape
        options = shape.options or NOTHING
        if options.sync is not None or options.producer is not None:
            name = "durability" if options.sync is not None else "producer"
            raise Invalid(
                f"EMIT in a transaction takes no {name!r}: it applies to the whole transaction", code="bad_field"
            )
        service = connection.service
        user = service.access.known(connection.headers, connection.client)
        if user is not None:
            require(user, action_of("EMIT"), shape.topic)
        limits = service.backend.limits
        meta = options.meta or b""
        size = len(emit.data) + len(emit.key or b"") + len(meta)
        check_data(len(emit.data), limits)
        check_growth(self._bytes + size, len(self.emits) + 1, limits)
        named = len(shape.topic.encode(errors="replace"))
        answer_bytes = self._answer_bytes + REF_BYTES + named
        if answer_bytes > connection.limits.frame_bytes_max:
            raise _unanswerable(connection.limits.frame_bytes_max)
        self._check_place(service.backend, emit)
        held = size + named + len(shape.type) + EVENT_BYTES
        connection.hold(held)
        self.emits.append(emit)
        self.held += held
        self._bytes += size
        self._answer_bytes = answer_bytes

    def close(self) -> None:
        """Give back what it holds. May be called twice."""
        self._connection.hold(-self.held)
        self.held, self.emits = 0, []

    def _check_place(self, backend: Directory, emit: Emit) -> None:
        """Raise what the topic has against an event, if it is there; one that is not is made by COMMITTX."""
        shape = emit.shape
        if shape.topic in self._absent:
            return
        partition = shape.options.partition if shape.options is not None else None
        try:  # with a partition, because whose turn it is must not be asked twice
            backend.prepare(Append(shape.topic, emit.data, shape.content, key=emit.key, partition=partition or 0))
        except NotFound as error:
            if not missing(error):
                raise
            self._absent.add(shape.topic)


def start(connection: TcpConnection, frame: dict[str, Any]) -> bytes:
    """STARTTX"""
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
    """ABORTTX"""
    _ended("ABORTTX", connection, frame).close()
    return OK


async def commit(connection: TcpConnection, frame: dict[str, Any]) -> AnswerSlot:
    """COMMITTX: all of it is stored, durably, or nothing; whichever it is, it is over.

    Once it has begun it is brought to its end, also when the client leaves meanwhile. Its memory is the server's then,
    no more the connection's, and counts until nobody uses it.
    """
    session = _ended("COMMITTX", connection, frame)
    emits, held, budget = session.emits, session.held, connection.service.budget
    session.close()
    budget.take(held)
    task = connection.loop.create_task(_stored(connection, emits))
    task.add_done_callback(lambda _: budget.give_back(held))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter left
    return AnswerSlot(await asyncio.shield(task))


async def _stored(connection: TcpConnection, emits: list[Emit]) -> bytes:
    """Return the answer to a transaction that is stored; raises if it is not."""
    service = connection.service
    user = await connection.user()
    topics = list(dict.fromkeys(emit.shape.topic for emit in emits))
    for topic in topics:
        require(user, action_of("COMMITTX"), topic)
    try:
        return await service.blocking(_commit, service.backend, emits, topics)
    except _MissingTopicsError as error:
        for topic in error.topics:
            await service.make(topic)
    return await service.blocking(_commit, service.backend, emits, [])


class _MissingTopicsError(Exception):
    """Topics that must be created first."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__()
        self.topics = topics


def _commit(backend: Directory, emits: list[Emit], topics: list[str]) -> bytes:
    """Commit in a worker's thread, where it is a handful of syncs; raises _Missing if some of `topics` are not there.

    A topic that is not there and not among them is made as any.
    """
    if absent := [topic for topic in topics if _is_missing(backend, topic)]:
        raise _MissingTopicsError(absent)
    transaction = backend.transaction(None, None)
    for emit in emits:
        transaction.add(emit.request())
    return response(refs=[ref_fields(ref) for ref in transaction.commit()])


def _is_missing(backend: Directory, topic: str) -> bool:
    try:
        backend.topic(topic)
    except HeadwaterError as error:
        if not missing(error):
            raise
        return True
    return False


def _session_id(type: str, frame: dict[str, Any]) -> int:
    found = FrameFields(type, frame, ("sessID",)).integer("sessID", least=-INT32 - 1, most=INT32, needed=True)
    assert found is not None
    return found


def _ended(type: str, connection: TcpConnection, frame: dict[str, Any]) -> Session:
    """Return the transaction that a frame ends, which is not open from now on."""
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

"""One connection of the TCP protocol: frames take effect, and are answered, in the order in which they arrive.

Consecutive EMITs are appended together. Every other request that must wait for something (COMMITTX, SUBSCRIBE, QUERY)
has the connection for itself: it begins when all requests before it are answered, and later ones wait. Frames without a
response (ACKEV, QUERYACK) take effect at once. Belongs to the loop's thread.

A connection ends in one of three ways. If it is lost, `connection_lost` releases everything. If the client sends no
more, the requests that it has sent are answered. If the server refuses a frame, the requests before it are answered,
then the error is sent, and what arrives until the client has read it is discarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Coroutine
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, Invalid, Unavailable
from headwater.format import protocol
from headwater.remote.connection import keep_alive
from headwater.server.access import require
from headwater.server.http.message import Client
from headwater.server.rights import action_of
from headwater.server.tcp import sessions
from headwater.server.tcp.acks import HEADS, HEARD, SMALL_BYTES, ConnectionPart, hear, hear_small
from headwater.server.tcp.emit import Emitter
from headwater.server.tcp.frame_io import LARGE_BYTES, AnswerSlot, FrameParser, FrameWriter, ResponseSlot
from headwater.server.tcp.frames import failure
from headwater.server.tcp.handlers import AT_ONCE, Handler, connect

if TYPE_CHECKING:
    from headwater.server.connections import Connections
    from headwater.server.rights import User

NEVER = float("inf")
LINGER_S = 2.0  # how long a client may take to read why the connection ends
TURN_BYTES = 256 * 1024  # of frames that are begun before others have their turn: what comes at once, at most
EMIT = b"\x02type\x00\x05\x00\x00\x00EMIT\x00\x03frame\x00"  # how an EMIT begins, after its length
UNCOUNTED_BYTES = 4096  # of a connection's frames under way, which are not worth the time to count them
ENDING = frozenset(("bad_frame", "too_deep", "unknown_frame", "not_connected", "unauthenticated"))

_log = logging.getLogger("headwater.server")


class ConnectionState(IntEnum):
    """The state of a connection. It only advances, and may skip states."""

    OPEN = 0  # frames are read, and take effect in their order
    DRAINING = 1  # no more is read; what was read takes effect and is answered
    ENDING = 2  # nothing more takes effect; what has begun is answered
    LINGERING = 3  # the last frame is written; the client has time to read it
    LOST = 4  # the connection is closed, and holds nothing


class TcpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, connections: Connections, handlers: dict[str, Handler]) -> None:
        """`handlers` are for the frames that wait for something, by type."""
        self.connections = connections
        self.service = connections.service
        self.limits = connections.limits
        self.loop = connections.loop
        self.deadline = NEVER
        self.client = Client()
        self.headers: dict[str, str] = {}  # that tell who it is, as HTTP has them
        self.user_name = ""
        self.connected = False  # CONNECT was answered
        self.parts: dict[Any, ConnectionPart] = {}  # what is open, under the names that its frames know it by
        self.sessions: dict[int, sessions.Session] = {}  # transactions, by their sessID
        self.subscribed = 0  # how many subscriptions it has had: the last subID
        self._handlers = handlers
        self._metrics = connections.service.metrics
        self._transport: Any = None
        # What comes in
        self._incoming = FrameParser(self.limits.frame_bytes_max)
        self._queue: deque[bytes] = deque()  # frames that wait for their turn
        self._queued_bytes = 0
        self._turn: asyncio.Handle | None = None  # the rest of the queue is begun then
        self._reading = True
        self._state = ConnectionState.OPEN
        self._refusal: HeadwaterError | None = None  # why it ends, once all before is answered
        # What goes out
        self.out = FrameWriter(self)
        self._emits = Emitter(self)
        self._task: asyncio.Task[None] | None = None  # the request that has the connection for itself
        self._full_bytes = 0  # that waited for the client when it was last looked at
        # Of the memory that all connections may take
        self._held = 0  # by `hold`
        self._counted = 0  # in all

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.out.transport = transport
        client = self.connections.accept(self, transport)
        if client is None:
            self._advance(ConnectionState.LINGERING)
            self._transport.write(failure(_stopping() if self.connections.stopping else _too_many()))
            self._transport.close()
            return
        self.client = client
        keep_alive(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        self.deadline = self.loop.time() + self.limits.header_s

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.connections.forget(self)
        self.end()
        self.out.lose()
        if self._task is not None:
            self._task.cancel()
        self._close_parts()
        self.sessions.clear()
        self.resume_writing()
        self._held = 0
        self._count()
        self._advance(ConnectionState.LOST)
        self.deadline = NEVER

    def eof_received(self) -> bool:
        """Return whether to stay open for responses: the client sends no more. With TLS, nothing can be sent then."""
        self._advance(ConnectionState.DRAINING)
        self.go_on()
        under_way = bool(self.out.slots or self._queue or self._task)
        return under_way and not self.client.secure

    def pause_writing(self) -> None:
        self.out.pause()
        self._full_bytes = self._transport.get_write_buffer_size()
        self.deadline = self.loop.time() + self.limits.write_s

    def resume_writing(self) -> None:
        self.out.resume()
        if self.out.ended:
            self.deadline = self.loop.time() + LINGER_S
        else:
            self._wait_for_more()
        for part in list(self.parts.values()):
            part.resume()
        self.go_on()

    def data_received(self, data: bytes) -> None:
        self._metrics.bytes_received += len(data)
        if self._state:
            return
        if self.out.slots and self.out.slots[0].written:
            self.out.slots[0].finish()  # the client was quicker than our loop
        busy = self.out.slots or self._queue or self._task or self._counted or self.out.full or not self.connected
        if not busy and len(data) <= UNCOUNTED_BYTES and (raw := self._incoming.only(data)).startswith(EMIT, 4):
            self._emits.append([raw], len(raw))  # the client waits for each response, as most do
            if not (self._state or self.out.full):
                self.deadline = self.loop.time() + self.limits.idle_s
            return
        try:
            self._cut(data)
        except HeadwaterError as error:
            self._refuse(error)
            return
        self.go_on()
        self._wait_for_more()

    # Frames

    def _cut(self, data: bytes) -> None:
        """Queue the frames that are complete. Raises what is wrong with one, even if it is incomplete."""
        incoming, budget = self._incoming, self.service.budget
        counted = incoming.size  # of the first frame
        for raw in incoming.cut(data):
            if len(raw) > LARGE_BYTES:
                budget.check(len(raw) - counted)
            counted = 0
            if raw.startswith(HEADS, 4) and self.connected and len(raw) <= LARGE_BYTES:
                self._hear(raw)
                if self._state:
                    return
            else:
                self._queue.append(raw)
                self._queued_bytes += len(raw)
        if incoming.large:
            budget.check(incoming.size - counted)

    def _hear(self, raw: bytes) -> None:
        """Process a frame without a response at once, because nothing can depend on its place."""
        try:
            if len(raw) <= SMALL_BYTES:
                hear_small(self.parts, raw, self._metrics)
            else:
                hear(self.parts, *protocol.decode(raw), self._metrics)
        except HeadwaterError as error:
            self._refuse(error)

    def _advance(self, state: ConnectionState) -> None:
        """Enter a later state; does nothing if the connection is in a later one."""
        self._state = max(self._state, state)
        self.out.ended = self.out.ended or state >= ConnectionState.LINGERING

    def _unqueue(self) -> bytes:
        raw = self._queue.popleft()
        self._queued_bytes -= len(raw)
        return raw

    def _proceed(self) -> None:
        """Begin the queued frames, up to the first that must wait."""
        queue, left = self._queue, TURN_BYTES
        while queue and self._task is None and not self.out.full:
            if left <= 0:
                if self._turn is None:
                    self._turn = self.loop.call_soon(self._next_turn)
                break
            before = self._queued_bytes
            if queue[0].startswith(EMIT, 4) and self.connected and len(queue[0]) <= LARGE_BYTES:
                self._emit()
            elif self.out.slots or self._state >= ConnectionState.ENDING:
                break
            else:
                self._begin(self._unqueue())
            left -= before - self._queued_bytes
        if self._state and not (self.out.ended or queue or self.out.slots or self._task):
            self._end()

    def _emit(self) -> None:
        """Begin the EMITs at the head of the queue, as many as one turn may begin, up to a large one."""
        queue, size = self._queue, 0
        raws = []
        while queue and size < TURN_BYTES and queue[0].startswith(EMIT, 4) and len(queue[0]) <= LARGE_BYTES:
            raws.append(raw := queue.popleft())
            size += len(raw)
        self._queued_bytes -= size
        self._emits.append(raws, size)

    def _next_turn(self) -> None:
        self._turn = None
        self.go_on()

    def _begin(self, raw: bytes) -> None:
        """Begin the request of a frame, when all before it are answered."""
        if len(raw) > LARGE_BYTES:
            self.start(self._answer_large(raw), len(raw))
            return
        try:
            type, frame = protocol.decode(raw)
            self._check_type(type)
        except HeadwaterError as error:
            self.refuse(error)
            return
        if type == "EMIT":  # whose fields are in an unusual order
            self._emits.append([raw], len(raw))
        elif type in HEARD:
            hear(self.parts, type, frame, self._metrics)
        elif type in AT_ONCE:
            slot = self.out.slot(len(raw))
            try:
                answer = AnswerSlot(AT_ONCE[type](self, frame))
            except HeadwaterError as error:
                answer = AnswerSlot(failure(error), None, error)
            self.out.fill(slot, answer, type)
        else:
            self.start(self._answer(type, frame), len(raw))

    def _check_type(self, type: str) -> None:
        """Raise Invalid for a type that is unknown, or not allowed before CONNECT."""
        if type not in _OWN and type not in self._handlers:
            raise Invalid(f"{type[:40]!r} is not a frame that a client may send", code="unknown_frame")
        if not self.connected and type != "CONNECT":
            raise Invalid("the first frame must be CONNECT", code="not_connected")

    # Requests that have the connection for themselves

    def start(self, answer: Coroutine[Any, Any, tuple[str, AnswerSlot]], size: int, count: int = 1) -> None:
        """Begin to answer `count` frames of `size` bytes; later frames wait until they are answered."""
        slot = self.out.slot(size, count)
        self._task = self.loop.create_task(self._run_alone(answer, slot))
        self._task.add_done_callback(lambda _: answer.close())  # the client may be lost before it has begun

    async def _run_alone(self, answer: Awaitable[tuple[str, AnswerSlot]], slot: ResponseSlot) -> None:
        type = ""
        try:
            type, found = await answer
        except Exception as error:  # noqa: BLE001  # each must be answered
            found = self.failed(type, error)
        finally:
            self._task = None
        if self._transport.is_closing():
            return
        self.out.fill(slot, found, type)
        self.go_on()
        self._wait_for_more()

    async def _answer_large(self, raw: bytes) -> tuple[str, AnswerSlot]:
        """Answer a frame that is decoded in another thread; few at once, because they share the interpreter lock."""
        async with self.connections.decoding:
            type, frame = await self.service.blocking(protocol.decode_large, raw)
        self._check_type(type)
        if type == "EMIT":
            return type, await self._emits.append_large(raw, frame)
        if type in HEARD:
            hear(self.parts, type, frame, self._metrics)
            return type, AnswerSlot(b"")
        return await self._answer(type, frame)

    async def _answer(self, type: str, frame: dict[str, Any]) -> tuple[str, AnswerSlot]:
        try:
            if type in AT_ONCE:
                return type, AnswerSlot(AT_ONCE[type](self, frame))
            handler = connect if type == "CONNECT" else self._handlers[type]
            return type, await handler(self, frame)
        except Exception as error:  # noqa: BLE001  # as above
            return type, self.failed(type, error)

    def failed(self, type: str, error: Exception) -> AnswerSlot:
        """Return the response to a request that failed; ends the connection if the error requires it."""
        if not isinstance(error, HeadwaterError):  # a bug must not end the server, nor expose its internals
            _log.error("a frame failed: %s", type, exc_info=error)
            return AnswerSlot(failure(error), None, error)
        ends = error.code in ENDING or (type == "CONNECT" and not self.connected)
        if ends:
            self.end()
        return AnswerSlot(failure(error), self.linger if ends else None, error)

    async def user(self) -> User:
        """Return the user with its current rights; raises Denied if the user does not exist any more."""
        access = self.service.access
        known = access.known(self.headers, self.client)
        return known if known is not None else await self.service.blocking(access.check, self.headers, self.client)

    async def require(self, frame: str, topic: str) -> User:
        """Return the user if it may send this frame (its row in `rights`) for the topic; raises Denied."""
        user = await self.user()
        require(user, action_of(frame), topic)
        return user

    # Answers

    def passed(self, slot: ResponseSlot, size: int) -> bool:
        """Remove a slot whose responses another thread has written; False if other requests wait for it.

        Does the same as filling the slot and `go_on`, with fewer calls for the most frequent case.
        """
        if self._queue or self._state or not self.out.passed(slot, size):
            return False
        if self._counted or not self._reading:
            self._flow()
        return True

    # Flow and limits

    def hold(self, size: int) -> None:
        """Count `size` more bytes as held in memory, or fewer; raises Unavailable above the limit of all connections.

        A lost connection holds nothing: bytes that are released later are not subtracted again.
        """
        if size > 0:
            self.service.budget.check(size)
        self._held += size
        self._count()

    def _count(self) -> None:
        """Report to the budget of all connections how much this one holds."""
        if self._state is ConnectionState.LOST:
            return
        held = self._held + self._incoming.size + self._queued_bytes + self.out.slots_bytes
        if held != self._counted:
            self.service.budget.count(held - self._counted)
            self._counted = held

    def go_on(self) -> None:
        """Begin requests that waited for a response, and continue to read if there is room."""
        self._proceed()
        held = self._counted or self._held or self._queue or self._incoming.size
        if held or self.out.slots_bytes > UNCOUNTED_BYTES or not self._reading or self._state or self.out.full:
            self._flow()

    def _flow(self) -> None:
        """Continue or pause reading: the limits say how much a client may send ahead of its responses."""
        self._count()
        limits = self.limits
        most = limits.frames_waiting_bytes if not self.service.budget.scarce else LARGE_BYTES
        crowded = (
            self._queued_bytes + self.out.slots_bytes > most
            or len(self._queue) > limits.frames_waiting_max
            or not (self.connected or (self._task is None and not self._queue))  # who it is comes first
        )
        wanted = not (crowded or self._state or self.out.full)
        if wanted != self._reading and not self.out.closing:
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def _wait_for_more(self) -> None:
        """Set the deadline for the next bytes from the client; the one for CONNECT is not extended."""
        if self.connected and not (self.out.full or self.out.ended):
            limits = self.limits
            self.deadline = self.loop.time() + (limits.body_idle_s if self._incoming.size else limits.idle_s)

    # Ending

    def expire(self) -> None:
        """End the connection, or extend its deadline, when the deadline has passed."""
        self.deadline = NEVER
        if self.out.full and not self.out.ended:
            waiting = self._transport.get_write_buffer_size()
            if waiting >= self._full_bytes:
                self.abort()
            self._full_bytes = waiting
            self.deadline = self.loop.time() + self.limits.write_s
        elif self._state:
            self.abort()
        elif self.connected and self._reading and self._incoming.size:
            self._refuse(Unavailable("a frame timed out", hint="send each frame without pauses", code="timeout"))
        elif self._task is not None or self.out.slots or self._queue or self.parts:
            self.deadline = self.loop.time() + self.limits.idle_s
        else:
            told = "the connection was idle for too long" if self.connected else "no CONNECT frame was received in time"
            self._refuse(Unavailable(told, hint="send PING at intervals", code="timeout"))

    def stop(self) -> None:
        """End when all requests are answered; subscriptions and queries end now."""
        if not self.out.ended:
            for part in list(self.parts.values()):
                part.stop()
            self._refuse(_stopping())

    def abort(self) -> None:
        """Close the connection without sending what is buffered."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, error: HeadwaterError) -> None:
        """End the connection because of the current frame; the frames after it are dropped."""
        self.end()
        self._refusal = None  # of something that came later
        self._refuse(error)

    def end(self) -> None:
        """Drop all frames that have arrived and have not begun, and begin no more."""
        self._advance(ConnectionState.ENDING)
        self._incoming.clear()
        self._queue.clear()
        self._queued_bytes = 0
        if self._turn is not None:
            self._turn.cancel()

    def _refuse(self, error: HeadwaterError) -> None:
        """End the connection because of what has just arrived, when all before it is answered."""
        self._advance(ConnectionState.DRAINING)
        self._refusal = self._refusal or error
        self._incoming.clear()
        self.go_on()

    def _end(self) -> None:
        """End the connection when all is answered, with the error that was the reason, if any."""
        error, self._refusal = self._refusal, None
        if error is None:
            self._transport.close()
            return
        self.out.fill(self.out.slot(0), AnswerSlot(failure(error), self.linger, error), "")

    def linger(self) -> None:
        """Give the client time to read the last frame: closing at once could reset the connection before."""
        if self.out.closing:
            return
        if self.out.behind:  # the answer waits for a huge frame
            self._close_parts()
            self.loop.create_task(self._linger_later())
            return
        self._advance(ConnectionState.LINGERING)
        self._close_parts()
        self.deadline = self.loop.time() + (self.limits.write_s if self.out.full else LINGER_S)
        if self.client.secure:  # which reads until the client has agreed to end
            self._transport.close()
            return
        self._transport.write_eof()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    async def _linger_later(self) -> None:
        while self.out.behind and not self.out.closing:
            await self.out.room()
        self.linger()

    def _close_parts(self) -> None:
        for part in list(self.parts.values()):
            part.close()
        self.parts.clear()


_OWN = frozenset(("CONNECT", "EMIT", *AT_ONCE, *HEARD))


def _too_many() -> Unavailable:
    return Unavailable("there are too many connections", hint="try again soon", code="overloaded")


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", hint="connect again soon", code="stopping")

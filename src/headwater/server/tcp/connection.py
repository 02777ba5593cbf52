"""One connection of the protocol over TCP: frames come in, take effect in their order, and are answered in it.

EMITs that follow each other are appended together. Everything else that must wait for something (COMMITTX, SUBSCRIBE,
QUERY, CALL) has the connection for itself: it begins when all before it are answered, and what comes behind waits.
What has no answer (ACKEV, QUERYACK) is heard at once. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import headwater
from headwater.errors import HeadwaterError, Invalid, TooLarge, Unavailable, Unsupported
from headwater.format import protocol
from headwater.server import tls
from headwater.server.access import require
from headwater.server.connections import keep_alive
from headwater.server.http.errors import status_of
from headwater.server.http.message import Client
from headwater.server.prompt import Way
from headwater.server.tcp import emit, sessions
from headwater.server.tcp.answers import OK, failure, response
from headwater.server.tcp.emitter import LARGE_BYTES, Emitter
from headwater.server.tcp.fields import Fields
from headwater.server.tcp.slots import Answer, Slot

if TYPE_CHECKING:
    from headwater.server.connections import Connections
    from headwater.server.scopes import Action, User

NEVER = float("inf")
LINGER_S = 2.0  # how long a client may take to read why the connection ends
METHOD = "TCP"  # what stands for a method in metrics and the access log

_log = logging.getLogger("headwater.server")


Handler = Callable[["Connection", dict[str, Any]], Awaitable[Answer]]


class Part:
    """What a connection has open beside its requests: a subscription, a query. It writes frames when it likes."""

    def resume(self) -> None:
        """There is room again."""

    def stop(self) -> None:
        """The server stops: tell the client, and let go of everything."""
        self.close()

    def close(self) -> None:
        """The client has gone: let go of everything. May be called twice."""


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, connections: Connections, handlers: dict[str, Handler]) -> None:
        """`handlers` are for the frames that wait for something, by type."""
        self.connections = connections
        self.store = connections.store
        self.limits = connections.limits
        self.loop = connections.loop
        self.deadline = NEVER
        self.client = Client()
        self.headers: dict[str, str] = {}  # that tell who it is, as HTTP has them
        self.user_name = ""
        self.parts: dict[Any, Part] = {}  # what is open, under the names that its frames know it by
        self.sessions: dict[int, sessions.Session] = {}  # transactions, by their sessID
        self.subscribed = 0  # how many subscriptions it has had: the last subID
        self.sent = 0
        self.waits = False  # for what may come late, or never: nobody waits for it who sends no more
        self._handlers = handlers
        self._metrics = connections.store.metrics
        self._emitted = self._metrics.route(METHOD, "EMIT").answered
        self._transport: Any = None
        # What comes in
        self._pieces: list[bytes] = []  # of a frame that is not whole
        self._pieces_bytes = 0
        self._needed = 4
        self._queue: deque[bytes] = deque()  # frames that wait for their turn
        self._queued_bytes = 0
        self._pull: asyncio.Future[None] | None = None
        self._reading = True
        self._connected = False
        self._over = False  # nothing is read any more
        self._lingering = False
        self._refusal: HeadwaterError | None = None  # why it ends, once all before is answered
        self._held = 0  # of the memory that all connections may take
        self._announced = 0  # of it, for a frame that is not whole
        # What goes out
        self._slots: deque[Slot] = deque()
        self._slots_bytes = 0
        self._emits = Emitter(self)
        self._task: asyncio.Task[None] | None = None
        self._full = False
        self._way: Way | None = None
        self._room: asyncio.Future[None] | None = None

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self.connections.full:
            self._metrics.connections_refused += 1
            self._over = True
            self._transport.write(failure(Unavailable("there are too many connections", code="overloaded")))
            self._transport.close()
            return
        self.connections.open.add(self)
        self._metrics.connections += 1
        self._metrics.connections_accepted += 1
        peer = transport.get_extra_info("peername")
        secure = transport.get_extra_info("ssl_object")
        self.client = Client(
            str(peer[0]) if isinstance(peer, tuple) else "",
            secure=secure is not None,
            certificate=tls.subject(secure) if secure is not None else None,
        )
        keep_alive(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        self.deadline = self.loop.time() + self.limits.header_s

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self in self.connections.open:
            self.connections.open.remove(self)
            self._metrics.connections -= 1
        self._over = True
        self._way = None
        self.deadline = NEVER
        self._queue.clear()
        self.sessions.clear()
        self.hold(-self._held)
        if self._task is not None:
            self._task.cancel()
        for part in list(self.parts.values()):
            part.close()
        self.parts.clear()
        self.resume_writing()

    def eof_received(self) -> bool:
        """The client sends no more, but may wait for answers."""
        self._over = True
        self._wake()
        under_way = bool(self._slots or self._queue or self._task) and not self.waits
        return under_way and not self.client.secure

    def pause_writing(self) -> None:
        self._full = True
        self.deadline = self.loop.time() + self.limits.write_s

    def resume_writing(self) -> None:
        self._full = False
        self._wait_for_more()
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        for part in list(self.parts.values()):
            part.resume()
        self.go_on()

    def data_received(self, data: bytes) -> None:
        self._metrics.bytes_received += len(data)
        if self._over:
            return
        if self._slots and self._slots[0].written:
            self._slots[0].finish()  # the client was quicker than our loop
        alone = not (self._slots or self._pieces or self._queue or self._task or self._full)
        if alone and self._connected and self._emits.take(data):
            self.deadline = self.loop.time() + self.limits.idle_s
            return
        if self._pieces:
            self._pieces.append(data)
            self._pieces_bytes += len(data)
            if self._pieces_bytes < self._needed:
                self._wait_for_more()
                return
            data = b"".join(self._pieces)
            self._pieces = []
        self._cut(data)
        self.go_on()
        if not self._full:
            self._wait_for_more()

    # Frames

    def _cut(self, data: bytes) -> None:
        """Take the whole frames of what has come, and keep the rest."""
        at, size = 0, len(data)
        unpack, most = protocol.PREFIX.unpack_from, self.limits.frame_bytes_max
        length = 0
        while size - at >= 4:
            (length,) = unpack(data, at)
            if not 5 <= length <= most:
                self._refuse(_bad_length(length, most))
                return
            end = at + 4 + length
            if end > size:
                break
            self._take(data[at + 4 : end], held=at == 0 and self._announced > 0)
            at = end
            if self._over:
                return
        rest = data[at:] if at else data
        self._pieces, self._pieces_bytes = [rest] if rest else [], len(rest)
        self._needed = 4 + length if len(rest) >= 4 else 4
        if len(rest) >= 4 and length > LARGE_BYTES and not self._announced:
            try:
                self.hold(length)
            except Unavailable as error:
                self._refuse(error)
                return
            self._announced = length

    def _take(self, raw: bytes, *, held: bool) -> None:
        if held:
            self._announced = 0
        elif len(raw) > LARGE_BYTES:  # it came at once
            try:
                self.hold(len(raw))
            except Unavailable as error:
                self._refuse(error)
                return
        if not (self._queue or self._task) and self._is_small_emit(raw):
            self._emits.add(raw)
        elif self._connected and _unanswered(raw):
            self._hear(raw)
        else:
            self._queue.append(raw)
            self._queued_bytes += len(raw)
            self._wake()

    def _is_small_emit(self, raw: bytes) -> bool:
        return raw.startswith(emit.HEAD, 4) and self._connected and len(raw) <= LARGE_BYTES and not self._full

    async def next_frame(self) -> bytes:
        """The next frame that waits, for a request that consists of several.

        Raises ConnectionResetError when the client has gone, and what ends the connection.
        """
        while not self._queue:
            if self._refusal is not None:
                raise self._refusal
            if self._over:
                raise ConnectionResetError("the client has gone")
            self._pull = self.loop.create_future()
            self._flow()
            await self._pull
        return self._unqueue()

    def _wake(self) -> None:
        """There is another frame, or none comes any more: whoever waits for one has to know."""
        pull, self._pull = self._pull, None
        if pull is not None and not pull.done():
            pull.set_result(None)

    def _unqueue(self) -> bytes:
        raw = self._queue.popleft()
        self._queued_bytes -= len(raw)
        return raw

    def _proceed(self) -> None:
        """Begin what can begin: EMITs and what is answered at once, up to the first frame that must wait."""
        queue = self._queue
        while queue and self._task is None and not self._full:
            raw = queue[0]
            if self._is_small_emit(raw):
                self._unqueue()
                self._emits.add(raw)
                continue
            self._emits.append()
            if self.busy or self._slots:
                break
            self._unqueue()
            self._begin(raw)
        self._emits.append()
        if self._over and not (self._lingering or queue or self._slots or self._task):
            self._end()

    def _begin(self, raw: bytes) -> None:
        """Do what a frame asks for."""
        if len(raw) > LARGE_BYTES:
            self.start(self._answer_large(raw), len(raw))
            return
        try:
            type, frame = protocol.decode(raw)
            self._check_type(type)
        except HeadwaterError as error:
            self.refuse(error)
            return
        if type in HEARD:
            self._listen(type, frame)
            return
        if type == "EMIT":  # with its fields in another order than nearly all clients have them
            self._emits.add(raw)
            return
        at_once = AT_ONCE.get(type)
        if at_once is None:
            self.start(self._answer(type, frame), len(raw))
            return
        slot = self.slot(len(raw))
        try:
            self.fill(slot, at_once(self, frame), type)
        except HeadwaterError as error:
            self.fill(slot, failure(error), type, error)

    def _check_type(self, type: str) -> None:
        """Raise Invalid for a frame that cannot be answered now, or ever."""
        if type not in self._handlers and type not in AT_ONCE and type not in ("CONNECT", "EMIT") and type not in HEARD:
            raise Invalid(f"there is no frame {type[:40]!r} that a client sends", code="unknown_frame")
        if not self._connected and type != "CONNECT":
            raise Invalid("the first frame is CONNECT", code="not_connected")

    # Requests that have the connection for themselves

    def start(self, answer: Awaitable[tuple[str, Answer]], size: int) -> None:
        slot = self.slot(size)
        self._task = self.loop.create_task(self._run_alone(answer, slot))

    async def _run_alone(self, answer: Awaitable[tuple[str, Answer]], slot: Slot) -> None:
        try:
            type, found = await answer
        finally:
            self._task = None
            if slot.size > LARGE_BYTES:
                self.hold(-slot.size)
        if self._transport.is_closing():
            return
        slot.then, slot.counted = found.then, found.counted
        self.fill(slot, found.data, type, found.error)
        self.go_on()

    async def _answer_large(self, raw: bytes) -> tuple[str, Answer]:
        try:
            type, frame = await self.store.blocking(protocol.decode, raw)
            self._check_type(type)
        except HeadwaterError as error:
            self.end()
            return "", Answer(failure(error), self.linger, error)
        if type == "EMIT":
            return type, await self._emits.alone(raw)
        return await self._answer(type, frame)

    async def _answer(self, type: str, frame: dict[str, Any]) -> tuple[str, Answer]:
        try:
            if type == "CONNECT":
                return type, await self._connect(frame)
            return type, await self._handlers[type](self, frame)
        except HeadwaterError as error:
            ends = (type == "CONNECT" and not self._connected) or error.code == "unauthenticated"
            if ends:
                self.end()
            return type, Answer(failure(error), self.linger if ends else None, error)
        except Exception as error:  # noqa: BLE001  # a bug of ours must not end the server, nor tell its insides
            _log.error("a frame failed: %s", type, exc_info=error)
            return type, Answer(failure(error), None, error)

    async def _connect(self, frame: dict[str, Any]) -> Answer:
        fields = Fields("CONNECT", frame, ("version", "username", "password", "token"))
        version = fields.text("version", needed=True) or ""
        if version.partition(".")[0] != protocol.VERSION.partition(".")[0]:
            raise Unsupported(
                f"version {version[:40]!r} of the protocol is not spoken here",
                hint=f"it is {protocol.VERSION}",
                code="unsupported_version",
            )
        if self._connected:
            raise Invalid("CONNECT comes once", code="bad_field")
        headers = _credentials(fields)
        access = self.store.access
        user = access.known(headers, self.client)
        if user is None:
            user = await self.store.blocking(access.check, headers, self.client)
        self.headers, self.user_name = headers, user.name
        self._connected = True
        uuid = str(self.store.engine.uuid)
        return Answer(response(version=protocol.VERSION, server=f"headwater/{headwater.__version__}", uuid=uuid))

    async def user(self) -> User:
        """Who is at the other end, and what they may do now; raises Denied if they are not known any more."""
        access = self.store.access
        known = access.known(self.headers, self.client)
        return known if known is not None else await self.store.blocking(access.check, self.headers, self.client)

    async def require(self, action: Action, topic: str) -> User:
        """The same, if they may do this; raises Denied."""
        user = await self.user()
        require(user, action, topic)
        return user

    # Answers

    def slot(self, size: int) -> Slot:
        slot = Slot(size)
        self.place(slot)
        return slot

    def place(self, slot: Slot) -> None:
        """Let a slot be the last."""
        self._slots.append(slot)
        self._slots_bytes += slot.size

    def way(self) -> Way | None:
        """The socket for another thread to write to; None if others may write meanwhile, or with TLS."""
        if self._slots or self.parts or self.client.secure or self._transport.get_write_buffer_size():
            return None
        if self._way is None:
            self._way = Way(self._transport.get_extra_info("socket").fileno())
        return self._way

    def fill(self, slot: Slot, data: bytes, type: str, error: BaseException | None = None, count: int = 1) -> None:
        """An answer is known, or `count` of them: write it, and those that waited for it."""
        slot.data = data
        status = 200
        if error is not None:
            status = status_of(error) if isinstance(error, HeadwaterError) else 500
            self._metrics.failed(error.code if isinstance(error, HeadwaterError) else "internal")
        seconds = perf_counter() - slot.begun
        access_log = self._metrics.access_log
        if not slot.counted:
            self._metrics.route(METHOD, type).answered(status, seconds, count)
        if access_log is not None and not slot.counted:
            for _ in range(count):
                known = self.client.address, self.user_name, METHOD, type, type, status
                access_log.note(*known, slot.size // count, len(data) // count, seconds)
        slots = self._slots
        ready = []
        while slots and slots[0].data is not None:
            done = slots.popleft()
            self._slots_bytes -= done.size
            ready.append(done)
        if not ready:
            return
        if not self._transport.is_closing():
            self.write(b"".join([each.data for each in ready if each.data]))
        for each in ready:
            if each.then is not None:
                each.then()

    def passed(self, slot: Slot, count: int, size: int) -> bool:
        """Another thread has written the answers of the only slot, and nothing waits for them; False if something does.

        The shortest way for what is done most: the same as `fill` and `go_on`.
        """
        if len(self._slots) > 1 or self._queue or self._over or self._metrics.access_log is not None:
            return False
        self._slots.clear()
        self._slots_bytes = 0
        self.sent += size
        self._metrics.bytes_sent += size
        self._emitted(200, perf_counter() - slot.begun, count)
        if not self._reading:
            self._flow()
        return True

    def write(self, data: bytes) -> bool:
        """Send frames; False when there is no more room: then wait for `Part.resume`, or `room`. Never raises."""
        if data:
            self.sent += len(data)
            self._metrics.bytes_sent += len(data)
            self._transport.write(data)
        return not self._full

    async def room(self) -> None:
        """Wait until the client has taken some of what was sent."""
        while self._full and not self._transport.is_closing():
            if self._room is None:
                self._room = self.loop.create_future()
            await asyncio.shield(self._room)

    @property
    def busy(self) -> bool:
        """Whether a request has the connection for itself."""
        return self._task is not None

    def end(self) -> None:
        """Look at no more frames, because the answer to the last one ends the connection."""
        self._over = True
        self._queue.clear()

    @property
    def over(self) -> bool:
        """Whether no more frames are looked at: the client sends no more, or the connection is to end."""
        return self._over

    @property
    def closing(self) -> bool:
        """Whether nothing can be written any more."""
        return bool(self._transport.is_closing())

    # Flow and limits

    def hold(self, size: int) -> None:
        """Hold so much more in memory, or less; raises Unavailable if it is too much for all connections together."""
        if size > 0:
            self.store.budget.take(size)
        else:
            size = max(size, -self._held)  # a connection that was lost has given all back
            self.store.budget.give_back(-size)
        self._held += size

    def go_on(self) -> None:
        """Something was answered: begin what waited for it, and read on if there is room."""
        self._proceed()
        self._flow()

    def _flow(self) -> None:
        """Read on, or not: a client may not be ahead of its answers by more than the limits."""
        limits = self.limits
        waiting = self._queued_bytes + self._slots_bytes
        crowded = waiting > limits.frames_waiting_bytes or len(self._queue) > limits.frames_waiting_max
        # Who waits for a frame must get one, however large the request is that waits for it.
        wanted = self._lingering or not (self._over or self._full or (crowded and self._pull is None))
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def _wait_for_more(self) -> None:
        """Set the time by which the client must have sent something."""
        if self._lingering:
            return
        limits = self.limits
        patience = limits.body_idle_s if self._pieces else limits.idle_s if self._connected else limits.header_s
        if self._connected or self._pieces or self.deadline == NEVER:
            self.deadline = self.loop.time() + patience

    def _hear(self, raw: bytes) -> None:
        """Something that has no answer: what is wrong with it is only counted."""
        try:
            self._listen(*protocol.decode(raw))
        except HeadwaterError as error:
            self._refuse(error)

    def _listen(self, type: str, frame: dict[str, Any]) -> None:
        try:
            fields = Fields(type, frame, HEARD[type])
            name = fields.integer("subID" if type == "ACKEV" else "queryID", least=-(1 << 31), needed=True)
            part = self.parts.get((type, name))
            if part is not None:
                part.acknowledge(fields)  # type: ignore[attr-defined]  # it is one that can be
        except HeadwaterError as error:
            self._metrics.failed(error.code)

    # Ending

    def expire(self) -> None:
        """Its time is over."""
        self.deadline = NEVER
        if self._full or self._over:
            self.abort()
        elif self._pull is not None:
            self._refuse(Unavailable("the body of a CALL stands still", code="timeout"))
        elif (self.parts and not self._pieces) or self._task is not None or self._slots:
            self._wait_for_more()
        else:
            told = "a frame stands still" if self._pieces else "nothing was sent for too long"
            self._refuse(Unavailable(told, hint="send PING now and then", code="timeout"))

    def stop(self) -> None:
        """End when what was asked is answered; what streams ends now."""
        for part in list(self.parts.values()):
            part.stop()
        self._refuse(Unavailable("the server ends", hint="connect again soon", code="stopping"))

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, error: HeadwaterError) -> None:
        """End the connection because of the frame whose turn it is: those behind it are not looked at."""
        self._queue.clear()
        self._queued_bytes = 0
        self._refuse(error)

    def _refuse(self, error: HeadwaterError) -> None:
        """End it because of what has just come: what came before is answered first."""
        self._over = True
        self._refusal = error
        self._pieces = []
        self._wake()
        self._proceed()

    def _end(self) -> None:
        """All is answered, and nothing more is read: say why, if there is a reason, and end."""
        error, self._refusal = self._refusal, None
        if error is None:
            self._transport.close()
            return
        slot = self.slot(0)
        slot.then = self.linger
        self.fill(slot, failure(error), "", error)

    def linger(self) -> None:
        """Let the client read the answer before the connection is reset under what it still sends."""
        if self._transport.is_closing():
            return
        self._over = self._lingering = True
        for part in list(self.parts.values()):  # what they would send comes too late
            part.close()
        if self.client.secure:
            self._transport.close()
            return
        self._transport.write_eof()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self.deadline = self.loop.time() + LINGER_S


def _ping(connection: Connection, frame: dict[str, Any]) -> bytes:
    del connection
    Fields("PING", frame, ())
    return OK


AT_ONCE: dict[str, Callable[[Connection, dict[str, Any]], bytes]] = {
    "PING": _ping,
    "STARTTX": sessions.start,
    "ABORTTX": sessions.abort,
}
HEARD = {"ACKEV": ("subID", "seqNo", "partition"), "QUERYACK": ("queryID",)}


def _head(type: str) -> bytes:
    """How a frame of this type begins, after its length, as nearly all clients write it."""
    return b"\x02type\0" + protocol.LENGTH.pack(len(type) + 1) + type.encode() + b"\0"


_HEARD = tuple(_head(type) for type in HEARD)


def _unanswered(raw: bytes) -> bool:
    return raw.startswith(_HEARD, 4)


def _credentials(fields: Fields) -> dict[str, str]:
    """What CONNECT says of who it is, as the headers of HTTP would."""
    name, password, token = fields.text("username"), fields.text("password"), fields.text("token")
    if token is not None:
        if name is not None or password is not None:
            raise fields.wrong("has a token and a user", hint="give one of them")
        return {"authorization": f"Bearer {token}"}
    if name is None and password is None:
        return {}
    if name is None or password is None or ":" in name:
        raise fields.wrong("needs 'username' and 'password', both", hint="and no colon in the name")
    return {"authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}


def _bad_length(length: int, most: int) -> HeadwaterError:
    if length < 5:
        return protocol.bad_frame(f"{length} bytes are too few")
    return TooLarge(
        f"the frame has {length} bytes, and may have {most}",
        code="frame_too_large",
        limit="frame_bytes_max",
        maximum=most,
    )

"""The EMITs of one connection: those that come together are one append. Belongs to the loop's thread."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headwater.errors import Denied, HeadwaterError
from headwater.format.protocol import PREFIX
from headwater.log.pending import PendingAppend
from headwater.server import commits
from headwater.server.commits import Group, Way
from headwater.server.rights import action_of
from headwater.server.tcp import emit as emits
from headwater.server.tcp.answers import OK, emitted, failure
from headwater.server.tcp.emit import Emit, EmitShape
from headwater.server.tcp.incoming import LARGE_BYTES
from headwater.server.tcp.slots import AnswerSlot, ResponseSlot

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

APPEND = action_of("EMIT")
BROKEN = ("bad_frame", "too_deep")  # what ends the connection

_log = logging.getLogger("headwater.server")


def write(group: Group) -> None:
    """Make and write the answers of a group that was committed. Called in the thread that did it."""
    ready = []
    for waiting, slot in group:
        if slot.__class__ is EmitSlot and waiting.rows.error is None:
            slot.made = emitted(waiting)
            ready.append(slot)
    commits.write_prompt(ready)


class EmitSlot(ResponseSlot):
    """The answers to the EMITs of one append. Called on the loop when the append has its offset or has failed."""

    __slots__ = ("emitter", "finished", "made", "remaking", "sent", "waiting", "way")

    def __init__(self, emitter: Emitter, waiting: PendingAppend, size: int, way: Way | None) -> None:
        """`way` is None if only the loop may write."""
        super().__init__(size, waiting.rows.count)
        self.emitter = emitter
        self.waiting = waiting
        self.way = way
        self.made = b""
        self.sent = 0  # bytes of it that were written
        self.finished = False
        self.remaking: asyncio.Task[None] | None = None

    def __call__(self, _: PendingAppend) -> None:
        self.finish()

    def finish(self) -> None:
        """Tell the connection, once; the client may have been quicker than our loop."""
        if not self.finished:
            self.finished = True
            self.emitter.committed(self)


class Emitter:
    """The EMITs of one connection."""

    def __init__(self, connection: TcpConnection) -> None:
        self._connection = connection
        self._service = connection.service
        self._run: list[Emit] = []  # to be appended together
        self._bytes = 0  # of their frames
        self._gathered = self._gathered_bytes = 0  # of transactions, to be answered together
        self._shapes: list[EmitShape] = []  # of the last ones

    def add(self, raw: bytes) -> None:
        """Add an event to those that are appended together; one of a transaction goes there."""
        connection = self._connection
        try:
            emit = emits.parse(raw, self._shapes, self._service.settings.bus.topic, self._service.backend.limits)
            shape = emit.shape
            session = connection.sessions.get(shape.session) if shape.session is not None else None
            if session is not None:
                if self._run:
                    self.append()
                if connection.deaf:
                    return
                if shape.content == "bson":
                    emits.check([emit.data])
                session.add(emit)
                self._gathered += 1
                self._gathered_bytes += len(raw)
                return
        except HeadwaterError as error:
            self.append()
            if connection.deaf:
                return
            if error.code in BROKEN:
                connection.refuse(error)
            else:
                connection.out.fill(connection.out.slot(len(raw)), failure(error), "EMIT", error)
            return
        run = self._run
        if run and not (shape.plain and run[0].shape.plain and shape.topic == run[0].shape.topic):
            self.append()
        if not connection.deaf:  # one of those before it was not BSON
            self._run.append(emit)
            self._bytes += len(raw)

    def clear(self) -> None:
        """Forget the events that were gathered: something before them ended the connection."""
        self._run, self._bytes = [], 0

    def append(self) -> None:
        """Append the events that were gathered; those of transactions, which came before them, are answered."""
        run, size = self._run, self._bytes
        connection = self._connection
        if self._gathered:
            count, slot = self._gathered, connection.out.slot(self._gathered_bytes, self._gathered)
            self._gathered = self._gathered_bytes = 0
            connection.out.fill(slot, OK * count, "EMIT", None, count)
        if not run or connection.busy:
            return
        self._run, self._bytes = [], 0
        try:
            if run[0].shape.content == "bson":
                emits.check([emit.data for emit in run])
        except HeadwaterError:
            self._append_sound(run)
            return
        user = self._service.access.known(connection.headers, connection.client)
        waiting = None
        try:
            if user is not None and user.may(APPEND, run[0].shape.topic):
                waiting = (
                    emits.prepare(self._service, run[0]) if len(run) == 1 else emits.prepare_all(self._service, run)
                )
        except HeadwaterError as error:
            if len(run) == 1 and not emits.missing(error):
                connection.out.fill(connection.out.slot(size), failure(error), "EMIT", error)
                return
        if waiting is None:
            connection.start(self._slowly(run), size, len(run))
            return
        self._submit(waiting, size)

    def take(self, data: bytes) -> bool:
        """Append the event of data that is one whole EMIT like another before it, when nothing else is under way.

        False if it is none: then it is to be parsed, which also tells what is wrong with it.
        """
        size = len(data)
        if not 4 < size <= LARGE_BYTES or PREFIX.unpack_from(data)[0] != size - 4:
            return False
        connection, service, raw = self._connection, self._service, data[4:]
        for shape in self._shapes:
            emit = shape.match(raw, service.backend.limits)
            if emit is not None:
                break
        else:
            return False
        user = service.access.known(connection.headers, connection.client)
        topic = shape.topic
        if user is None or shape.options is not None or shape.session is not None or not user.may(APPEND, topic):
            return False
        try:
            emits.check((emit.data,))
            waiting = service.backend.prepare_encoded(topic, emit.data, shape.type, emit.key, "bson")
        except HeadwaterError:
            return False
        self._submit(waiting, size)
        return True

    def _submit(self, waiting: PendingAppend, size: int) -> None:
        slot = EmitSlot(self, waiting, size, self._connection.out.way())
        self._connection.out.place(slot)
        self._service.commits.submit(waiting, slot)

    async def alone(self, raw: bytes) -> AnswerSlot:
        """Append a large event, which was checked and so is sound. Raises what is wrong with its fields."""
        connection = self._connection
        emit = emits.parse(raw, [], self._service.settings.bus.topic, self._service.backend.limits)
        session = connection.sessions.get(emit.shape.session) if emit.shape.session is not None else None
        if session is not None:
            session.add(emit)
            return AnswerSlot(OK)
        return (await self._slowly([emit]))[1]

    def _append_sound(self, run: list[Emit]) -> None:
        """One of them is not BSON: append those before it, and end."""
        for sound, emit in enumerate(run):
            try:
                emits.check([emit.data])
            except HeadwaterError as error:
                self._run, self._bytes = run[:sound], sum(len(each.data) for each in run[:sound])
                self.append()
                self._connection.refuse(error)
                return

    def committed(self, slot: EmitSlot) -> None:
        """An append has its place, or its error."""
        rows = slot.waiting.rows
        if slot.written and self._connection.passed(slot, rows.count, len(slot.made)):
            return
        error = rows.error
        if error is not None and emits.missing(error) and slot.remaking is None:
            slot.remaking = self._connection.loop.create_task(self._remake(slot))
            return
        if error is not None and not isinstance(error, HeadwaterError):
            _log.error("an append failed", exc_info=error)
        data = b"" if slot.written else slot.made[slot.sent :] or _told(slot.waiting)
        self._connection.out.fill(slot, data, "EMIT", error, rows.count, slot.sent)
        self._connection.go_on()

    async def _remake(self, slot: EmitSlot) -> None:
        """Recreate a topic that another process has deleted meanwhile, and retry the append once."""
        waiting = slot.waiting
        try:
            await self._service.make(waiting.opened.topic.name)
            waiting.rows.error = None
            slot.finished = False
            self._service.commits.submit(waiting, slot)
        except HeadwaterError as error:
            waiting.rows.error = error
            self.committed(slot)

    async def _slowly(self, run: list[Emit]) -> tuple[str, AnswerSlot]:
        """Append events one by one, of which something is not as usual: a right, a topic, a size."""
        connection = self._connection
        try:
            await connection.require("EMIT", run[0].shape.topic)
        except HeadwaterError as error:
            ends = isinstance(error, Denied) and error.code == "unauthenticated"
            if ends:
                connection.end()
            return "EMIT", AnswerSlot(
                failure(error) * len(run), connection.linger if ends else None, errors=[error] * len(run)
            )
        found: list[PendingAppend | bytes | HeadwaterError] = []
        for emit in run:
            try:
                found.append(await self._prepared(emit))
            except HeadwaterError as error:
                found.append(error)
        await self._service.commits.commit([each for each in found if isinstance(each, PendingAppend)])
        told = b"".join(each if isinstance(each, bytes) else _told(each) for each in found)
        return "EMIT", AnswerSlot(told, errors=[_error(each) for each in found])

    async def _prepared(self, emit: Emit) -> PendingAppend | bytes:
        """Return an append that waits to be committed, or the answer of one that was."""
        try:
            return await self._try(emit)
        except HeadwaterError as error:
            if not emits.missing(error):
                raise
        await self._service.make(emit.shape.topic)
        return await self._try(emit)

    async def _try(self, emit: Emit) -> PendingAppend | bytes:
        if len(emit.data) <= self._service.backend.limits.blob_bytes_min:
            return emits.prepare(self._service, emit)
        return await self._service.blocking(emits.append_huge, self._service, emit)


def _told(found: PendingAppend | HeadwaterError) -> bytes:
    """What is said of the events of one append, once it is committed or has failed."""
    error = _error(found)
    if error is not None:
        return failure(error) * (found.rows.count if isinstance(found, PendingAppend) else 1)
    assert isinstance(found, PendingAppend)
    return emitted(found)


def _error(found: PendingAppend | bytes | HeadwaterError) -> BaseException | None:
    if isinstance(found, PendingAppend):
        return found.rows.error
    return found if isinstance(found, HeadwaterError) else None

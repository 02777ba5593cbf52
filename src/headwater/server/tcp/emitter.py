"""The EMITs of one connection: those that come together are one append. Belongs to the loop's thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headwater.engine.waiting import Waiting
from headwater.errors import Denied, HeadwaterError
from headwater.server.http.errors import status_of
from headwater.server.tcp import emit as emits
from headwater.server.tcp.answers import OK, failure
from headwater.server.tcp.emit import Emit, Shape
from headwater.server.tcp.slots import Answer, Slot

if TYPE_CHECKING:
    from headwater.server.tcp.connection import Connection

BROKEN = ("bad_frame", "too_deep")  # what ends the connection

_log = logging.getLogger("headwater.server")


class Emitter:
    """The EMITs of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._store = connection.store
        self._run: list[Emit] = []  # to be appended together
        self._bytes = 0  # of their frames
        self._shape: Shape | None = None  # of the last one

    def add(self, raw: bytes) -> None:
        """Add an event to those that are appended together; one of a transaction goes there."""
        connection = self._connection
        try:
            emit = emits.parse(raw, self._shape, self._store.settings.bus.topic, self._store.engine.limits)
            shape = self._shape = emit.shape
            session = connection.sessions.get(shape.session) if shape.session is not None else None
            if session is not None:
                self.append()
                if shape.content == "bson":
                    emits.check([emit.data])
                session.add(emit)
                connection.fill(connection.slot(len(raw)), OK, "EMIT", 200)
                return
        except HeadwaterError as error:
            self.append()
            if error.code in BROKEN:
                connection.refuse(error)
            else:
                connection.fill(connection.slot(len(raw)), failure(error), "EMIT", status_of(error), error)
            return
        run = self._run
        if run and not (shape.plain and run[0].shape.plain and shape.topic == run[0].shape.topic):
            self.append()
        self._run.append(emit)
        self._bytes += len(raw)

    def append(self) -> None:
        """Append the events that were gathered."""
        run, size = self._run, self._bytes
        connection = self._connection
        if not run or connection.busy:
            return
        self._run, self._bytes = [], 0
        try:
            if run[0].shape.content == "bson":
                emits.check([emit.data for emit in run])
        except HeadwaterError:
            self._append_sound(run)
            return
        user = self._store.access.known(connection.headers, connection.client)
        waiting = None
        try:
            if user is not None and user.may("append", run[0].shape.topic):
                waiting = emits.prepare(self._store, run[0]) if len(run) == 1 else emits.prepare_all(self._store, run)
        except HeadwaterError as error:
            if len(run) == 1 and not emits.missing(error):
                connection.fill(connection.slot(size), failure(error), "EMIT", status_of(error), error)
                return
        if waiting is None:
            connection.start(self._slowly(run), size)
            return
        slot = connection.slot(size)
        self._store.commits.submit(waiting, lambda done: self._committed(slot, done))

    async def alone(self, raw: bytes) -> Answer:
        """Append a large event, which was decoded and so is sound."""
        connection = self._connection
        try:
            emit = emits.parse(raw, None, self._store.settings.bus.topic, self._store.engine.limits)
            session = connection.sessions.get(emit.shape.session) if emit.shape.session is not None else None
            if session is not None:
                session.add(emit)
                return Answer(OK)
        except HeadwaterError as error:
            return Answer(failure(error))
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

    def _committed(self, slot: Slot, waiting: Waiting) -> None:
        """An append has its place, or its error."""
        error = waiting.rows.error
        if error is not None and not isinstance(error, HeadwaterError):
            _log.error("an append failed", exc_info=error)
        status = 200 if error is None else status_of(error) if isinstance(error, HeadwaterError) else 500
        self._connection.fill(slot, emits.answers(waiting), "EMIT", status, error, waiting.rows.count)
        self._connection.go_on()

    async def _slowly(self, run: list[Emit]) -> tuple[str, Answer]:
        """Append events one by one, of which something is not as usual: a right, a topic, a size."""
        connection = self._connection
        try:
            await connection.require("append", run[0].shape.topic)
        except HeadwaterError as error:
            ends = isinstance(error, Denied) and error.code == "unauthenticated"
            if ends:
                connection.end()
            return "EMIT", Answer(failure(error) * len(run), connection.linger if ends else None)
        found = []
        for emit in run:
            try:
                found.append(await self._prepared(emit))
            except HeadwaterError as error:
                found.append(failure(error))
        await self._store.commits.commit([each for each in found if isinstance(each, Waiting)])
        told = (emits.answers(each) if isinstance(each, Waiting) else each for each in found)
        return "EMIT", Answer(b"".join(told))

    async def _prepared(self, emit: Emit) -> Waiting | bytes:
        """An append that waits to be committed, or the answer of one that was."""
        try:
            return await self._try(emit)
        except HeadwaterError as error:
            if not emits.missing(error):
                raise
        await self._store.make(emit.shape.topic)
        return await self._try(emit)

    async def _try(self, emit: Emit) -> Waiting | bytes:
        if len(emit.data) <= self._store.engine.limits.blob_bytes_min:
            return emits.prepare(self._store, emit)
        return await self._store.blocking(emits.append_huge, self._store, emit)

"""EMIT: from the frames of a connection to events in the log, and to the responses.

There is one path. Consecutive EMITs are a run: decoded in one call, each becomes an `Append`, and those that can be one
append are merged. The appends join the group that waits to be committed (server/commits.py), and the run is answered
when all of them are. There are two exceptions. The event of a transaction waits in its session. And a run that must
wait (for the user's rights from a file, for a missing topic, for the blob file of a huge event) has the connection for
itself meanwhile. Belongs to the loop's thread, except `write`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError, NotFound
from headwater.event import CONTENTS, Content
from headwater.format import given, protocol
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.limits import TYPE_BYTES_MAX, Limits
from headwater.log.pending import PendingAppend
from headwater.requests import Append, AppendMany
from headwater.server import commits
from headwater.server.access import require
from headwater.server.commits import Group, Way
from headwater.server.rights import User, action_of
from headwater.server.tcp.frame_io import AnswerSlot, ResponseSlot
from headwater.server.tcp.frames import INT32, OK, FrameFields, emitted, failure, ref_fields, response

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

APPEND = action_of("EMIT")
BROKEN = ("bad_frame", "too_deep")  # codes of errors that end the connection
TOGETHER = 64  # frames that are decoded in one call: more would keep the garbage collector busy
NAMES = (
    *("streamName", "eventType", "event", "sessID", "key", "expectedVersion"),
    *("partition", "meta", "durability", "producer", "content"),
)

_EVENT = b"\x03event\0"  # the type and name of a document `event`
_BARE_BYTES = len(protocol.encode("EMIT", {"eventType": "", "event": {}})) - 4 - len(protocol.EMPTY)
_TOPIC_BYTES = len(b"\x02streamName\0\x01\0\0\0\0")
_KEY_BYTES = len(b"\x02key\0\x01\0\0\0\0")  # as many as of binary data
_META_BYTES = len(b"\x03meta\0" + protocol.EMPTY)
_ENTRY_BYTES = len(b"\x02\0\x01\0\0\0\0")  # of a text in meta, beside its name and itself
_length = protocol.LENGTH.unpack_from

Item = Append | HeadwaterError | bytes
"""The request of an EMIT, what is wrong with it, or its response if that is known."""
Piece = PendingAppend | HeadwaterError | bytes
"""Consecutive EMITs of a run with one outcome: a pending append, an error, or a known response."""

_log = logging.getLogger("headwater.server")


# Decoding


def usual_request(raw: bytes, frame: dict[str, Any], topic: str, limits: Limits) -> Append | None:
    """Return what `request` returns for an EMIT that has a document, a type, and at most a topic, a key and meta.

    None for any other, and for nearly all that are wrong; raises TooLarge for meta. Two observations save the walk over
    the fields. With any other field, or one twice, the frame is longer than those that are counted here. (A topic or
    meta that is not ASCII makes it longer, too, and so not usual.) And the event is where its name is, if that occurs
    only once in the bytes.
    """
    type, key, meta = frame.get("eventType"), frame.get("key"), frame.get("meta")
    if type.__class__ is not str or frame.get("event").__class__ is not dict:
        return None
    encoded = type.encode()
    left = len(raw) - _BARE_BYTES - len(encoded)
    if "streamName" in frame:
        topic = frame["streamName"]
        if topic.__class__ is not str:
            return None
        left -= _TOPIC_BYTES + len(topic)
    if key is not None:
        if key.__class__ is str:
            key = key.encode()
        elif key.__class__ is not bytes:
            return None
        left -= _KEY_BYTES + len(key)
    if meta is not None:
        if meta.__class__ is not dict or {each.__class__ for each in meta.values()} != {str}:
            return None
        left -= _META_BYTES + _ENTRY_BYTES * len(meta) + sum(map(len, meta)) + sum(map(len, meta.values()))
    at = raw.find(_EVENT) + len(_EVENT)
    if (
        _length(raw, at)[0] != left
        or raw.find(_EVENT, at) >= 0
        or len(encoded) > TYPE_BYTES_MAX
        or (key is not None and len(key) > limits.key_bytes_max)
    ):
        return None
    return Append(topic, raw[at : at + left], "bson", encoded, key, given.encode_meta(meta, limits) if meta else None)


def request(raw: bytes, frame: dict[str, Any], topic: str, limits: Limits) -> tuple[Append, int | None]:
    """Return the request of a decoded EMIT, and its `sessID`; `topic` is the default.

    Raises Invalid with the code `bad_frame` if the frame cannot be trusted, and any other for a field that is wrong.
    """
    event = protocol.event_of(raw, len(frame))
    fields = FrameFields("EMIT", frame, NAMES)
    type, key, said = fields.text("eventType"), fields.data("key"), fields.text("streamName")
    target = topic if said is None else said
    if type is None:
        raise fields.wrong("needs 'eventType'")
    options = _options(fields)
    content: Content = options.pop("content", None) or "bson"
    session = options.pop("session", None)
    if content != "bson":
        data = _data(fields, content)
        return Append.of(target, data, limits, type=type, key=key, content=content, **options), session
    if event is None:
        raise fields.wrong("needs a document for 'event'")
    # Decoding the frame has checked it.
    return Append.of(target, event, limits, type=type, key=key, content="bson", checked=True, **options), session


def _options(fields: FrameFields) -> dict[str, Any]:
    if fields.isdisjoint(_OPTION_NAMES):
        return {}
    return {_ARGUMENTS[name]: _OPTIONS[name](fields) for name in fields if name in _OPTIONS}


def _content(fields: FrameFields) -> str | None:
    said = fields.text("content")
    if said is not None and said not in CONTENTS:
        raise fields.wrong(f"has an unknown content {said[:40]!r}", hint=f"use one of {', '.join(CONTENTS)}")
    return said


def _data(fields: FrameFields, content: Content) -> bytes:
    data = fields.data("event")
    if data is None or isinstance(data, str) == (content == "bytes"):
        raise fields.wrong(f"needs {'binary data' if content == 'bytes' else 'a string'} for 'event'")
    return data.encode() if isinstance(data, str) else data


def _durability(fields: FrameFields) -> str | None:
    said = fields.text("durability")
    if said not in (None, "fsync", "os"):
        raise fields.wrong("needs 'fsync' or 'os' for 'durability'")
    return said


def _expected(fields: FrameFields) -> int | str | None:
    said = fields.integer("expectedVersion", least=-1)
    return "none" if said == -1 else said


def _producer(fields: FrameFields) -> tuple[str, int, int] | None:
    said = fields.document("producer")
    if said is None:
        return None
    inner = FrameFields("the producer of EMIT", said, ("id", "epoch", "seq"))
    id, epoch = inner.text("id", needed=True), inner.integer("epoch", needed=True)
    seq = inner.integer("seq", needed=True)
    assert id is not None
    assert epoch is not None
    assert seq is not None
    return id, epoch, seq


_OPTIONS: dict[str, Callable[[FrameFields], Any]] = {
    "content": _content,
    "durability": _durability,
    "expectedVersion": _expected,
    "meta": lambda fields: fields.document("meta"),
    "partition": lambda fields: fields.integer("partition", most=INT32),
    "producer": _producer,
    "sessID": lambda fields: fields.integer("sessID", least=-INT32 - 1, most=INT32),
}
_OPTION_NAMES = frozenset(_OPTIONS)
_ARGUMENTS = {name: name for name in _OPTIONS} | {"expectedVersion": "expected_version", "sessID": "session"}


# Appending


class EmitRun(ResponseSlot):
    """The responses to a run of EMITs. Called on the loop for each of its appends that is committed or has failed."""

    __slots__ = ("emitter", "finished", "left", "made", "pieces", "remaking", "sent", "way")

    def __init__(
        self, emitter: Emitter, pieces: list[Piece], left: int, size: int, count: int, way: Way | None
    ) -> None:
        """`left` of the pieces are appends; `way` is None if only the loop may write."""
        ResponseSlot.__init__(self, size, count)  # which is done for each EMIT: `super` takes longer
        self.emitter = emitter
        self.pieces = pieces
        self.left = left
        self.way = way
        self.made = b""
        self.sent = 0  # bytes of it that another thread has written
        self.finished = False
        self.remaking: asyncio.Task[None] | None = None

    def __call__(self, _: PendingAppend) -> None:
        self.left -= 1
        if not self.left:
            self.finish()

    def finish(self) -> None:
        """Answer the run, once; the client may have received the responses before the loop knows."""
        if not self.finished:
            self.finished = True
            self.emitter.committed(self)


def write(group: Group) -> None:
    """Encode and write the responses of a committed group. Runs in the thread that committed it."""
    ready = []
    for waiting, run in group:
        if run.__class__ is EmitRun and run.way is not None and waiting.rows.error is None:
            run.made = emitted(waiting)
            ready.append(run)
    commits.write_prompt(ready)


class Emitter:
    """The EMITs of one connection."""

    def __init__(self, connection: TcpConnection) -> None:
        self._connection = connection
        self._service = connection.service
        self._topic = connection.service.settings.bus.topic  # of events that name none
        self._limits = connection.service.backend.limits

    def append(self, raws: list[bytes], size: int) -> None:
        """Append the events of frames, of `size` bytes together. A broken frame ends the connection."""
        items: list[Item] = []
        error: HeadwaterError | None = None
        if len(raws) <= TOGETHER:
            error = self._decode(raws, items)
        else:
            for first in range(0, len(raws), TOGETHER):
                error = self._decode(raws[first : first + TOGETHER], items)
                if error is not None:
                    break
        if items:
            self._append(items, size)
        if error is not None:
            self._connection.refuse(error)

    def _decode(self, raws: Sequence[bytes], items: list[Item]) -> HeadwaterError | None:
        """Add the requests of frames to the items of their run; return what is wrong with a broken one."""
        error: HeadwaterError | None = None
        try:
            frames = protocol.decode_bodies(raws)
        except HeadwaterError:
            frames, error = _sound(raws)
        topic, limits = self._topic, self._limits
        for raw, frame in zip(raws, frames, strict=False):
            try:
                items.append(usual_request(raw, frame, topic, limits) or self._item(raw, frame))
            except HeadwaterError as wrong:
                if wrong.code in BROKEN:
                    return wrong
                items.append(wrong)
        return error

    async def append_large(self, raw: bytes, frame: dict[str, Any]) -> AnswerSlot:
        """Append the event of a large frame, which is checked already. Raises what is wrong with the frame."""
        return (await self._wait([self._item(raw, frame)]))[1]

    def _item(self, raw: bytes, frame: dict[str, Any]) -> Item:
        """Return the request of an EMIT, or OK if a transaction took it. Raises what is wrong with it."""
        found, number = request(raw, frame, self._topic, self._limits)
        if number is None or (session := self._connection.sessions.get(number)) is None:
            return found
        session.add(found)
        return OK

    def _append(self, items: list[Item], size: int) -> None:
        """Append the events of a run: at once, or in a task if something must be waited for."""
        connection, service = self._connection, self._service
        out = connection.out
        user = service.access.known(connection.headers, connection.client)
        try:
            if user is None:
                raise _MustWaitError
            pieces = [self._prepare(user, items[0])] if len(items) == 1 else self._prepared(user, items)
        except _MustWaitError:
            connection.start(self._wait(items), size, len(items))
            return
        alone: Any = pieces[0]
        if len(pieces) == 1 and alone.__class__ is PendingAppend:
            run = EmitRun(self, pieces, 1, size, len(items), out.way())
            out.place(run)
            service.commits.submit(alone, run)
            return
        appends: list[Any] = [piece for piece in pieces if piece.__class__ is PendingAppend]
        if not appends:
            out.fill(out.slot(size, len(items)), _answer(pieces), "EMIT")
            return
        run = EmitRun(self, pieces, len(appends), size, len(items), None)
        out.place(run)
        for append in appends:
            service.commits.submit(append, run)

    def _prepared(self, user: User, items: Sequence[Item]) -> list[Piece]:
        """Return the appends of a run, and its responses that are known; raises _MustWaitError."""
        pieces: list[Piece] = []
        for place, some in groupby(items, _place):
            if place is not None:
                pieces += self._merged(user, list(some))
            else:
                pieces += [self._prepare(user, item) for item in some]
        return pieces

    def _merged(self, user: User, requests: list[Any]) -> list[Piece]:
        """Return the appends of events that go to one topic and may be one append."""
        topic, content = requests[0].topic, requests[0].content
        columns: dict[int, Column | None] = {
            TYPE: Column.of_repeated([each.type for each in requests]),
            KEY: Column.of_optional([each.key for each in requests]),
            DATA: Column.of([each.data for each in requests]),
            META: Column.of_optional([each.meta for each in requests]),
        }
        try:
            require(user, APPEND, topic)
            found = self._service.backend.prepare_many(AppendMany(topic, content, columns, len(requests)))
            if len(found) == 1 and found[0].where is None:
                return [found[0]]
        except HeadwaterError:
            pass  # of all of them, or of one that is too large: each gets its own response
        return [self._prepare(user, each) for each in requests]  # they go to several partitions, or one is invalid

    def _prepare(self, user: User, item: Item) -> Piece:
        """Return the append of one event, or what is wrong with it; raises _MustWaitError."""
        if item.__class__ is not Append:
            return item  # type: ignore[return-value]  # it is an error or a response
        request: Any = item
        try:
            if not user.may(APPEND, request.topic):
                require(user, APPEND, request.topic)  # raises
            return self._service.backend.prepare(request)
        except HeadwaterError as error:
            if is_missing(error) or len(request.data) > self._service.backend.limits.blob_bytes_min:
                raise _MustWaitError from error
            return error

    async def _wait(self, items: Sequence[Item]) -> tuple[str, AnswerSlot]:
        """Append the events of a run in order, and wait where that is needed."""
        connection, pieces = self._connection, list[Piece]()
        try:
            user = await connection.user()
        except HeadwaterError as error:
            failed = connection.failed("EMIT", error)
            return "EMIT", failed if failed.then else AnswerSlot(failed.data * len(items), None, error)
        for item in items:
            try:
                pieces.append(self._prepare(user, item))
            except _MustWaitError:
                await self._commit(pieces)  # those before it come first
                pieces.append(await self._prepare_later(user, item))
        await self._commit(pieces)
        return "EMIT", _answer(pieces)

    async def _commit(self, pieces: Sequence[Piece]) -> None:
        """Commit the appends of a run that are not committed yet."""
        found = [piece for piece in pieces if isinstance(piece, PendingAppend)]
        await self._service.commits.commit([each for each in found if each.error is None and each.offset < 0])

    async def _prepare_later(self, user: User, request: Any) -> Piece:
        """Create a missing topic and return the append, or append a huge event and return its response."""
        service = self._service
        try:
            if len(request.data) > service.backend.limits.blob_bytes_min:
                return await self._append_huge(request)
            await service.make(request.topic)
            return self._prepare(user, request)
        except HeadwaterError as error:
            return error

    async def _append_huge(self, request: Append) -> bytes:
        """Append an event that is too large to wait in memory with others; raises why it cannot be appended."""
        service = self._service
        try:
            await service.blocking(service.backend.topic, request.topic)
        except NotFound as error:
            if not is_missing(error):
                raise
            await service.make(request.topic)
        return response(**ref_fields(await service.blocking(service.backend.append, request)))

    # Answering

    def committed(self, run: EmitRun) -> None:
        """Answer a run whose appends are all committed or have failed."""
        connection = self._connection
        if run.written and connection.passed(run, len(run.made)):
            return
        if run.remaking is None:
            gone = [each for each in run.pieces if isinstance(each, PendingAppend) and is_missing(each.rows.error)]
            if gone:
                run.remaking = connection.loop.create_task(self._remake(run, gone))
                return
        answer = _answer(run.pieces) if not run.sent else AnswerSlot(run.made[run.sent :])
        connection.out.fill(run, answer, "EMIT", run.sent)
        connection.go_on()

    async def _remake(self, run: EmitRun, gone: Sequence[PendingAppend]) -> None:
        """Recreate topics that another process has deleted, and retry the appends once."""
        run.left, run.finished = len(gone), False
        for waiting in gone:
            try:
                await self._service.make(waiting.opened.topic.name)
                waiting.rows.error = None
                self._service.commits.submit(waiting, run)
            except HeadwaterError as error:
                waiting.rows.error = error
                run(waiting)


class _MustWaitError(Exception):
    """An event cannot be appended at once: its topic is missing, or it needs a file of its own."""


def is_missing(error: BaseException | None) -> bool:
    """Return whether an append failed because its topic does not exist."""
    return isinstance(error, NotFound) and error.code in ("topic_not_found", "topic_deleted")


def _sound(raws: Sequence[bytes]) -> tuple[list[dict[str, Any]], HeadwaterError | None]:
    """Return the frames before the first that is broken, and what is wrong with that."""
    frames = []
    for raw in raws:
        try:
            frames.append(protocol.decode_large(raw)[1])
        except HeadwaterError as error:
            return frames, error
    return frames, None


def _place(item: Item) -> tuple[str, Content] | None:
    """Return the topic and content of an event that may be merged with others; None for one that may not."""
    if item.__class__ is not Append:
        return None
    request: Any = item
    if request.partition is None and request.sync is None and request.expected is None and request.producer is None:
        return request.topic, request.content
    return None


def _answer(pieces: Sequence[Piece]) -> AnswerSlot:
    """Return the responses to a run whose appends are all committed or have failed."""
    told, outcomes = [], []
    for piece in pieces:
        count, error, data = 1, None, b""
        if isinstance(piece, PendingAppend):
            count, error = piece.rows.count, piece.rows.error
            if error is None:
                data = emitted(piece)
        elif isinstance(piece, bytes):
            data = piece
        else:
            error = piece
        if error is not None:
            data = failure(error) * count
            if not isinstance(error, HeadwaterError):
                _log.error("an append failed", exc_info=error)
        told.append(data)
        outcomes.append((error, count))
    return AnswerSlot(b"".join(told), outcomes=outcomes)

"""The input and output of a connection: bytes are split into frames, and responses are written in order.

`FrameParser` finds the frames in the bytes from a client, without decoding them. `FrameWriter` writes the responses in
the order of their requests, each of which has a `ResponseSlot`, and the frames of subscriptions and queries; it also
counts them for the metrics. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.errors import HeadwaterError, TooLarge
from headwater.format.protocol import PREFIX, bad_frame
from headwater.server.commits import Way
from headwater.server.http.errors import status_of

if TYPE_CHECKING:
    from headwater.server.tcp.connection import TcpConnection

LARGE_BYTES = 64 * 1024  # a larger frame is decoded in another thread; the first frame, CONNECT, may not be larger
METHOD = "TCP"  # the HTTP method in metrics and the access log

_unpack = PREFIX.unpack_from


class AnswerSlot(NamedTuple):
    """The response to a request, or to several that follow each other; `then` is called when it is written.

    For the metrics: `error` is what it reports. Where it answers several frames, `outcomes` has the error of each, None
    for success, with how many frames in a row have it.
    """

    data: bytes
    then: Callable[[], None] | None = None
    error: BaseException | None = None
    outcomes: Sequence[tuple[BaseException | None, int]] = ()


class ResponseSlot:
    """The place of one response, or of consecutive ones, among the responses of a connection."""

    __slots__ = ("begun", "count", "data", "size", "then", "written")

    def __init__(self, size: int, count: int = 1) -> None:
        self.size = size  # bytes of the frames that it answers
        self.count = count  # number of those frames
        self.data: bytes | None = None
        self.then: Callable[[], None] | None = None
        self.begun = perf_counter()
        self.written = False  # by another thread; the loop does not know it yet

    def finish(self) -> None:
        """Finish the request after another thread has written its response."""


class FrameParser:
    """Splits the bytes of one connection. The first frame must be small: the client is not authenticated yet."""

    __slots__ = ("_bytes_max", "_most", "_needed", "_pieces")

    def __init__(self, frame_bytes_max: int) -> None:
        self._bytes_max = frame_bytes_max
        self._most = LARGE_BYTES  # maximum size of the next frame
        self._pieces = bytearray()  # the beginning of an incomplete frame
        self._needed = 4  # its size, once its length has arrived

    @property
    def size(self) -> int:
        """Return how many bytes of an incomplete frame have arrived."""
        return len(self._pieces)

    @property
    def large(self) -> bool:
        """Return whether the incomplete frame is large."""
        return self._needed > LARGE_BYTES

    def clear(self) -> None:
        """Drop the incomplete frame."""
        self._pieces = bytearray()
        self._needed = 4

    def only(self, data: bytes) -> bytes:
        """Return the frame in `data` without its length, if that is exactly one frame; else b""."""
        size = len(data)
        if not self._pieces and size > 8 and _unpack(data)[0] == size - 4 <= self._most:
            return data[4:]
        return b""

    def cut(self, data: bytes) -> Iterable[bytes]:
        """Return the frames that are complete now, without their lengths.

        Raises Invalid, `bad_frame`, or TooLarge, `frame_too_large`, for an invalid length. The parser cannot be used
        after that, nor if not all frames were taken.
        """
        if frame := self.only(data):
            self._most = self._bytes_max
            return (frame,)
        return self._cut(data)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        pieces = self._pieces
        if pieces:
            pieces += data
            needed = self._needed
            if len(pieces) < needed:
                return
            self.clear()
            if needed == 4:
                data = bytes(pieces)
            else:
                with memoryview(pieces) as view:
                    frame, data = bytes(view[4:needed]), bytes(view[needed:])
                del pieces
                self._most = self._bytes_max
                yield frame
        at, size = 0, len(data)
        while size - at >= 4:
            (length,) = _unpack(data, at)
            if not 5 <= length <= self._most:
                raise _bad_length(length, self._most)
            end = at + 4 + length
            if end > size:
                self._needed = 4 + length
                break
            self._most = self._bytes_max
            yield data[at + 4 : end]
            at = end
        self._pieces += data[at:]


def _bad_length(length: int, most: int) -> HeadwaterError:
    if length < 5:
        return bad_frame(f"a length of {length} bytes is too short")
    return TooLarge(
        f"the frame has {length} bytes; the limit is {most}",
        hint="check that the client speaks the TCP protocol" if length >= 1 << 29 else "",  # ASCII letters, such as GET
        code="frame_too_large",
        limit="frame_bytes_max",
        maximum=most,
    )


class FrameWriter:
    """The output of one connection."""

    def __init__(self, connection: TcpConnection) -> None:
        self.slots: deque[ResponseSlot] = deque()
        self.slots_bytes = 0  # bytes of the frames that they answer
        self.turn = asyncio.Lock()  # one subscription encodes at a time, when there is room
        self.full = False  # the client reads too slowly, or a huge frame is being sent
        self.ended = False  # the last frame is written: later output is dropped
        self.transport: Any = None
        self._connection = connection
        self._metrics = connection.service.metrics
        self._emitted = self._metrics.route(METHOD, "EMIT").answered
        self._way: Way | None = None
        self._room: asyncio.Future[None] | None = None
        self._paused = False
        self._huge = asyncio.Lock()
        self._behind: list[bytes] = []  # output that waits until a huge frame is sent

    @property
    def behind(self) -> bool:
        """Return whether output waits until a huge frame is sent."""
        return bool(self._behind)

    @property
    def closing(self) -> bool:
        """Return whether nothing can be written any more."""
        return self.ended or bool(self.transport.is_closing())

    def slot(self, size: int, count: int = 1) -> ResponseSlot:
        """Add and return a slot for the responses to `count` frames, of `size` bytes together."""
        slot = ResponseSlot(size, count)
        self.place(slot)
        return slot

    def place(self, slot: ResponseSlot) -> None:
        """Add a slot after all others."""
        self.slots.append(slot)
        self.slots_bytes += slot.size

    def fill(self, slot: ResponseSlot, answer: AnswerSlot, type: str, written: int = 0) -> None:
        """Write the responses to the frames of a slot, when those before it are written.

        Another thread has already sent the first `written` bytes of them.
        """
        self._metrics.bytes_sent += written
        size = (len(answer.data) + written) // slot.count
        for error, count in answer.outcomes or ((answer.error, slot.count),):
            self._note(slot, type, error, count, size)
        slot.then = answer.then
        self._deliver(slot, answer.data)

    def _note(self, slot: ResponseSlot, type: str, error: BaseException | None, count: int, size: int) -> None:
        """Count the responses to `count` frames of a slot, each of `size` bytes."""
        status = 200
        if error is not None:
            status = status_of(error) if isinstance(error, HeadwaterError) else 500
            self._metrics.failed(error.code if isinstance(error, HeadwaterError) else "internal", count)
        seconds = perf_counter() - slot.begun
        self._metrics.route(METHOD, type).answered(status, seconds, count)
        access_log = self._metrics.access_log
        if access_log is not None:
            connection = self._connection
            known = connection.client.address, connection.user_name, METHOD, type, type, status
            for _ in range(count):
                access_log.note(*known, slot.size // slot.count, size, seconds)

    def _deliver(self, slot: ResponseSlot, data: bytes) -> None:
        """Write a response and those that waited for it, if all before it are written."""
        slot.data = data
        slots = self.slots
        ready = []
        while slots and slots[0].data is not None:
            done = slots.popleft()
            self.slots_bytes -= done.size
            ready.append(done)
        if not ready:
            return
        self.write(b"".join([each.data for each in ready if each.data]))
        for each in ready:
            if each.then is not None:
                each.then()

    def passed(self, slot: ResponseSlot, size: int) -> bool:
        """Remove a slot whose responses another thread has written, with fewer calls than `fill`.

        False if it is not the only slot, or the access log is on: then the caller must fill it.
        """
        if len(self.slots) > 1 or self._metrics.access_log is not None:
            return False
        self.slots.clear()
        self.slots_bytes = 0
        self._metrics.bytes_sent += size
        self._emitted(200, perf_counter() - slot.begun, slot.count)
        return True

    def way(self) -> Way | None:
        """Return the socket for another thread to write to; None if the loop may write meanwhile, or with TLS."""
        connection = self._connection
        if self.slots or connection.parts or connection.client.secure or self._huge.locked():
            return None
        if self.transport.get_write_buffer_size():
            return None
        if self._way is None:
            self._way = Way(self.transport.get_extra_info("socket").fileno())
        return self._way

    def write(self, data: bytes) -> bool:
        """Send frames; False if the buffer is full: then wait for `ConnectionPart.resume` or `room`."""
        if data and not self.closing:
            if self._huge.locked():
                self._behind.append(data)
            else:
                self._metrics.bytes_sent += len(data)
                self.transport.write(data)
        return not self.full

    async def send_huge(self, pieces: Iterator[bytes]) -> None:
        """Send a huge frame piece by piece, each read when there is room. Other output waits until it is sent.

        It is sent to its end, even if the task that waits for it is cancelled. An exception of `pieces` ends the
        connection: half a frame cannot be taken back.
        """
        sending = self._connection.loop.create_task(self._send_pieces(pieces))
        await asyncio.shield(sending)

    async def _send_pieces(self, pieces: Iterator[bytes]) -> None:
        blocking = self._connection.service.blocking
        async with self._huge:
            self.full = True
            try:
                while not self.closing:
                    await self._drained()
                    if not (piece := await blocking(next, pieces, b"")) or self.closing:
                        break
                    self._metrics.bytes_sent += len(piece)
                    self.transport.write(piece)
                    del piece
            except Exception:
                self._connection.abort()
                raise
            finally:
                self.full = self._paused
        behind, self._behind = b"".join(self._behind), []
        self.write(behind)
        if not (self._paused or self.closing):
            self._connection.resume_writing()

    async def _drained(self) -> None:
        while self._paused and not self.closing:
            await self._until_resumed()

    async def _until_resumed(self) -> None:
        if self._room is None:
            self._room = self._connection.loop.create_future()
        await asyncio.shield(self._room)

    async def room(self) -> None:
        """Wait until there is room in the buffer, or the connection is closed."""
        while self.full and not self.closing:
            await self._until_resumed()

    def pause(self) -> None:
        """Note that the buffer of the transport is full."""
        self._paused = self.full = True

    def resume(self) -> None:
        """Wake up writers: there is room again, or the connection is closed."""
        self._paused = False
        self.full = self._huge.locked()
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def lose(self) -> None:
        """Stop writing: the connection is closed."""
        self.ended = True
        self._way = None
        self.slots_bytes = 0

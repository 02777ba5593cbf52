"""Splits the bytes from a client into frames, without decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater.errors import HeadwaterError, TooLarge
from headwater.format.protocol import PREFIX, bad_frame

LARGE_BYTES = 64 * 1024  # a frame that is decoded in another thread; the first frame, CONNECT, is none

_unpack = PREFIX.unpack_from


class FrameParser:
    """The bytes of one connection. The first frame must be small, as the client is not authenticated yet."""

    __slots__ = ("_bytes_max", "_most", "_needed", "_pieces")

    def __init__(self, frame_bytes_max: int) -> None:
        self._bytes_max = frame_bytes_max
        self._most = LARGE_BYTES  # bytes that the next frame may have
        self._pieces = bytearray()  # of a frame that is not whole
        self._needed = 4  # bytes of it, as far as that is known

    @property
    def size(self) -> int:
        """Return how many bytes have come of a frame that is not whole."""
        return len(self._pieces)

    @property
    def large(self) -> bool:
        """Return whether that frame is large."""
        return self._needed > LARGE_BYTES

    def clear(self) -> None:
        """Forget it."""
        self._pieces = bytearray()
        self._needed = 4

    def only(self, data: bytes) -> bytes:
        """Return the frame that `data` is, without its length; b"" if it is anything else than one whole frame."""
        size = len(data)
        if not self._pieces and size > 8 and _unpack(data)[0] == size - 4 <= self._most:
            return data[4:]
        return b""

    def cut(self, data: bytes) -> Iterable[bytes]:
        """Return the frames that are whole now, without their lengths.

        Raises Invalid, `bad_frame`, or TooLarge, `frame_too_large`, for a length that cannot be: after that, and when
        not all frames were taken, it is of no more use.
        """
        size = len(data)
        if not self._pieces and size > 8 and _unpack(data)[0] == size - 4 <= self._most:
            self._most = self._bytes_max
            return (data[4:],)
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
        hint="check that the client speaks the TCP protocol" if length >= 1 << 29 else "",  # four letters, as of GET
        code="frame_too_large",
        limit="frame_bytes_max",
        maximum=most,
    )

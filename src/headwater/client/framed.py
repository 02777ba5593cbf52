"""The protocol over TCP (docs/PROTOCOL.md) on a connection: requests are CALLs, and an event of its own is an EMIT.

CONNECT goes out with the first request, if that is small, so that a connection costs no round trip of its own.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headwater.client.address import Address, Credentials
from headwater.client.connection import JOIN_BYTES_MAX, Broken, Connection, Mistaken
from headwater.errors import HeadwaterError
from headwater.format import bodies, protocol
from headwater.format.codec import codec
from headwater.limits import FRAME_BYTES_MAX

PIECE_BYTES = 256 * 1024  # of a body in one frame
# Said of the connection itself: what was asked was not looked at, and may be asked on another one.
ENDED = ("stopping", "timeout")
# After these it ends too, though they answer what was asked.
LAST = ("bad_frame", "frame_too_large", "not_connected", "too_deep", "unauthenticated", "unknown_frame")
AGAIN_KINDS = ("Unavailable", "Closed")  # which HTTP tells by a status that says to try again

_encode_error = msgspec.json.Encoder(enc_hook=str).encode


class FramedConnection(Connection):
    """A connection that speaks frames. After `emit` the answer's fields are in `told`."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, timeout_s: float, credentials: Credentials
    ) -> None:
        codec()  # raises Unsupported where it is not installed
        self._connect: bytes | None = protocol.encode("CONNECT", {"version": protocol.VERSION, **credentials.fields})
        self._connecting = False  # its answer comes first
        self._rest: list[bytes] = []  # of a frame that is not whole
        self._rest_bytes = 0
        self._needed = 4
        super().__init__(address, tls, timeout_s)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes]) -> None:
        self._begin()
        asked = {"method": method, "target": target, "headers": {name: _text(value) for name, value in headers.items()}}
        if isinstance(body, bytes) and len(body) <= JOIN_BYTES_MAX:
            self._write(protocol.encode("CALL", asked | {"body": body} if body else asked))
            return
        if not self._greeted():
            return
        self._write(protocol.encode("CALL", asked | {"more": True}))
        for piece in _pieces(body):
            if self._answered_early():
                return
            self._write(bodies.encode(piece, more=True))
        self._write(bodies.encode(b"", more=False))

    def emit(self, frame: bytes) -> None:
        """Send an EMIT. Raises Broken."""
        self._begin()
        if len(frame) <= JOIN_BYTES_MAX or self._greeted():
            self._write(frame)

    def _begin(self) -> None:
        super()._begin()
        self.told: dict[str, Any] = {}

    def _write(self, frame: bytes) -> None:
        connect, self._connect = self._connect, None
        if connect is not None:
            self._connecting = True
            frame = connect + frame
        self._send(frame)

    def _greeted(self) -> bool:
        """Be known to the server before much is sent; False if it does not want us, which is the answer then."""
        if self._connect is not None:
            self._write(b"")
        while self._connecting and not self.headed:
            self._feed()
        return not self.headed

    def _parse(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes < self._needed:
            return
        data = b"".join(self._rest)
        at, size = 0, len(data)
        self._needed = 4
        while size - at >= 4:
            (length,) = protocol.PREFIX.unpack_from(data, at)
            if data[at : at + 4] == b"HTTP" and self._connecting:
                raise Mistaken("http")
            if not 5 <= length <= FRAME_BYTES_MAX:
                raise self._not_ours("a frame cannot be so large")
            if at + 4 + length > size:
                self._needed = 4 + length
                break
            self._take(data[at + 4 : at + 4 + length])
            at += 4 + length
        rest = data[at:]
        self._rest, self._rest_bytes = [rest], len(rest)

    def _take(self, raw: bytes) -> None:
        """One frame has come."""
        if self.headed and not self.ended and (found := bodies.decode(raw)) is not None:
            piece, more = found
            if piece:
                self._body.append(piece)
            self.ended = not more
            return
        try:
            type, frame = protocol.decode(raw)
        except HeadwaterError as error:
            raise self._not_ours(error.message) from error
        if type == "RESPONSE":
            self._take_response(frame)
        elif type == "CALLRESPONSE" and not self.headed and not self._connecting:
            self.status, self.headers, self.headed = frame.get("status", 0), frame.get("headers", {}), True
            self.keep = self.keep and self.status != 401
            self._take_body(frame, "body")
        elif type == "CALLBODY" and self.headed and not self.ended:
            self._take_body(frame, "data")
        else:
            raise self._not_ours(f"{type[:40]!r} was not asked for")

    def _take_response(self, frame: dict[str, Any]) -> None:
        """The answer to CONNECT or EMIT, or why the connection ends."""
        if self.headed:
            self.keep = False  # it ends after what was asked for has come
            return
        ok = frame.get("ok") is True
        if not ok and frame.get("errCode") in ENDED:
            raise Broken(f"the server has ended it: {frame.get('errMsg', '')}", sent=False)
        connecting, self._connecting = self._connecting, False
        if ok and connecting:
            return
        self.headed = self.ended = True
        self.keep = self.keep and not connecting and frame.get("errCode") not in LAST
        self.told = frame
        self.status = 200 if ok else 503 if frame.get("errKind") in AGAIN_KINDS else 400
        if not ok:
            self._body.append(_error(frame))

    def _take_body(self, frame: dict[str, Any], name: str) -> None:
        if frame.get("aborted"):
            raise Broken("the server broke it off", sent=True)
        if piece := frame.get(name):
            self._body.append(piece)
        self.ended = not frame.get("more")

    def _not_ours(self, reason: str) -> Broken:
        return Broken(f"the answer is not one of the protocol: {reason}", sent=not self._connecting)


def _pieces(body: bytes | Iterable[bytes]) -> Iterable[bytes]:
    """A body in pieces that fit a frame."""
    for piece in (body,) if isinstance(body, bytes) else body:
        if len(piece) <= PIECE_BYTES:
            if piece:
                yield piece
        else:
            yield from (piece[at : at + PIECE_BYTES] for at in range(0, len(piece), PIECE_BYTES))


def _text(value: str) -> str:
    """A header as text: over HTTP it is its bytes in UTF-8."""
    return value if value.isascii() else value.encode("latin-1").decode()


def _error(frame: Mapping[str, Any]) -> bytes:
    """An error, as HTTP tells it."""
    names = {"kind": "errKind", "code": "errCode", "message": "errMsg", "hint": "errHint", "facts": "errFacts"}
    return _encode_error({name: frame[told] for name, told in names.items() if told in frame})

"""HTTP/1.1 on a connection, with the parser that the server uses."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any

from headwater.client.address import Address, Credentials
from headwater.client.connection import JOIN_BYTES_MAX, RECEIVE_BYTES, Broken, Connection, Mistaken
from headwater.errors import Unsupported

HEAD_BYTES_MAX = 64 * 1024  # of an answer: a server that sends more is none of ours


class HttpConnection(Connection):
    """A connection that speaks HTTP."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, timeout_s: float, credentials: Credentials
    ) -> None:
        self._parser_class = _parser_class()
        self._head = f" HTTP/1.1\r\nHost: {address.authority}\r\nUser-Agent: headwater"
        if credentials.header is not None:
            self._head += f"\r\nAuthorization: {credentials.header}"
        super().__init__(address, tls, timeout_s)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes]) -> None:
        self._begin()
        lines = (f"{method} {target}{self._head}", *(f"{name}: {value}" for name, value in headers.items()))
        head = "\r\n".join(lines).encode("latin-1")
        if isinstance(body, bytes):
            size = f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() if body else b"\r\n\r\n"
            if len(body) > JOIN_BYTES_MAX:
                self._send(head + size)
                self._send(body)
            else:
                self._send(head + size + body)
            return
        self._send(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in body:
            if self._answered_early():
                return
            if piece:
                self._send(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._send(b"0\r\n\r\n")

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.headed = self.status >= 200  # before it, a server only says that it goes on
        self.keep = self.headed and self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        self.ended = self.headed
        if not self.headed:
            self.headers.clear()

    def _begin(self) -> None:
        super()._begin()
        self._parser = self._parser_class(self)
        self._head_bytes = 0

    def _parse(self, piece: bytes) -> None:
        if not self.headed:
            self._head_bytes += len(piece)
            if self._head_bytes > HEAD_BYTES_MAX + RECEIVE_BYTES:
                raise Broken("the head of the answer does not end", sent=True)
        try:
            self._parser.feed_data(piece)
        except Exception as error:
            if not self.headed and piece[:2] == b"\0\0":  # the length of a frame
                raise Mistaken("headwater") from error
            raise Broken(f"the answer is not HTTP: {error}", sent=True) from error

    def _cut_off(self) -> None:
        chunked = "chunked" in self.headers.get("transfer-encoding", "")
        if self.headed and not self.keep and "content-length" not in self.headers and not chunked:
            self.ended = True  # an answer of HTTP/1.0 ends with its connection
            return
        super()._cut_off()


def _parser_class() -> Any:
    try:
        from httptools import HttpResponseParser
    except ImportError as error:
        raise Unsupported("servers need httptools", hint="pip install 'headwater[client]'") from error
    return HttpResponseParser

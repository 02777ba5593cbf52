"""One connection to a server, for one request at a time: HTTP/1.1, with the parser that the server uses.

Made by hand, because that is where the time goes: a small request costs the client about 70 µs of a core this way, with
all of `Transport`, 190 µs with `http.client` and 330 µs with `urllib3` (in turns, on a busy machine, Python 3.11,
loopback). It also has to cut a waiting answer from another thread, which those do not offer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headwater.errors import Unsupported
from headwater.remote.server_address import Credentials, ServerAddress

HEAD_BYTES_MAX = 64 * 1024  # of an answer: a server that sends more is none of ours
RECEIVE_BYTES = 64 * 1024  # the system is asked anew for more memory than that, each time
JOIN_BYTES_MAX = 64 * 1024  # up to this, one call sends head and body
TICK_S = 0.001  # what is waited for at least: no time at all is another thing to a socket
# A peer that vanished (power, network) is noticed after a minute, also by who only waits.
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class BrokenConnectionError(Exception):
    """The connection failed. `sent`: the server may have got the whole request, and so may have done it."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class RefusedConnectionError(BrokenConnectionError):
    """No connection could be made."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=False)


class WrongPort(BrokenConnectionError):
    """The port is that of the protocol over TCP: nothing was done, and the address is wrong."""

    def __init__(self) -> None:
        super().__init__("this is the port of the TCP protocol; HTTP has its own, 7450 by default", sent=False)


class HttpConnection:
    """A connection, open from the start. `cut` may be called from any thread, the rest belongs to one at a time.

    Of the answer, `status` and `headers` are there after `receive`; `ended` says that all of it came, and `keep` that
    the connection can be used for the next request.
    """

    def __init__(
        self, address: ServerAddress, tls: ssl.SSLContext | None, timeout_s: float, credentials: Credentials
    ) -> None:
        """Raises Refused, and Unsupported where the parser is not installed."""
        self._parser_class = _parser_class()
        self._head = f" HTTP/1.1\r\nHost: {address.authority}\r\nUser-Agent: headwater"
        if credentials.header is not None:
            self._head += f"\r\nAuthorization: {credentials.header}"
        try:
            self._socket = _connect(address, tls, timeout_s)
        except OSError as error:
            raise RefusedConnectionError(_reason(error)) from error
        self._timeout_s: float | None = timeout_s
        self._begin()

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes]) -> None:
        """Send a request. Raises Broken.

        A server that answers before it has read all may close: then what it said is for `receive` to find.
        """
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

    @property
    def usable(self) -> bool:
        """Return whether it is still open, as far as can be told, and nothing unasked has come."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def receive(self) -> None:
        """Wait for the head of the answer: then `status` and `headers` are there. Raises Broken."""
        while not self.headed:
            self._feed()

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes. Raises Broken, also when it ends too early."""
        while True:
            yield from self._taken()
            if self.ended:
                return
            self._feed()

    def more(self, wait_s: float | None) -> list[bytes] | None:
        """Return what has come of the body; waits for it so long. Empty when nothing came; None when all was taken."""
        until_s = None if wait_s is None else time.monotonic() + wait_s
        while not self._body and not self.ended:  # something may come that is no whole piece
            self.timeout(None if until_s is None else max(until_s - time.monotonic(), TICK_S))
            try:
                self._feed(timed=True)
            except TimeoutError:
                return []
        return self._taken() or None

    def body(self) -> bytes:
        """Return the rest of the body. Raises Broken."""
        while not self.ended:
            self._feed()
        found = self._taken()
        return found[0] if len(found) == 1 else b"".join(found)

    def timeout(self, seconds: float | None) -> None:
        """Set how long each step may take from now on; None: as long as the other side is there."""
        if seconds != self._timeout_s:
            self._timeout_s = seconds
            self._socket.settimeout(seconds)

    def cut(self) -> None:
        """End whatever it waits for, from any thread: the one that waits finds it Broken."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not that of TLS, which belongs to one thread

    def close(self) -> None:
        self.keep = False
        with contextlib.suppress(OSError):
            self._socket.close()

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
        """Forget the last answer."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.headed = False
        self.ended = False
        self.keep = True
        self._body: list[bytes] = []
        self._parser: Any = self._parser_class(self)
        self._head_bytes = 0

    def _send(self, data: bytes) -> None:
        if self.headed:
            return  # what was refused need not be sent
        try:
            self._socket.sendall(data)
        except OSError as error:
            with contextlib.suppress(BrokenConnectionError):
                self.receive()
            self.keep = False
            if not self.headed:
                raise BrokenConnectionError(
                    _reason(error), sent=False
                ) from error  # it has not got all, and so does nothing

    def _answered_early(self) -> bool:
        """Return whether a request is answered, and so refused, before all of it was sent: the rest need not be."""
        if self.usable:
            return False
        self.receive()
        self.keep = False
        return True

    def _taken(self) -> list[bytes]:
        found, self._body = self._body, []
        return found

    def _feed(self, *, timed: bool = False) -> None:
        try:
            piece = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            if timed:
                raise
            raise BrokenConnectionError(f"no response for {self._timeout_s:g} s", sent=True) from error
        except (OSError, ValueError) as error:  # ValueError: it was closed by another thread
            raise BrokenConnectionError(_reason(error), sent=True) from error
        if piece:
            self._parse(piece)
        else:
            self._cut_off()

    def _parse(self, piece: bytes) -> None:
        """Take what has come of the answer. Raises Broken if it is none."""
        if not self.headed:
            self._head_bytes += len(piece)
            if self._head_bytes > HEAD_BYTES_MAX + RECEIVE_BYTES:
                raise BrokenConnectionError("the header of the response does not end", sent=True)
        try:
            self._parser.feed_data(piece)
        except Exception as error:
            if not self.headed and piece[:2] == b"\0\0":  # the length of a frame
                raise WrongPort from error
            raise BrokenConnectionError(f"the response is not HTTP: {error}", sent=True) from error

    def _cut_off(self) -> None:
        """The other side sends no more."""
        chunked = "chunked" in self.headers.get("transfer-encoding", "")
        if self.headed and not self.keep and "content-length" not in self.headers and not chunked:
            self.ended = True  # an answer of HTTP/1.0 ends with its connection
            return
        raise BrokenConnectionError("the connection was closed before the response was complete", sent=True)


def keep_alive(made: Any) -> None:
    """Have the system notice a peer that vanished, within a minute, also by who only waits. Servers call it too."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, seconds in KEEP_ALIVE.items():
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def _connect(address: ServerAddress, tls: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    made = socket.create_connection((address.host, address.port), timeout_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(made)
        return made if tls is None else tls.wrap_socket(made, server_hostname=address.host)
    except BaseException:
        made.close()
        raise


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it did not respond in time"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def _parser_class() -> Any:
    try:
        from httptools import HttpResponseParser
    except ImportError as error:
        raise Unsupported("servers need httptools", hint="pip install 'headwater[client]'") from error
    return HttpResponseParser

"""A proxy before an HTTP server, such as SeaweedFS, that loses requests and answers, holds them, and counts.

    with chaotic(seaweed.endpoint, seed=1, requests=0.15, answers=0.15) as proxy:
        store = open_store(seaweed.url("prefix", proxy.endpoint), …)

- A lost request never reaches the server. A lost answer is of a request that the server has done. Either way the client
  finds its connection ended. `proxy.requests` and `proxy.answers` are the shares, which may be changed at any time.
- `with proxy.hold("PUT", "*/meta/*") as held:` holds every matching request before it reaches the server (with
  `done=True`: its answer, after the server has done it) from then on, until `held.release()` or the end of the block.
  `held.wait()` returns when the first one is there. A pattern is of `fnmatch`, for the path without its query.
- `proxy.seen` is the list of what was asked: method, path, query, sizes and status (0 if it was lost on its way there).
- `proxy.strip` are names of headers that are taken out of requests: without If-Match, a server ignores a condition.
  The client must not sign what it sends then (`skip_signature`).

Requests are read as a whole, so this is for objects that fit in memory. Everything is safe from any thread.
"""

from __future__ import annotations

import contextlib
import fnmatch
import random
import socket
import struct
import threading
from collections.abc import Iterator
from io import BufferedReader
from typing import NamedTuple
from urllib.parse import unquote


class Seen(NamedTuple):
    """One request that was handed on or lost."""

    method: str
    path: str
    query: str
    sent: int  # bytes of the body
    received: int  # bytes of the answer's body
    status: int


class Held:
    """Requests, or answers to them, that wait."""

    def __init__(self, method: str, pattern: str, done: bool) -> None:
        self._method = method
        self._pattern = pattern
        self.done = done
        self._arrived = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        """Wait until one is held."""
        assert self._arrived.wait(30), f"no {self._method} of {self._pattern} came"

    def release(self) -> None:
        """Let all of them go on, and hold no more."""
        self._released.set()

    def pass_by(self, method: str, path: str, done: bool) -> None:
        """Wait here if this is one to be held."""
        if done == self.done and method == self._method and fnmatch.fnmatchcase(path, self._pattern):
            self._arrived.set()
            self._released.wait()


class Chaos:
    """The proxy; `endpoint` is where it listens. Make it with `chaotic`."""

    def __init__(self, endpoint: str, seed: int, requests: float, answers: float) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._random = random.Random(seed)
        self._mutex = threading.Lock()  # of what is below, and of the random numbers
        self._open: set[socket.socket] = set()
        self._held: list[Held] = []
        self.requests = requests
        self.answers = answers
        self.strip: tuple[bytes, ...] = ()
        self.lost_requests = self.lost_answers = 0
        self.seen: list[Seen] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def hold(self, method: str, pattern: str, *, done: bool = False) -> Iterator[Held]:
        """Hold matching requests, or with `done` the answers to them, until released or the end of the block."""
        held = Held(method, pattern, done)
        self._held = [*self._held, held]
        try:
            yield held
        finally:
            held.release()
            self._held = [each for each in self._held if each is not held]

    def close(self) -> None:
        """Listen no more, let go of what is held and cut what is open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for held in self._held:
            held.release()
        with self._mutex:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError), socket.create_connection(self._target) as server:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = {client, server}
            with self._mutex:
                self._open |= pair
            try:
                with client.makefile("rb") as asked, server.makefile("rb") as answered:
                    while self._hand_on(client, server, asked, answered):
                        pass
            finally:
                with self._mutex:
                    self._open -= pair

    def _hand_on(
        self, client: socket.socket, server: socket.socket, asked: BufferedReader, told: BufferedReader
    ) -> bool:
        """One request and its answer; False if the connection is to end."""
        line, head, body = _message(asked, strip=self.strip)
        method, target, _ = line.decode().split(" ", 2)
        path, _, query = target.partition("?")
        path = unquote(path)
        self._pass_by(method, path, done=False)
        if self._loses(self.requests):
            self.lost_requests += 1
            self.seen.append(Seen(method, path, query, len(body), 0, 0))
            return self._cut(client)
        server.sendall(line + head + body)
        answer, answer_head, answer_body = _message(told, empty=method == "HEAD")
        self.seen.append(Seen(method, path, query, len(body), len(answer_body), int(answer.split()[1])))
        self._pass_by(method, path, done=True)
        if self._loses(self.answers):
            self.lost_answers += 1
            return self._cut(client)
        client.sendall(answer + answer_head + answer_body)
        return b"connection: close" not in answer_head.lower()

    def _pass_by(self, method: str, path: str, done: bool) -> None:
        for held in self._held:
            held.pass_by(method, path, done)

    def _loses(self, share: float) -> bool:
        with self._mutex:
            return self._random.random() < share

    def _cut(self, client: socket.socket) -> bool:
        if self._loses(0.5):  # the client finds a reset, not an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def _message(
    stream: BufferedReader, *, empty: bool = False, strip: tuple[bytes, ...] = ()
) -> tuple[bytes, bytes, bytes]:
    """The first line, the headers with the empty line behind them, and the body, of a request or an answer."""
    line = stream.readline()
    if not line:
        raise EOFError
    lines = []
    while (header := stream.readline()) not in (b"\r\n", b""):
        if header.partition(b":")[0].lower() not in strip:
            lines.append(header)
    head = b"".join(lines) + b"\r\n"
    fields = {name.strip().lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines)}
    if empty or line.split(b" ")[1] in (b"204", b"304"):
        return line, head, b""
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return line, head, b"".join(_chunks(stream))
    return line, head, _exactly(stream, int(fields.get(b"content-length", b"0")))


def _chunks(stream: BufferedReader) -> Iterator[bytes]:
    """The chunks as they are on the wire. No trailers: neither side sends any."""
    while True:
        line = stream.readline()
        size = int(line.partition(b";")[0], 16)
        yield line + _exactly(stream, size + 2)
        if size == 0:
            return


def _exactly(stream: BufferedReader, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


@contextlib.contextmanager
def chaotic(endpoint: str, seed: int = 1, *, requests: float = 0.0, answers: float = 0.0) -> Iterator[Chaos]:
    proxy = Chaos(endpoint, seed, requests, answers)
    try:
        yield proxy
    finally:
        proxy.close()

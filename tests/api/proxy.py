"""A proxy before a real server that cuts connections: at random points, or just before an answer is handed on."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Literal

from tests.server.serving import Server

Mode = Literal["pass", "random", "drop answers"]


class Proxy:
    """Forwards to a server, which may be replaced. `cuts` counts connections that were cut, `lost` lost answers."""

    def __init__(self, server: Server, seed: int) -> None:
        # Bytes of answers that pass before a cut
        self.budgets: tuple[int, ...] = (0, 1, 17, 150, 300, 900, 3_000, 20_000, 200_000)
        self.turn_to(server)
        self.mode: Mode = "pass"
        self.made = self.cuts = self.lost = 0
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._mutex = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def turn_to(self, server: Server) -> None:
        """Forward to this server from now on."""
        self._target = server.host, server.port

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Cut whatever is open now."""
        with self._mutex:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._mutex:
                    self.made += 1
                    budget = self._random.choice(self.budgets)
                threading.Thread(target=self._forward, args=(client, budget), daemon=True).start()

    def _forward(self, client: socket.socket, budget: int) -> None:
        """`budget` is how many bytes of answers pass before a connection is cut, when that is the mode."""
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            pair = {client, server}
            with self._mutex:
                self._open |= pair
            try:
                self._pump(client, server, budget)
            finally:
                with self._mutex:
                    self._open -= pair

    def _pump(self, client: socket.socket, server: socket.socket, budget: int) -> None:
        poll = select.poll()
        ends = {each.fileno(): each for each in (client, server)}
        for fd in ends:
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                piece = ends[fd].recv(65_536)
                if not piece:
                    return
                if ends[fd] is client:
                    server.sendall(piece)
                    continue
                if self.mode == "drop answers":
                    self._cut(client, b"", piece)
                    return
                if self.mode == "random" and len(piece) > budget:
                    self._cut(client, piece[:budget], piece)
                    return
                budget -= len(piece) if self.mode == "random" else 0
                client.sendall(piece)

    def _is_lost(self, part: bytes, piece: bytes) -> bool:
        """Whether something was done, and nobody hears of it."""
        return piece.startswith(b"HTTP/1.1 200") and b"\r\n\r\n" not in part

    def _cut(self, client: socket.socket, part: bytes, piece: bytes) -> None:
        with self._mutex:
            self.cuts += 1
            self.lost += self._is_lost(part, piece)
            reset = self._random.random() < 0.5
        client.sendall(part)
        if reset:  # the client finds a reset, not an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def proxied(server: Server, mode: Mode, seed: int = 1) -> Iterator[Proxy]:
    proxy = Proxy(server, seed)
    proxy.mode = mode
    try:
        yield proxy
    finally:
        proxy.close()

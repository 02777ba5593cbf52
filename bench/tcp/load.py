"""What load.c does, where there is no compiler: the same arguments, input and output (see there), at a higher cost."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Iterator

PATIENCE_S = 30.0
BUFFER_BYTES = 1 << 18
SEQUENCE = b"\x12seqNo\0"
TYPE_AT, EVENT = 18, b"RECEV\0"
ACCEPTED = b"\x08ok\0\x01"


class Connection:
    """A connection to the server, and what was received of it and not looked at."""

    def __init__(self, wire: str, port: int, hello: bytes, requests: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(hello)
        self._messages = _frames if wire == "frames" else _nats
        self._requests = requests
        self._position = 0
        self._rest = b""

    def receive(self) -> list[bytes]:
        """The answers and events that have come, whole."""
        data = self.socket.recv(BUFFER_BYTES)
        if not data:
            raise SystemExit("the server closed the connection")
        data = self._rest + data
        found = list(self._messages(data))
        self._rest = data[sum(map(len, found)) :]
        return [message for message in found if message[:4] not in (b"INFO", b"PING")]

    def request(self, size: int) -> None:
        """Send so many bytes of the requests, which go round."""
        while size:
            piece = self._requests[self._position : self._position + size]
            self.socket.sendall(piece)
            self._position = (self._position + len(piece)) % len(self._requests)
            size -= len(piece)


def publish(wire: str, port: int, count: int, hello: int, given: bytes, crowd: int, window: int, size: int) -> None:
    each = len(given) // crowd
    parts = [given[i * each : (i + 1) * each] for i in range(crowd)]
    connections = [Connection(wire, port, part[:hello], part[hello:]) for part in parts]
    poll, by_number = select.epoll(), {connection.socket.fileno(): connection for connection in connections}
    for number, connection in by_number.items():
        while not connection.receive():
            pass
        poll.register(number, select.EPOLLIN)
    began = time.monotonic()
    left = count - crowd * window
    for connection in connections:
        connection.request(window * size)
    while count > 0:
        for number, _ in poll.poll(PATIENCE_S) or [(-1, 0)]:
            answers = len(by_number[number].receive())  # there is no -1: nothing comes any more
            count -= answers
            more = min(answers, left)
            left -= more
            by_number[number].request(more * size)
    print(time.monotonic() - began)


def deliver(wire: str, port: int, count: int, hello: int, given: bytes, every: int) -> None:
    began = time.monotonic()
    connection = Connection(wire, port, given[:hello])
    seen = 0
    while seen < count:
        for message in connection.receive():
            place = seen.to_bytes(8, "little")
            if wire == "frames":
                if not message.startswith(EVENT, TYPE_AT):
                    continue
                if SEQUENCE + place not in message:
                    raise SystemExit(f"out of order: {message!r}")
                told = given[hello:-10] + place + given[-2:]
            else:
                if not message.startswith(b"MSG "):
                    continue
                told = b"PUB %b 0\r\n\r\n" % message.split(b" ", 4)[3]
            seen += 1
            if seen % every == 0:
                connection.socket.sendall(told)
    print(time.monotonic() - began)


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(data) and (end := at + 4 + int.from_bytes(data[at : at + 4])) <= len(data):
        message = data[at:end]
        if not message.startswith(EVENT, TYPE_AT) and ACCEPTED not in message[:64]:
            raise SystemExit(f"refused: {message!r}")
        yield message
        at = end


def _nats(data: bytes) -> Iterator[bytes]:
    at = 0
    while (end := data.find(b"\n", at) + 1) > 0:
        words = data[at:end].split()
        if words[0] == b"MSG":
            end += int(words[-1]) + 2
        if end > len(data):
            return
        message = data[at:end]
        if message.startswith(b"-ERR") or (b'"error"' in message and len(words) == 4):
            raise SystemExit(f"refused: {message!r}")
        yield message
        at = end


if __name__ == "__main__":
    verb, wire, *numbers = sys.argv[1:]
    port, count, hello, *rest = map(int, numbers)
    verbs: dict[str, Callable[..., None]] = {"publish": publish, "deliver": deliver}
    verbs[verb](wire, port, count, hello, sys.stdin.buffer.read(), *rest)

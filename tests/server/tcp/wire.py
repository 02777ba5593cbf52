"""A client of the protocol over TCP that is written from docs/PROTOCOL.md alone: it shares nothing with ours."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import bson

WAIT_S = 20.0


def frame(type: str, body: dict[str, Any] | None = None) -> bytes:
    """The bytes of a frame."""
    return framed(bson.encode({"type": type, "frame": body or {}}))


def framed(raw: bytes) -> bytes:
    """Bytes with their length before them."""
    return struct.pack(">I", len(raw)) + raw


class Closed(Exception):
    """The server has ended the connection."""


class Wire:
    """A raw connection."""

    def __init__(self, address: str, timeout_s: float = WAIT_S) -> None:
        """`address` is as in headwater://127.0.0.1:7451."""
        host, _, port = address.partition("://")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> tuple[str, dict[str, Any]]:
        """The next frame: its type and body; raises Closed at the end."""
        try:
            head = self._file.read(4)
            if len(head) < 4:
                raise Closed
            (size,) = struct.unpack(">I", head)
            raw = self._file.read(size)
        except ConnectionResetError:
            raise Closed from None
        assert len(raw) == size, "a frame was cut short"
        found = bson.decode(raw)
        assert list(found) == ["type", "frame"]
        return found["type"], found["frame"]

    def raw(self, size: int) -> bytes:
        """So many bytes of what comes, whatever they are."""
        return self._file.read(size)

    def ask(self, type: str, **body: Any) -> dict[str, Any]:
        """Send one frame, and return the body of what comes next."""
        self.send(frame(type, body))
        return self.receive()[1]

    def connect(self, **body: Any) -> dict[str, Any]:
        return self.ask("CONNECT", **{"version": "1.0", **body})

    def emit(self, topic: str, event: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
        return self.ask("EMIT", **{"streamName": topic, "eventType": "made", "event": event, **fields})

    def closed(self) -> bool:
        """Whether the server ends the connection, and sends nothing before."""
        try:
            self.receive()
        except Closed:
            return True
        return False

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextlib.contextmanager
def wire(address: str, **connect: Any) -> Iterator[Wire]:
    """A connection that is connected, for the time of a block."""
    made = Wire(address)
    try:
        told = made.connect(**connect)
        assert told["ok"], told
        yield made
    finally:
        made.close()

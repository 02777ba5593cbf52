"""Many subscribers to one topic, in a process of their own: raw sockets and epoll, so that the server is what limits.

`python -m bench.http.subscribers PORT PATH SUBSCRIBERS EVENTS` prints `ready` when all streams have begun, then as JSON
how long after their time stamps the events arrived, and how many were lost, doubled or out of order.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from array import array

from bench.http.servers import HOST

PATIENCE_S = 30.0  # without a byte for anybody
MARK = b"data: "
STAMP = "{number:08d} {nanoseconds:020d}"
STAMP_BYTES = 29


class Subscriber:
    """One stream of server-sent events, whose data begins with a number and a time stamp."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.create_connection((HOST, port), PATIENCE_S)
        request = f"GET {path} HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
        self.socket.sendall(request.encode())
        self.expected = 0
        self.wrong = 0
        self.rest = b""

    def begin(self) -> None:
        """Wait for the head of the answer."""
        while b"\r\n\r\n" not in self.rest:
            piece = self.socket.recv(65_536)
            if not piece:
                raise SystemExit(f"a stream was refused: {self.rest.decode(errors='replace')}")
            self.rest += piece
        self.rest = self.rest.partition(b"\r\n\r\n")[2]
        self.socket.setblocking(False)

    def receive(self, delays: array[int]) -> int:
        """Take what is there; how many events it held."""
        piece = self.socket.recv(262_144)
        now = time.monotonic_ns()
        if not piece:
            raise SystemExit("a stream ended early")
        data = self.rest + piece if self.rest else piece
        found = 0
        at = data.find(MARK)
        while at >= 0 and at + len(MARK) + STAMP_BYTES <= len(data):
            begins = at + len(MARK)
            number = int(data[begins : begins + 8])
            if number != self.expected:
                self.wrong += 1
            self.expected = number + 1
            delays.append(now - int(data[begins + 9 : begins + STAMP_BYTES]))
            found += 1
            at = data.find(MARK, begins + STAMP_BYTES)
        # What may be the beginning of an event is kept until the rest of it comes.
        self.rest = data[at:] if at >= 0 else data[-len(MARK) + 1 :] if not data.endswith(b"\n\n") else b""
        return found


def main(port: str, path: str, subscribers: str, events: str) -> None:
    streams = [Subscriber(int(port), path) for _ in range(int(subscribers))]
    for stream in streams:
        stream.begin()
    by_number = {stream.socket.fileno(): stream for stream in streams}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    print("ready", flush=True)
    delays: array[int] = array("q")
    left = len(streams) * int(events)
    while left > 0:
        ready = poll.poll(PATIENCE_S)
        if not ready:
            break  # the rest is lost
        for number, _ in ready:
            left -= by_number[number].receive(delays)
    wrong = sum(stream.wrong for stream in streams) + abs(left)
    delays = array("q", sorted(delays))
    count = len(delays)
    told = {
        "median_ms": delays[count // 2] / 1e6 if count else None,
        "p99_ms": delays[count * 99 // 100] / 1e6 if count else None,
        "delivered": count,
        "wrong": wrong,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

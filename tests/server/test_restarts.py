"""A server that is killed or stopped under load: what it acknowledged is there, once, where it said."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

import headwater
from headwater.store import Store
from tests.server.process import ServerProcess, http, served
from tests.waiting import wait_for

WRITERS = 8


class Writer(threading.Thread):
    """Appends one item after the other until its server goes away, and remembers what it was told."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name)
        self.port = port
        self.acknowledged: dict[int, bytes] = {}
        self.unanswered = b""

    def run(self) -> None:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            self.append(connection)

    def append(self, connection: HTTPConnection) -> None:
        number = 0
        while True:
            data = f"{self.name}-{number}".encode()
            self.unanswered = data
            try:
                connection.request("POST", "/topic/t/items", data)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, HTTPException):
                return
            if answer.status == 503:  # it stops: nothing was appended
                self.unanswered = b""
                return
            assert answer.status == 200, body
            self.acknowledged[int(body)] = data
            self.unanswered = b""
            number += 1
            if answer.will_close:
                return


def load(server: ServerProcess, name: str) -> list[Writer]:
    writers = [Writer(server.port, f"{name}-{number}") for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    return writers


def have(writers: list[Writer], count: int) -> bool:
    return sum(len(each.acknowledged) for each in writers) > count


def check(hw: Store, writers: list[Writer]) -> None:
    """Everything that was acknowledged is where it was said, and nothing is there twice or from nowhere."""
    found = {event.offset: event.data for event in hw.read("t")}
    assert sorted(found) == list(range(len(found)))
    acknowledged = {offset: data for writer in writers for offset, data in writer.acknowledged.items()}
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
    assert len(set(found.values())) == len(found)
    strangers = set(found.values()) - set(acknowledged.values())
    assert strangers <= {writer.unanswered for writer in writers}


def test_what_was_acknowledged_survives_kills_under_load(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with headwater.open(path) as hw:
        hw.create("t")
    writers: list[Writer] = []
    for life in range(4):
        server = ServerProcess(path)
        try:
            writers += (mine := load(server, f"life{life}"))
            wait_for(partial(have, mine, 200))
        finally:
            server.kill()
        for writer in mine:
            writer.join(30)
            assert not writer.is_alive()
    with headwater.open(path) as hw:
        check(hw, writers)
        assert not hw.check().damaged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_answers_what_was_asked(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "data"
    server = ServerProcess(path)
    http.put(f"{server.url}/topic/t")
    writers = load(server, "w")
    wait_for(lambda: have(writers, 200))
    server.process.send_signal(number)
    assert server.stop() == 0
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()
    assert b"Traceback" not in server.output
    with headwater.open(path) as hw:
        check(hw, writers)


def test_a_stop_ends_idle_connections_and_waits_for_answers(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        http.put(f"{server.url}/topic/t")
        with (
            socket.create_connection(("127.0.0.1", server.port)) as idle,
            socket.create_connection(("127.0.0.1", server.port)) as uploading,
        ):
            stop_meanwhile(server, idle, uploading)
        assert server.stop() == 0
    with headwater.open(tmp_path / "data") as hw:
        assert [event.data for event in hw.read("t")] == [b"helloworld"]


def stop_meanwhile(server: ServerProcess, idle: socket.socket, uploading: socket.socket) -> None:
    uploading.sendall(b"POST /topic/t/items HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhello")
    time.sleep(0.2)  # both are there; nothing tells that from outside
    server.process.send_signal(signal.SIGTERM)
    idle.settimeout(10)
    assert idle.recv(10) == b""
    uploading.sendall(b"world")
    answer = b""
    uploading.settimeout(10)
    while piece := uploading.recv(4096):
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in answer


def test_programs_use_the_directory_beside_the_server(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server, headwater.open(tmp_path / "data") as hw:
        http.put(f"{server.url}/topic/t")
        writers = load(server, "w")
        mine = {hw.append("t", f"own-{number}".encode()).offset: f"own-{number}".encode() for number in range(100)}
        wait_for(lambda: have(writers, 100))
        server.stop()
        for writer in writers:
            writer.join(30)
        found = {event.offset: event.data for event in hw.read("t")}
        acknowledged = {offset: data for writer in writers for offset, data in writer.acknowledged.items()}
        assert not set(mine) & set(acknowledged)
        assert {offset: found[offset] for offset in mine | acknowledged} == mine | acknowledged


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        with pytest.raises(AssertionError, match="cannot be listened on") as failure:
            ServerProcess(tmp_path / "other", port=server.port)
        assert "Traceback" not in str(failure.value)

"""Items of any size: whole or absent, in bounded memory, and never in the way of others."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import headwater
from tests.server.process import ServerProcess, http, served
from tests.waiting import wait_for

MIB = 1024 * 1024


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server for each test, so that its memory can be measured."""
    with served(tmp_path / "data") as running:
        http.put(f"{running.url}/topic/big").raise_for_status()
        yield running


def anonymous_memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


class Peak(threading.Thread):
    """The most memory that a process had, looked at often."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid
        self.most = anonymous_memory(pid)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, anonymous_memory(self.pid))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.join()


def test_an_item_of_any_size_comes_back(process: ServerProcess) -> None:
    for size in (0, 1, 64 * 1024, 64 * 1024 + 1, MIB - 1, MIB, MIB + 1, 5 * MIB):
        data = os.urandom(size)
        for said in (data, iter([data[: size // 2], data[size // 2 :]])):  # with a length, and in chunks
            answer = http.post(f"{process.url}/topic/big/items", content=said)
            assert answer.status_code == 200
            with headwater.open(process.path) as hw:
                (event,) = hw.read("big", start=answer.json())
                assert b"".join(event.chunks()) == data


@pytest.mark.parametrize("blocks", [256, pytest.param(1024, marks=pytest.mark.torture)])
def test_a_huge_item_goes_in_and_out_in_little_memory(process: ServerProcess, tmp_path: Path, blocks: int) -> None:
    block = os.urandom(MIB)
    source = tmp_path / "source"
    with source.open("wb") as file:
        for _ in range(blocks):
            file.write(block)
    url = f"{process.url}/topic/big/items"
    before = anonymous_memory(process.pid)
    with Peak(process.pid) as peak:
        sent = subprocess.run(["curl", "-sS", "-T", str(source), "-X", "POST", url], capture_output=True, check=True)
        assert sent.stdout == b"0"
        source.unlink()
        digest = hashlib.sha256()
        size = 0
        with http.stream("GET", url, timeout=60) as answer:
            for piece in answer.iter_raw(MIB):
                size += len(piece)
                digest.update(piece)
    expected = hashlib.sha256((0).to_bytes(8, "big") + (blocks * MIB).to_bytes(4, "big"))
    for _ in range(blocks):
        expected.update(block)
    assert size == blocks * MIB + 12
    assert digest.digest() == expected.digest()
    assert peak.most - before < 64 * MIB


def test_a_broken_upload_leaves_nothing_behind(process: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", process.port)) as broken:
        broken.sendall(b"POST /topic/big/items HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000\r\n\r\n")
        broken.sendall(os.urandom(4 * MIB))
        wait_for(lambda: bool(spooled(process.path)))
    wait_for(lambda: not spooled(process.path))
    assert http.post(f"{process.url}/topic/big/items", content=b"next").json() == 0


def test_a_slow_upload_does_not_hold_up_others(process: ServerProcess) -> None:
    slow = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(40)]
    try:
        for each in slow:
            each.sendall(b"POST /topic/big/items HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000\r\n\r\n")
            each.sendall(os.urandom(2 * MIB))
        wait_for(lambda: len(spooled(process.path)) == len(slow))
        for number in range(20):
            assert http.post(f"{process.url}/topic/big/items", content=b"quick").json() == number
        assert http.get(f"{process.url}/topic/big").status_code == 200
    finally:
        for each in slow:
            each.close()


def test_an_item_above_the_topics_limit_is_refused_before_it_is_sent(process: ServerProcess) -> None:
    http.put(f"{process.url}/topic/small?data_bytes_max=2000000").raise_for_status()
    answer = http.post(f"{process.url}/topic/small/items", content=iter([b"x" * MIB] * 64))
    assert answer.status_code == 413
    assert answer.json()["facts"]["limit"] == "data_bytes_max"
    assert not spooled(process.path)
    assert http.post(f"{process.url}/topic/small/items", content=b"x" * 2_000_000).json() == 0


def test_a_huge_item_for_a_missing_topic_is_404_before_it_is_sent(process: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", process.port)) as client:
        client.sendall(
            b"POST /topic/none/items HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000000\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 404 ")


def spooled(path: Path) -> list[Path]:
    """The files of huge events that are on their way in."""
    return [found for found in path.glob("topics/*/*/spool/*") if found.is_file()]

"""What the processes of `test_kill` do. Each is started by a server of forks, and so within milliseconds."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple
from zlib import crc32

import msgspec

from headwater.api import open
from headwater.engine.engine import Engine
from headwater.event import Durability, Refs
from headwater.limits import Limits

TOPIC = "killed"
PARTITIONS = 2
LIMITS = Limits(segment_bytes=16_384, blob_bytes_min=2_000)
THREADS = 2
END = b"the end"


class Told(NamedTuple):
    """An acknowledgement: the calls of one thread are numbered, and their events carry that number."""

    writer: int
    thread: int
    call: int
    partition: int
    offset: int
    ticks: int
    events: int


class Seen(NamedTuple):
    """An event that a follower was given."""

    partition: int
    offset: int
    crc: int


Message = Told | Seen | str  # a str tells of an error
_encode = msgspec.msgpack.Encoder().encode


def data_of(writer: int, thread: int, call: int, number: int, size: int = 0) -> bytes:
    """The data of an event, that no other has."""
    return (b"%d %d %d %d " % (writer, thread, call, number)).ljust(size, b".")


def origin_of(data: bytes) -> tuple[int, int, int, int]:
    """Who appended an event."""
    writer, thread, call, number = map(int, data.split(b" ")[:4])
    return writer, thread, call, number


def write(path: Path, writer: int, seed: int, channel: Connection) -> None:
    """Append from several threads, and tell each acknowledgement, until killed."""
    engine = open(path, limits=LIMITS)
    telling = threading.Lock()  # protects `channel`
    threads = [
        threading.Thread(target=_append, args=(engine, writer, thread, Random(f"{seed} {thread}"), channel, telling))
        for thread in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _append(
    engine: Engine, writer: int, thread: int, random: Random, channel: Connection, telling: threading.Lock
) -> None:
    call = 0
    try:
        while True:
            partition = random.randrange(PARTITIONS)
            durability: Durability = random.choice(("fsync", "os"))
            count = random.choice((1, 1, 1, 7))
            size = random.choice((0, 60, 300, 3_000 if random.random() < 0.1 else 100))
            data = [data_of(writer, thread, call, number, size) for number in range(count)]
            refs: Refs = (
                [engine.append(TOPIC, data[0], partition=partition, durability=durability)]  # type: ignore[assignment]
                if count == 1
                else engine.append_many(TOPIC, data, partition=partition, durability=durability)
            )
            ref = refs[0]
            told = Told(writer, thread, call, partition, ref.offset, ref.ticks, count)
            with telling:
                channel.send_bytes(_encode(told))
            call += 1
    except Exception as error:  # noqa: BLE001  # whatever it is, the test must hear of it
        with telling:
            channel.send_bytes(_encode(repr(error)))


def follow(path: Path, channel: Connection) -> None:
    """Tell of every event, from the first, until each partition has come to its end."""
    ended = 0
    try:
        with open(path, limits=LIMITS) as engine:
            for event in engine.follow(TOPIC, start="earliest", timeout=60.0):
                data = b"".join(event.chunks())
                channel.send_bytes(_encode(Seen(event.partition, event.offset, crc32(data))))
                ended += data == END
                if ended == PARTITIONS:
                    break
    except Exception as error:  # noqa: BLE001  # whatever it is, the test must hear of it
        channel.send_bytes(_encode(repr(error)))

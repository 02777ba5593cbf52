"""What the processes of `test_kill` and `test_killed_transactions` do.

Each is started by a server of forks, and so within milliseconds.
"""

from __future__ import annotations

import threading
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple
from zlib import crc32

import msgspec

from headwater.directory import journal
from headwater.event import Content, Durability, Refs
from headwater.limits import Limits
from headwater.opening import open
from headwater.store import Store

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
    engine: Store, writer: int, thread: int, random: Random, channel: Connection, telling: threading.Lock
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


# Transactions and requests.

TRANSACTED = ("one", "two", "three")
REQUESTS = "requests"
ALONE = b"-1 0 0 0"  # an event that belongs to no transaction
TRANSACTION_LIMITS = Limits(segment_bytes=16_384)
Number = tuple[int, int, int, int]  # of a transaction: name, start, events in each topic, and which


class Committed(msgspec.Struct, tag=True):
    """A transaction was acknowledged; its first events are at these offsets of the topics."""

    number: Number
    offsets: list[int]


class Answered(msgspec.Struct, tag=True):
    """A request was answered: the next one of its producer."""

    offset: int
    ticks: int


msgspec.msgpack.decode(_encode(Answered(0, 0)), type=Committed | Answered | str)


def number_of(data: bytes) -> Number:
    """The transaction that an event belongs to."""
    name, start, events, which = map(int, data.split(b" ")[:4])
    return name, start, events, which


def transact(path: Path, name: int, start: int, asked: int, seed: str, channel: Connection) -> None:
    """Transactions over three topics, and requests from the first that nobody told of, until killed."""
    random = Random(seed)
    journal.CHECKPOINT_BYTES = 20_000  # so that it is begun anew now and then
    try:
        engine = open(path, limits=TRANSACTION_LIMITS)
        for which in count():
            events = random.choice((1, 1, 2, 5))
            padding = b"." * random.choice((0, 50, 500))
            with engine.transaction() as transaction:
                for number, topic in enumerate(random.sample(TRANSACTED * events, 3 * events)):
                    content: Content = random.choice(("bytes", "text"))
                    data = b"%d %d %d %d %d %s" % (name, start, events, which, number, padding)
                    transaction.append(topic, data, content=content)
            offsets = {ref.topic: ref.offset for ref in reversed(transaction.refs)}
            committed = Committed((name, start, events, which), [offsets[topic] for topic in TRANSACTED])
            channel.send_bytes(_encode(committed))
            if random.random() < 0.3:
                engine.append(random.choice(TRANSACTED), ALONE, durability="os")
            for _ in range(random.choice((0, 1, 3))):
                request = b"%d %d" % (name, asked)
                durability: Durability = random.choice(("fsync", "os"))
                ref = engine.append(REQUESTS, request, producer=(f"p{name}", start, asked), durability=durability)
                channel.send_bytes(_encode(Answered(ref.offset, ref.ticks)))
                asked += 1
    except Exception as error:  # noqa: BLE001  # whatever it is, the test must hear of it
        channel.send_bytes(_encode(repr(error)))

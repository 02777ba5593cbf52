"""One membership of a client in a consumer: from joining until the connection ends, or the server ends it.

Two threads work for it. One reads the events that the server sends (`Lines`) into a buffer that the server's window
bounds. The other sends acks every `ack_ms`, and otherwise a sign of life three times per lease: a client that cannot
send for as long as its lease is no member any more. Like an embedded member, it knows until when that cannot have
happened: later, it asks the server before it hands out or acks anything. Safe from any thread; a forked child has none.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from headwater.errors import Fenced, HeadwaterError, Unavailable
from headwater.event import Blob, Event, ticks_and_node
from headwater.format import jsonl
from headwater.format.jsonl import EventLine
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.remote.connection import BrokenConnectionError
from headwater.remote.failures import ErrorBody, cut_short, revive
from headwater.remote.transport import Transport

NDJSON = "application/x-ndjson"
SILENCE_S_MIN = 1.0  # the server says something three times in a lease; below this, it may just be busy
ACKS_MAX = 10_000  # of one request, which is then well below what a server takes
GONE = "member_gone"

_encode = msgspec.json.Encoder().encode


class PartitionHold(msgspec.Struct, frozen=True):
    """A partition that the member holds: by which fence, and which offset comes next."""

    fence: int
    next: int


class MembershipState(msgspec.Struct, frozen=True):
    """The state of the member on the server; see server/member.py."""

    sent: int
    idle: bool
    full: bool
    skipped: int
    held: dict[int, PartitionHold]


class AckAnswer(msgspec.Struct, frozen=True):
    """The server's answer to acks."""

    aside: list[bool]
    state: MembershipState
    cursors: dict[int, int] = {}


_decode = msgspec.json.Decoder(AckAnswer).decode


class Membership:
    """A member while it lasts. `over` says that it does not; `error` why, if that is more than a broken connection."""

    def __init__(
        self, transport: Transport, name: str, topic: str, query: Mapping[str, object], ack_s: float, tag: str
    ) -> None:
        """Join. Raises what the server raises, and Unavailable if it cannot be reached."""
        self.changed = threading.Condition()  # protects what is below; never held while something is sent
        self.over = False
        self.error: HeadwaterError | None = None
        self.refused: Fenced | None = None  # acks that came too late, for the caller that flushes
        self.received = 0
        self._transport = transport
        self._acks_path = ("consumer", name, topic, "acks")
        self._name = name
        self._ack_s = ack_s
        self._buffer: deque[tuple[int, Event]] = deque()  # each with its number
        self._waiting: dict[int, dict[int, int]] = {}  # not acked: offsets by partition, with their numbers
        self._range: dict[int, tuple[int, int]] = {}  # the offsets that came of each partition
        self._acked: dict[int, list[int]] = {}  # not sent yet
        self._failed: dict[int, set[int]] = {}  # what comes again, by partition
        self._kept: dict[int, list[tuple[int, Event]]] = {}  # what must not be handed out before that
        self._dirty_s: float | None = None
        self._speaking = threading.Lock()  # one request at a time, so that they arrive in their order
        asked_s = time.monotonic()
        self._stream = transport.stream(("consumer", name, topic, "items"), query, accept=NDJSON, body=b"")
        headers = self._stream.headers
        self.token, self.owner = headers["headwater-member"], headers["headwater-owner"]
        self._lease_s = int(headers["headwater-lease"]) / 1000
        self._said_s, self._until_s = asked_s, asked_s + self._lease_s
        for work in (self._read, self._keep):
            threading.Thread(target=work, name=f"headwater-{tag}-{work.__name__[1:]}", daemon=True).start()

    # Events

    def take(self, wait_s: float | None, stopped: Callable[[], bool]) -> Event | None:
        """Return the next event.

        None if none came within so many seconds, it was stopped, or the membership is over.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._buffer or self.over or stopped(), wait_s)
            if stopped() or not self.waits:
                return None
        self.verify()
        return self._pop()

    def _pop(self) -> Event | None:
        """Return the next event. What was acked since it came, when it was lost and came again, is passed over."""
        with self.changed:
            while self.waits:
                number, event = self._buffer.popleft()
                if self._waiting[event.partition].get(event.offset) == number:
                    return event
            return None

    def verify(self) -> None:
        """Ask the server whether the lease still holds, if it may have expired. It is `over` then, if not."""
        if time.monotonic() >= self._until_s:
            try:
                self.settle()
            except Fenced:
                self.end()

    def holds(self, event: Event) -> bool:
        """Return whether it was handed out here, as far as is known."""
        with self.changed:
            low, high = self._range.get(event.partition, (0, -1))
            return not self.over and low <= event.offset <= high

    @property
    def waits(self) -> bool:
        """Return whether there is something to hand out."""
        return bool(self._buffer) and not self.over

    def first(self, partition: int) -> int | None:
        """Return the lowest offset that is not acked of a partition; None if all are."""
        with self.changed:
            return min(self._waiting.get(partition, ()), default=None)

    # Acks

    def ack(self, partition: int, offset: int, *, all_before: bool = False) -> bool:
        """Take an event as handled, or all up to it; False if it did not come here, or not under this lease."""
        with self.changed:
            low, high = self._range.get(partition, (0, -1))
            if self.over or not low <= offset <= high:
                return False
            waiting = self._waiting[partition]
            done = [each for each in waiting if each <= offset] if all_before else [offset]
            for each in done:
                if waiting.pop(each, None) is not None:
                    self._acked.setdefault(partition, []).append(each)
                    if self._failed:
                        self._release(partition, each)
            if self._dirty_s is None and self._acked:
                self._dirty_s = time.monotonic()
                self.changed.notify_all()
        return True

    def send_acks(self) -> None:
        """Send what was acked so far, if anything was. Raises as `settle`."""
        if self._acked:
            self.settle()

    def settle(self, *, flush: bool = False, look: bool = False) -> MembershipState:
        """Send the acks; with `flush` they are durable then. Those that came too late are noted in `refused`.

        Raises Fenced if the membership is over, Unavailable if the server cannot be reached: then they are sent later.
        """
        with self._speaking:
            while True:
                acks = self._take_acks()
                more = bool(self._acked)
                last = {"flush": flush, "look": look} if not more else {}
                try:
                    state = self._say({"acks": acks, **last}).state
                except Fenced as error:
                    if error.code == GONE:
                        raise
                    with self.changed:
                        self.refused = error
                    # All acks are taken that can be, and without any it was the flush, which is done: ask for the rest.
                    flush = flush and bool(acks)
                    continue
                except HeadwaterError:
                    self._put_back(acks)
                    raise
                if not more:
                    return state

    def fail(self, event: Event, error: str) -> bool:
        """Say that handling an event failed; whether it was dead-lettered. Sent once: twice would count twice.

        If it was not, what came after it of its partition is handed out after it has come again.
        """
        self.settle()
        partition, offset = event.partition, event.offset
        with self.changed:  # before it is sent: the event may come again before the answer does
            if offset in self._waiting.get(partition, ()):
                self._failed.setdefault(partition, set()).add(offset)
                kept = [each for each in self._buffer if each[1].partition == partition]
                self._kept.setdefault(partition, []).extend(kept)
                self._buffer = deque(each for each in self._buffer if each[1].partition != partition)
        with self._speaking:
            aside = self._say({"fails": [[partition, offset, error]]}, repeat=False).aside[0]
        if aside:
            self.moved([event])
        return aside

    def seek(self, at: int | str, partition: int | None) -> dict[int, int]:
        """Go on from another place; what came before cannot be acked any more."""
        self.settle()
        with self._speaking:
            told = self._say({"seek": {"at": at, "partition": partition}})
        self._drop(told.cursors, told.state.sent)
        return told.cursors

    def moved(self, events: Iterable[Event]) -> None:
        """These were acked by a transaction, or dead-lettered."""
        with self.changed:
            for event in events:
                self._waiting.get(event.partition, {}).pop(event.offset, None)
                self._release(event.partition, event.offset)

    def leave(self) -> None:
        """Send the acks, durably, and leave. Raises Unavailable if the server cannot be reached."""
        try:
            self.settle()
            with self._speaking:
                self._say({"leave": True})
        except Fenced:
            pass  # it is over already: what was not stored comes again, elsewhere
        finally:
            self.end()

    def end(self, error: HeadwaterError | None = None) -> None:
        """Release it, without a word to the server."""
        with self.changed:
            if not self.over:
                self.over, self.error = True, error
                if self._acked:
                    self.refused = self.refused or too_late(self._name)
            self.changed.notify_all()
        self._stream.cut()

    # Below, what is sent and received

    def _say(self, said: dict[str, Any], *, repeat: bool = True) -> AckAnswer:
        asked_s = time.monotonic()
        body = _encode({"member": self.token, **said})
        try:
            told = _decode(self._transport.call("POST", self._acks_path, body=body, repeat=repeat).body)
        except Fenced as error:
            if error.code == GONE:
                self.end()
            else:
                self._heard(asked_s)
            raise
        self._heard(asked_s)
        self._compare(told.state)
        return told

    def _heard(self, asked_s: float) -> None:
        """The server knew, some time after we asked, that this member lives."""
        with self.changed:
            self._said_s = asked_s
            self._until_s = max(self._until_s, asked_s + self._lease_s)

    def _compare(self, state: MembershipState) -> None:
        """Drop what came of partitions that are not held any more: others handle it."""
        with self.changed:
            lost = [partition for partition in self._range if partition not in state.held]
        if lost:
            self._drop(lost, state.sent)

    def _drop(self, partitions: Iterable[int], sent: int) -> None:
        """Forget what came of these among the first `sent` events; what came later is of another lease."""
        with self.changed:
            gone = set(partitions)
            kept = [each for each in self._buffer if each[0] > sent or each[1].partition not in gone]
            self._buffer = deque(kept)
            for partition in gone & self._failed.keys():
                del self._failed[partition]
                self._buffer.extend(each for each in self._kept.pop(partition) if each[0] > sent)
            for partition in gone & self._range.keys():
                waiting = self._waiting[partition]
                self._waiting[partition] = left = {
                    offset: number for offset, number in waiting.items() if number > sent
                }
                if self._acked.pop(partition, None):
                    self.refused = too_late(self._name, partition, min(waiting, default=0))
                if left:
                    self._range[partition] = min(left), max(left)
                else:
                    del self._range[partition]

    def _take_acks(self) -> list[list[int]]:
        """Return the next acks to be sent, as ranges of offsets that follow each other."""
        with self.changed:
            ranges: list[list[int]] = []
            for partition in list(self._acked):
                offsets = sorted(self._acked.pop(partition))
                for offset in offsets[:ACKS_MAX]:
                    if ranges and ranges[-1][0] == partition and ranges[-1][2] == offset:
                        ranges[-1][2] = offset + 1
                    else:
                        ranges.append([partition, offset, offset + 1])
                if offsets[ACKS_MAX:]:
                    self._acked[partition] = offsets[ACKS_MAX:]
                if len(ranges) >= ACKS_MAX:
                    break
            self._dirty_s = None
            return ranges

    def _put_back(self, ranges: list[list[int]]) -> None:
        with self.changed:
            for partition, first, end in ranges:
                self._acked.setdefault(partition, []).extend(range(first, end))
            self._dirty_s = time.monotonic() if self._acked else None

    def _read(self) -> None:
        """The thread that receives."""
        lines = Lines(partial(ItemBlob, self._transport))
        silence_s = max(SILENCE_S_MIN, self._lease_s)
        error: HeadwaterError | None = None
        try:
            while not self.over and (pieces := self._stream.more(silence_s)):
                for piece in pieces:
                    self._receive(lines.feed(piece))
        except BrokenConnectionError:
            pass  # a caller that wants more joins again
        except HeadwaterError as told:
            error = None if told.code == GONE or isinstance(told, Unavailable) else told
        except msgspec.MsgspecError as told:
            error = Unavailable(f"{self._transport.address} sent an invalid event: {told}", code="bad_answer")
        finally:
            self.end(error)
            self._stream.close()

    def _receive(self, events: list[Event]) -> None:
        if not events:
            return
        with self.changed:
            for event in events:
                self.received += 1
                offset, partition = event.offset, event.partition
                if partition in self._failed and offset not in self._failed[partition]:
                    self._kept[partition].append((self.received, event))
                else:
                    self._buffer.append((self.received, event))
                    self._release(partition, offset)
                self._waiting.setdefault(partition, {})[offset] = self.received
                low, high = self._range.get(partition, (offset, offset))
                self._range[partition] = min(low, offset), max(high, offset)
            self.changed.notify_all()

    def _release(self, partition: int, offset: int) -> None:
        """Hand out what came after a failed event, which has come again or never will."""
        failed = self._failed.get(partition)
        if failed is not None:
            failed.discard(offset)
            if not failed:
                del self._failed[partition]
                self._buffer.extend(self._kept.pop(partition))

    def _keep(self) -> None:
        """The thread that sends: acks, and signs of life."""
        rested_s = 0.0
        while True:
            with self.changed:
                if self.over:
                    return
                now = time.monotonic()
                due_s = self._said_s + self._lease_s / 3
                if self._dirty_s is not None:
                    due_s = min(due_s, self._dirty_s + self._ack_s)
                due_s = max(due_s, rested_s)
                if due_s > now:
                    self.changed.wait(due_s - now)
                    continue
            try:
                self.settle()
            except Fenced:
                return
            except HeadwaterError:  # the server cannot be reached; the caller that reads finds out, too
                rested_s = time.monotonic() + self._lease_s / 6


def too_late(name: str, partition: int | None = None, offset: int | None = None) -> Fenced:
    """Return the error for an ack that came when another member had the event."""
    where = "" if partition is None else f" of partition {partition}, offset {offset},"
    return Fenced(
        f"the ack{where} came too late: this member of consumer {name!r} no longer holds it",
        hint="do not ack the event: it is delivered again, here or to another member",
        partition=partition,
        offset=offset,
    )


ITEM_HEAD_BYTES = 12  # of an item: its id and its length


class RemoteEvent(EventLine, frozen=True, gc=False, forbid_unknown_fields=False):
    """A line: an event, or why no more come."""

    error: ErrorBody | UnsetType = UNSET


_decode_lines = msgspec.json.Decoder(RemoteEvent).decode_lines
_encode_meta = msgspec.json.Encoder().encode


class Lines:
    """The events of a stream of lines; an empty line is a sign of life."""

    def __init__(self, blob: Callable[[str, int, int, int], Blob]) -> None:
        """`blob` gives the data of a huge event, by its topic, partition, offset and size."""
        self._rest = b""
        self._blob = blob

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that end with this piece. Raises what a line says that the server raised."""
        whole, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._rest += piece
            return []
        whole, self._rest = self._rest + whole, rest
        return [self._event(line) for line in _decode_lines(whole)]

    def _event(self, line: RemoteEvent) -> Event:
        if line.error is not UNSET:
            raise revive(line.error)
        topic, partition, offset = line.topic, line.partition, line.offset
        assert topic is not UNSET
        assert partition is not UNSET
        assert offset is not UNSET
        data: bytes | None = None
        blob = None
        content = "bytes" if line.content is UNSET else line.content
        if line.data_bytes is not UNSET:
            blob = self._blob(topic, partition, offset, line.data_bytes)
        elif content == "json" and line.data is not UNSET and line.data_base64 is UNSET:
            data = bytes(line.data)
        else:
            data, content = jsonl.data_of(line, content)
        meta = _encode_meta(line.meta) if line.meta else None
        ticks, node = ticks_and_node(UUID(str(line.id)))
        return Event(topic, partition, offset, ticks, line.type, jsonl.key_of(line), data, content, node, meta, blob)


class ItemBlob:
    """The data of a huge event, read from its topic each time it is used."""

    def __init__(self, transport: Transport, topic: str, partition: int, offset: int, size: int) -> None:
        self.size = size
        self._transport = transport
        self._path = ("topic", topic, "items")
        self._query = {"partition": partition, "from": offset, "end_after": offset, "max_items": 1}

    def chunks(self) -> Iterator[bytes]:
        """Yield the data in pieces of at most 1 MiB.

        Raises NotFound if it was deleted, Unavailable if it is cut short.
        """
        with self._transport.stream(self._path, self._query, accept="application/octet-stream") as stream:
            skip, left = ITEM_HEAD_BYTES, self.size
            try:
                for piece in stream.pieces():
                    data, skip = piece[skip:], max(0, skip - len(piece))
                    left -= len(data)
                    for at in range(0, len(data), BLOB_CHUNK_BYTES):
                        yield data[at : at + BLOB_CHUNK_BYTES]
            except BrokenConnectionError as error:
                raise cut_short(self._transport.address, str(error)) from error
        if left:
            raise cut_short(self._transport.address, f"{left} bytes of a huge event are missing")

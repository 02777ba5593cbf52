"""The documents of a binder on a server: the verbs of a directory's binder, with the same meaning.

`find` streams: its documents come as they are asked for, and if the connection breaks before the last, it raises
Unavailable, because another answer would be of another moment. `follow` goes on where it was. Safe from any thread, but
for what `find` and `follow` give.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from headwater.document import Change, Document
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable, within_memory
from headwater.event import Event, Ref, Refs
from headwater.format import documents
from headwater.info import BinderInfo
from headwater.protocols import READ_TIMEOUT_S, AtLeast
from headwater.remote import failures
from headwater.remote.connection import BrokenConnectionError
from headwater.remote.failures import ErrorBody
from headwater.remote.transport import JSON, ResponseStream, Transport

WAIT_S = 20.0  # that one request waits for a projection: less than what its answer may take to begin
LINES = "application/x-ndjson"
SILENT_S = 60.0  # four signs of life that did not come: the connection is dead, whatever it looks like

T = TypeVar("T")
_decode_info = msgspec.json.Decoder(BinderInfo).decode


class _EndLine(msgspec.Struct, frozen=True):
    """The last line of a stream that cannot go on."""

    error: ErrorBody


_decode_ending = msgspec.json.Decoder(_EndLine).decode


@within_memory()
class RemoteBinder:
    """A collection of documents on a server; raises NotFound while no projection has made it."""

    def __init__(self, transport: Transport, name: str) -> None:
        if not name:
            raise Invalid("a binder needs a name", hint="as in hw.binder('baskets')")
        self.name = name
        self._transport = transport

    def get(self, id: str, *, at_least: AtLeast | None = None, timeout: float = READ_TIMEOUT_S) -> Document | None:
        """Return a document; None if there is none."""
        headers = {"Accept": JSON}

        def ask(query: Mapping[str, Any]) -> Document | None:
            try:
                answer = self._transport.call("GET", self._path(id), query, headers=headers, repeat=True)
            except NotFound as error:
                if error.code != "no_such_document":
                    raise
                return None
            return documents.decode_document(answer.body)

        return _until_passed(ask, at_least, timeout)

    def find(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
        fields: Sequence[str] | None = None,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> RemoteDocuments:
        """Return the documents that match, as they were at one moment."""
        asked = {
            "match": match or {},
            "sort": _sorting(sort),
            "skip": skip,
            "limit": limit,
            "fields": None if fields is None else list(fields),
        }
        body = documents.encode(asked)

        def ask(query: Mapping[str, Any]) -> ResponseStream:
            return self._transport.stream(self._path("query"), query, accept=LINES, body=body)

        return RemoteDocuments(self._transport, _until_passed(ask, at_least, timeout))

    def count(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        at_least: AtLeast | None = None,
        timeout: float = READ_TIMEOUT_S,
    ) -> int:
        """Return how many documents match."""

        def ask(query: Mapping[str, Any]) -> int:
            found: int = self._query({"match": match or {}, "count": True}, query)["count"]
            return found

        return _until_passed(ask, at_least, timeout)

    def explain(self, match: Mapping[str, Any] | None = None, *, sort: str | Sequence[str] = ()) -> str:
        """Return how `find` goes about it, in a line."""
        plan: str = self._query({"match": match or {}, "sort": _sorting(sort), "explain": True}, {})["plan"]
        return plan

    def follow(self, *, after: str | None = None, timeout: float | None = None) -> RemoteChanges:
        """Changes of documents, as they come, until `timeout` seconds bring none."""
        return RemoteChanges(self._transport, self._path("changes"), after, timeout)

    def index(self, field: str) -> None:
        """Have an index over a field from now on; it is made when this returns, durably."""
        self._transport.json("POST", self._path("index"), value={"field": field}, repeat=True)

    def info(self) -> BinderInfo:
        """Return what the binder holds, and what fills it."""
        return _decode_info(self._transport.call("GET", self._path(), repeat=True).body)

    def _query(self, asked: dict[str, Any], query: Mapping[str, Any]) -> Any:
        body, headers = documents.encode(asked), {"Content-Type": JSON}
        return self._transport.call("POST", self._path("query"), query, body=body, headers=headers, repeat=True).json()

    def _path(self, *parts: str) -> tuple[str, ...]:
        return ("binders", self.name, *parts)


class _ChangeLines:
    """The lines of an answer, as they come."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream
        self._begun = b""  # of a line
        self._lines: deque[bytes] = deque()

    def next(self, wait_s: float | None) -> bytes | None:
        """Return the next line; None if none came in so many seconds. Raises EOFError at the end, Broken."""
        if not self._lines:
            pieces = self._stream.more(wait_s)
            if pieces is None:
                if self._begun:
                    raise BrokenConnectionError("incomplete line", sent=True)
                raise EOFError
            *whole, self._begun = b"".join((self._begun, *pieces)).split(b"\n")
            self._lines.extend(whole)
        return self._lines.popleft() if self._lines else None

    def cut(self) -> None:
        self._stream.cut()

    def close(self) -> None:
        self._stream.close()


class RemoteDocuments(Iterator[Document]):
    """Documents that were found, as they come. Belongs to one thread."""

    def __init__(self, transport: Transport, stream: ResponseStream) -> None:
        self._transport = transport
        self._lines = _ChangeLines(stream)
        self._over = False

    def __next__(self) -> Document:
        while not self._over:
            try:
                line = self._lines.next(None)
            except EOFError:
                self.close()
                break
            except BrokenConnectionError as error:
                self.close()
                raise failures.cut_short(self._transport.address, str(error)) from error
            if line:
                return documents.decode_document(line)
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connection; may be called twice."""
        self._over = True
        self._lines.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._lines.close()


class RemoteChanges(Iterator[Change]):
    """Changes as they come, on through broken connections. Belongs to one thread; `stop` may be called from others."""

    def __init__(self, transport: Transport, path: tuple[str, ...], after: str | None, timeout: float | None) -> None:
        self._transport = transport
        self._path = path
        self._after = after
        self._timeout = timeout
        self._stopped = False
        self._tries = 0
        self._failed_s = 0.0
        self._lines = self._open()

    def __next__(self) -> Change:
        now_s = time.monotonic()
        deadline_s = None if self._timeout is None else now_s + self._timeout
        heard_s = now_s
        while not self._over:
            try:
                line = self._lines.next(_wait(deadline_s, heard_s))
            except (BrokenConnectionError, EOFError) as error:
                if not self._over:
                    self._begin_again(str(error) or "the server closed the stream")
                    heard_s = time.monotonic()
                continue
            now_s = time.monotonic()
            if line:
                return self._change(line)
            if deadline_s is not None and now_s >= deadline_s:
                break
            if line is not None:
                heard_s = now_s
            elif now_s - heard_s >= SILENT_S:
                self._begin_again("no data from the server")
                heard_s = now_s
        raise StopIteration

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """Return where to go on after the last change that was given; empty before the server has told it."""
        return self._after or ""

    def stop(self) -> None:
        """End the iteration, from any thread."""
        self._stopped = True
        self._lines.cut()

    def close(self) -> None:
        """End it, and release the connection; may be called twice."""
        self._stopped = True
        self._lines.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._lines.close()

    @property
    def _over(self) -> bool:
        return self._stopped or self._transport.closed

    def _open(self) -> _ChangeLines:
        stream = self._transport.stream(self._path, {"after": self._after}, accept=LINES)
        self._after = stream.headers.get("headwater-place", self._after)
        return _ChangeLines(stream)

    def _change(self, line: bytes) -> Change:
        if line.startswith(b'{"error":'):
            self.close()
            raise failures.revive(_decode_ending(line).error)
        change = documents.decode_change(line)
        self._after = change.place
        self._tries = 0
        return change

    def _begin_again(self, reason: str) -> None:
        """Ask for what comes after the last change. Raises Unavailable when that has been tried for too long."""
        self._lines.close()
        if self._tries == 0:
            self._failed_s = time.monotonic()
        if not self._transport.pause(self._tries, self._failed_s):
            raise failures.cut_short(self._transport.address, reason)
        self._tries += 1
        try:
            self._lines = self._open()
        except HeadwaterError:
            if not self._over:
                raise
        if self._stopped:  # meanwhile
            self._lines.cut()


def _wait(deadline_s: float | None, heard_s: float) -> float:
    now_s = time.monotonic()
    ends_s = heard_s + SILENT_S if deadline_s is None else min(deadline_s, heard_s + SILENT_S)
    return max(0.0, ends_s - now_s)


def _until_passed(ask: Callable[[Mapping[str, Any]], T], at_least: AtLeast | None, timeout: float) -> T:
    """Ask, again and again if the server gives up sooner than the caller does."""
    if at_least is None:
        return ask({})
    places, deadline_s = told_places(at_least), time.monotonic() + timeout
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            return ask({"at_least": places, "timeout": min(left_s, WAIT_S)})
        except Unavailable as error:
            if error.code != "view_behind" or time.monotonic() >= deadline_s:
                raise


def told_places(at_least: AtLeast) -> str:
    """Return what projections must have passed, as the server reads it: the last offset of each partition."""
    if isinstance(at_least, int):
        return str(at_least)
    last: dict[tuple[str, int], int] = {}
    if isinstance(at_least, Refs):
        for run in at_least.runs:
            place = at_least.topic, run.partition
            last[place] = max(last.get(place, -1), run.offset + run.count - 1)
    else:
        for each in (at_least,) if isinstance(at_least, Ref | Event) else at_least:
            last[each.topic, each.partition] = max(last.get((each.topic, each.partition), -1), each.offset)
    return ",".join(f"{quote(topic, safe='')}:{partition}:{offset}" for (topic, partition), offset in last.items())


def _sorting(sort: str | Sequence[str]) -> str | list[str]:
    return sort if isinstance(sort, str) else list(sort)

"""However frames are cut on their way, whatever they are and whatever they wait for: they take effect, and are
answered, in their order, and those behind one that ends the connection are not looked at."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.server.tcp.connection import TcpConnection
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import response
from headwater.server.tcp.handlers import Handler
from tests.log.unsynced import open_unsynced
from tests.server.tcp.driving import Driven
from tests.server.tcp.wire import frame, framed
from tests.waiting import wait_in_loop

CONNECT = frame("CONNECT", {"version": "1.0"})


class Asked(NamedTuple):
    """A frame, what is expected to be said of it, and where its event goes."""

    name: str
    sent: bytes
    told: str | None  # "ok", the code of an error, or None for nothing
    topic: str = ""
    ends: bool = False


def emit(topic: str, **fields: Any) -> bytes:
    return frame("EMIT", {"streamName": topic, "eventType": "t", "event": {"n": 1}, **fields})


def backwards(topic: str) -> bytes:
    body = {"event": {"n": 1}, "eventType": "t", "streamName": topic}
    return framed(bson.encode({"frame": body, "type": "EMIT"}))


def broken(topic: str, more: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """An EMIT whose event has a string that does not end."""
    return emit(topic, event={"s": "abcd", **more}).replace(b"abcd\0", b"abcde")


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels - 1):
        found = {"": found}
    return found


FRAMES = [
    Asked("emit", emit("a"), "ok", "a"),
    Asked("emit", emit("a"), "ok", "a"),  # often
    Asked("emit elsewhere", emit("b"), "ok", "b"),
    Asked("emit with a key", emit("a", key="k"), "ok", "a"),
    Asked("emit to a topic that is made", emit("new"), "ok", "new"),
    Asked("emit as text", emit("a", event="hello", content="text"), "ok", "a"),
    Asked("emit to the limit of depth", emit("a", event=deep(98)), "ok", "a"),
    Asked("emit backwards", backwards("a"), "ok", "a"),
    Asked("large emit", emit("a", event={"x": "y" * 70_000}), "ok", "a"),
    Asked("emit without a type", frame("EMIT", {"streamName": "a", "event": {}}), "bad_field"),
    Asked("emit with a strange field", emit("a", colour="red"), "bad_field"),
    Asked("large emit with a strange field", emit("a", event={"x": "y" * 70_000}, colour="red"), "bad_field"),
    Asked("emit with another version", emit("a", key="q", expectedVersion=7), "version_conflict"),
    Asked("emit to a topic without a name", emit(""), "invalid"),
    Asked("emit to a topic with a long name", emit("x" * 2000), "too_large"),
    Asked("emit too deep", emit("a", event=deep(99)), "too_deep", ends=True),
    Asked("broken emit", broken("a"), "bad_frame", ends=True),
    Asked("broken large emit", broken("a", {"x": "y" * 70_000}), "bad_frame", ends=True),
    Asked("ping", frame("PING"), "ok"),
    Asked("ping with a field", frame("PING", {"a": 1}), "bad_field"),
    Asked("large ping", frame("PING", {"a": "b" * 70_000}), "bad_field"),
    Asked("work", frame("WORK", {"turns": 0}), "ok"),
    Asked("work", frame("WORK", {"turns": 3}), "ok"),
    Asked("large work", frame("WORK", {"turns": 1, "x": b"y" * 70_000}), "ok"),
    Asked("bug", frame("BUG"), "internal"),
    Asked("ack", frame("ACKEV", {"subID": 1}), None),
    Asked("bad ack", frame("ACKEV", {"subID": "x"}), None),
    Asked("large ack", frame("ACKEV", {"subID": "x" * 70_000}), None),
    Asked("connect", CONNECT, "bad_field"),
    Asked("unknown", frame("HELLO"), "unknown_frame", ends=True),
    Asked("a frame of servers", frame("RECEV"), "unknown_frame", ends=True),
    Asked("large unknown", frame("HELLO", {"x": "y" * 70_000}), "unknown_frame", ends=True),
    Asked("not bson", framed(b"\x08\0\0\0abc\0"), "bad_frame", ends=True),
    Asked("large, and not bson", framed(b"x" * 70_000), "bad_frame", ends=True),
    Asked("three fields", framed(bson.encode({"type": "PING", "frame": {}, "x": 1})), "bad_frame", ends=True),
    Asked("no document", framed(bson.encode({"type": "PING", "frame": []})), "bad_frame", ends=True),
    Asked("too short", struct.pack(">I", 4) + b"abcd", "bad_frame", ends=True),
    Asked("too long", struct.pack(">I", 1 << 30), "frame_too_large", ends=True),
]


async def work(_: TcpConnection, fields: dict[str, Any]) -> AnswerSlot:
    for __ in range(fields["turns"]):
        await asyncio.sleep(0)
    return AnswerSlot(response())


async def bug(_: TcpConnection, __: dict[str, Any]) -> AnswerSlot:
    raise ZeroDivisionError


HANDLERS: dict[str, Handler] = {"WORK": work, "BUG": bug}


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        for topic in ("a", "b"):
            hw.create(topic)
    return server_path


def cut(sent: bytes, cuts: list[float]) -> list[bytes]:
    places = sorted({round(place * len(sent)) for place in cuts} | {0, len(sent)})
    return [sent[first:end] for first, end in pairwise(places)]


def expected(asked: list[Asked], end: str) -> list[str]:
    told = ["ok"]
    for each in asked:
        if each.told is not None:
            told.append(each.told)
        if each.ends:
            return told
    return [*told, "stopping"] if end == "stop" else told


def lengths(driven: Driven) -> dict[str, int]:
    return {topic: driven.engine.describe(topic).events for topic in driven.engine.topics()}


@given(
    asked=st.lists(st.sampled_from(FRAMES), max_size=12),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    turns=st.lists(st.integers(0, 3), min_size=13, max_size=13),
    room=st.sampled_from((None, None, 1, 300)),
    known_each=st.sampled_from((1, 1, 2, 3)),
    end=st.sampled_from(("eof", "stop")),
)
def test_frames_are_answered_and_take_effect_in_their_order(
    driven: Driven,
    asked: list[Asked],
    cuts: list[float],
    turns: list[int],
    room: int | None,
    known_each: int,
    end: str,
) -> None:
    driven.access.known_each = known_each
    if "new" in driven.engine.topics():
        driven.engine.delete("new")
    before = lengths(driven)
    pieces = cut(CONNECT + b"".join(each.sent for each in asked), cuts)

    async def drive() -> list[tuple[str, dict[str, Any]]]:
        with driven.connection(HANDLERS, room) as (connection, transport):
            for piece, turn in zip(pieces, turns, strict=False):
                connection.data_received(piece)
                for _ in range(turn):
                    await asyncio.sleep(0)
            if end == "stop":
                connection.stop()
            elif not connection.eof_received():
                transport.close()
            await wait_in_loop(lambda: transport.over)
            return transport.answers()

    answers = driven.runner.run(drive())
    assert [body.get("errCode", "ok") for _, body in answers] == expected(asked, end)
    stored: dict[str, int] = dict(before)
    answered = iter(answers[1:])
    for each in asked:
        body = next(answered)[1] if each.told is not None else {}
        if each.topic:
            assert body["offset"] == stored.setdefault(each.topic, 0), each.name
            stored[each.topic] += 1
        if each.ends:
            break
    assert lengths(driven) == stored
    assert driven.store.budget.held == 0
    assert not driven.connections.open


@pytest.mark.parametrize("asked", FRAMES, ids=lambda asked: asked.name)
def test_each_frame_is_answered_and_what_is_behind_one_that_ends_is_not_begun(driven: Driven, asked: Asked) -> None:
    driven.access.known_each = 1
    before = driven.engine.describe("b").events

    async def drive() -> list[str]:
        with driven.connection(HANDLERS) as (connection, transport):
            connection.data_received(CONNECT)
            connection.data_received(emit("a") + asked.sent + emit("b"))
            if not connection.eof_received():
                transport.close()
            await wait_in_loop(lambda: transport.over)
            await asyncio.sleep(0.001)
            return [body.get("errCode", "ok") for _, body in transport.answers()]

    told = ["ok", "ok", *([asked.told] if asked.told is not None else []), *([] if asked.ends else ["ok"])]
    assert driven.runner.run(drive()) == told
    assert driven.engine.describe("b").events == before + (not asked.ends) + (asked.topic == "b")


SMALL = [each for each in FRAMES if len(each.sent) < 1000]


@pytest.mark.parametrize("asked", [each for each in SMALL if each.ends], ids=lambda asked: asked.name)
@pytest.mark.parametrize("transaction", [False, True])
def test_a_frame_that_ends_may_come_in_one_write_with_all_others(
    driven: Driven, asked: Asked, transaction: bool
) -> None:
    driven.access.known_each = 1
    before = b"".join((CONNECT, frame("STARTTX", {"sessID": 1}), emit("a", sessID=1) if transaction else b""))
    failures: list[dict[str, Any]] = []

    async def drive(sent: list[bytes]) -> list[str]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        with driven.connection(HANDLERS) as (connection, transport):
            for piece in sent:
                connection.data_received(piece)
            await wait_in_loop(lambda: transport.over)
            return [body.get("errCode", "ok") for _, body in transport.answers()]

    told = ["ok"] * (3 if transaction else 2) + [asked.told]
    for behind in SMALL:
        assert driven.runner.run(drive([before + asked.sent + behind.sent])) == told, behind.name
    sent = before + asked.sent + frame("PING")
    for place in range(1, len(sent)):
        assert driven.runner.run(drive([sent[:place], sent[place:]])) == told, place
    assert not failures

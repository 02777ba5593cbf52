"""How connections end: whoever ends them, whenever, what was asked is answered, and what they held is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.limits import MIB, ServerLimits
from headwater.server.tcp.acks import ConnectionPart
from headwater.server.tcp.connection import LINGER_S, NEVER, TcpConnection
from headwater.server.tcp.frame_io import AnswerSlot
from headwater.server.tcp.frames import response
from headwater.server.tcp.handlers import Handler
from tests.log.unsynced import open_unsynced
from tests.server.tcp.driving import Driven, Transport
from tests.server.tcp.test_order import CONNECT, FRAMES, HANDLERS, Asked, cut, emit
from tests.server.tcp.wire import frame
from tests.waiting import wait_in_loop

LIMITS = ServerLimits(held_bytes_max=4 * MIB)
LARGE = emit("a", event={"x": "y" * 300_000})
PING = frame("PING")


@pytest.fixture(scope="module")
def driven_limits() -> ServerLimits:
    return LIMITS


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        for topic in ("a", "b"):
            hw.create(topic)
    return server_path


@pytest.fixture(autouse=True)
def _nothing_is_held(driven: Driven) -> Iterator[None]:
    driven.access.known_each, driven.access.removed = 1, False
    yield
    assert driven.store.budget.held == 0
    assert not driven.connections.open
    assert driven.store.metrics.connections == 0


def codes(transport: Transport) -> list[str]:
    return [body.get("errCode", "ok") for _, body in transport.answers()]


async def forever(_: TcpConnection, __: dict[str, Any]) -> AnswerSlot:
    await asyncio.Event().wait()
    raise AssertionError


class Noisy(ConnectionPart):
    """A part that writes whatever happens."""

    def __init__(self, connection: TcpConnection) -> None:
        self.connection = connection
        self.closed = 0
        connection.parts["ACKEV", 1] = self

    def resume(self) -> None:
        self.connection.out.write(frame("RECEV", {"n": 1}))

    def close(self) -> None:
        self.closed += 1
        self.connection.out.write(frame("SUBEND", {"subID": 1}))


async def listen(connection: TcpConnection, _: dict[str, Any]) -> AnswerSlot:
    Noisy(connection)
    return AnswerSlot(response())


ALL: dict[str, Handler] = {**HANDLERS, "FOREVER": forever, "LISTEN": listen}


@given(
    asked=st.lists(st.sampled_from([*FRAMES, Asked("very large", LARGE, "ok", "a")]), max_size=8),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    turns=st.lists(st.integers(0, 5), min_size=7, max_size=7),
    taken=st.integers(1, 7),
    known_each=st.sampled_from((1, 2)),
)
def test_whatever_a_lost_connection_held_is_given_back_once(
    driven: Driven, asked: list[Asked], cuts: list[float], turns: list[int], taken: int, known_each: int
) -> None:
    driven.access.known_each = known_each
    pieces = cut(CONNECT + b"".join(each.sent for each in asked), cuts)

    async def drive() -> None:
        with driven.connection(ALL) as (connection, transport):
            for piece, turn in list(zip(pieces, turns, strict=False))[:taken]:
                connection.data_received(piece)
                assert driven.store.budget.held >= 0
                for _ in range(turn):
                    await asyncio.sleep(0)
            connection.hold(1000)
            transport.closed = True
            connection.connection_lost(None)
            assert driven.store.budget.held == 0
            connection.hold(-1000)  # by somebody who hears of it late
            assert driven.store.budget.held == 0
        for _ in range(5):
            await asyncio.sleep(0)
        assert driven.store.budget.held == 0

    driven.runner.run(drive())


def test_a_large_frame_counts_while_it_comes_while_it_waits_and_while_it_is_stored(driven: Driven) -> None:
    async def drive() -> None:
        budget = driven.store.budget
        with driven.connection(ALL) as (connection, transport):
            connection.data_received(CONNECT)
            await wait_in_loop(lambda: codes(transport) == ["ok"])
            connection.data_received(LARGE[:100_000])
            assert budget.held == 100_000
            connection.data_received(LARGE[100_000:])
            assert len(LARGE) - 4 <= budget.held <= len(LARGE)
            connection.data_received(LARGE)
            assert budget.held >= 2 * len(LARGE) - 8
            await wait_in_loop(lambda: codes(transport) == ["ok"] * 3)
            assert budget.held == 0

    driven.runner.run(drive())


def test_a_frame_that_is_too_much_for_all_connections_together_ends_its_own(driven: Driven) -> None:
    async def drive() -> None:
        budget = driven.store.budget
        with driven.connection(ALL) as (held, _), driven.connection(ALL) as (connection, transport):
            held.hold(4 * MIB - 100_000)
            connection.data_received(CONNECT + PING)
            await wait_in_loop(lambda: codes(transport) == ["ok", "ok"])
            connection.data_received(PING + LARGE[:90_000])
            assert not transport.over
            connection.data_received(LARGE[90_000:180_000])
            await wait_in_loop(lambda: transport.over)
            assert codes(transport) == ["ok", "ok", "ok", "overloaded"]
            assert budget.held == 4 * MIB - 100_000
        with driven.connection(ALL) as (held, _), driven.connection(ALL) as (connection, transport):
            held.hold(4 * MIB - 100_000)
            connection.data_received(CONNECT + LARGE)
            await wait_in_loop(lambda: transport.over)
            assert codes(transport) == ["ok", "overloaded"]

    driven.runner.run(drive())


def test_while_memory_is_scarce_a_connection_is_not_read_far_ahead(driven: Driven) -> None:
    async def drive() -> None:
        with driven.connection(ALL) as (held, _), driven.connection(ALL) as (connection, transport):
            connection.data_received(CONNECT + frame("FOREVER"))
            await wait_in_loop(lambda: codes(transport) == ["ok"])
            connection.data_received(PING * 4000)
            assert transport.is_reading()
            held.hold(3 * MIB)
            connection.data_received(PING)
            assert not transport.is_reading()
            held.hold(-3 * MIB)
            connection.go_on()
            assert transport.is_reading()

    driven.runner.run(drive())


def test_a_connection_is_not_read_far_ahead_of_its_answers(driven: Driven) -> None:
    async def drive() -> None:
        for sent in (PING * (LIMITS.frames_waiting_max + 1), emit("a", event={"x": "y" * 60_000}) * 70):
            with driven.connection(ALL) as (connection, transport):
                connection.data_received(CONNECT + frame("FOREVER"))
                await wait_in_loop(lambda: codes(transport) == ["ok"])  # it is called here
                assert transport.is_reading()
                connection.data_received(sent)
                assert not transport.is_reading()

    driven.runner.run(drive())


def test_nobody_is_read_before_it_is_known_who_it_is(driven: Driven) -> None:
    async def drive() -> None:
        with driven.connection() as (connection, transport):
            connection.data_received(frame("CONNECT", {"version": "1.0", "token": "x" * 70_000})[:100])
            assert codes(transport) == ["frame_too_large"]
            assert transport.answers()[0][1]["errFacts"]["maximum"] == 64 * 1024
        driven.access.known_each = 1000
        with driven.connection() as (connection, transport):
            connection.data_received(CONNECT + LARGE[:1000])
            assert not transport.is_reading()
            await wait_in_loop(lambda: codes(transport) == ["ok"])
            assert transport.is_reading()

    driven.runner.run(drive())


def test_a_user_that_was_removed_is_told_and_nothing_of_theirs_is_stored(driven: Driven) -> None:
    async def drive() -> None:
        stored = driven.engine.describe("a").events
        for sent, told in (
            (emit("a") + emit("a") + emit("b") + PING, ["unauthenticated"]),
            (frame("ASK") + emit("a"), ["unauthenticated"]),
            (LARGE + emit("a"), ["unauthenticated"]),
        ):
            driven.access.removed = False
            with driven.connection({**ALL, "ASK": ask}) as (connection, transport):
                connection.data_received(CONNECT + emit("a"))
                await wait_in_loop(lambda: codes(transport) == ["ok", "ok"])  # it is called here
                stored += 1
                driven.access.removed = True
                connection.data_received(sent)
                await wait_in_loop(lambda: transport.over)  # as above
                assert codes(transport) == ["ok", "ok", *told]
        assert driven.engine.describe("a").events == stored

    async def ask(connection: TcpConnection, _: dict[str, Any]) -> AnswerSlot:
        await connection.require("read", "a")
        return AnswerSlot(response())

    driven.runner.run(drive())


def test_what_is_open_is_closed_and_cannot_write_once_all_is_said(driven: Driven) -> None:
    async def drive() -> None:
        for end in ("stop", "refusal", "lost"):
            with driven.connection(ALL) as (connection, transport):
                connection.data_received(CONNECT + frame("LISTEN"))
                await wait_in_loop(lambda: codes(transport) == ["ok", "ok"])  # it is called here
                part = connection.parts["ACKEV", 1]
                assert isinstance(part, Noisy)
                if end == "stop":
                    connection.stop()
                elif end == "refusal":
                    connection.data_received(frame("HELLO"))
                else:
                    transport.closed = True
                    connection.connection_lost(None)
                assert part.closed
                assert not connection.parts
                part.resume()  # would fail if it were written
            types = [type for type, _ in transport.answers()[2:]]
            assert types == {"stop": ["SUBEND", "RESPONSE"], "refusal": ["RESPONSE"], "lost": []}[end]

    driven.runner.run(drive())


def test_deadlines(driven: Driven) -> None:
    async def drive() -> None:
        limits = driven.store.limits

        def left(connection: TcpConnection) -> float:
            return round(connection.deadline - driven.loop.time(), 1)

        with driven.connection(ALL) as (connection, transport):
            first = connection.deadline
            assert left(connection) == limits.header_s
            for piece in (CONNECT[:3], CONNECT[3:10]):  # a trickle gains no time
                connection.data_received(piece)
                assert connection.deadline == first
            connection.expire()
            assert codes(transport) == ["timeout"]
            assert transport.sent_end
            assert left(connection) == LINGER_S
            connection.expire()
            assert transport.was_aborted()
        with driven.connection(ALL) as (connection, transport):
            connection.data_received(CONNECT)
            await wait_in_loop(lambda: codes(transport) == ["ok"])
            assert left(connection) == limits.idle_s  # no more that for CONNECT
            connection.data_received(PING)
            assert left(connection) == limits.idle_s
            connection.data_received(PING[:5])
            assert left(connection) == limits.body_idle_s
            connection.expire()
            assert codes(transport) == ["ok", "ok", "timeout"]
            assert "timed out" in transport.answers()[-1][1]["errMsg"]
        with driven.connection(ALL) as (connection, transport):
            connection.data_received(CONNECT + frame("LISTEN"))
            await wait_in_loop(lambda: codes(transport) == ["ok", "ok"])
            connection.expire()  # it has a subscription
            assert left(connection) == limits.idle_s
            connection.data_received(frame("FOREVER"))
            connection.parts.clear()
            connection.expire()  # it has a request
            assert left(connection) == limits.idle_s
            assert connection.eof_received()
            connection.expire()
            assert transport.was_aborted()

    driven.runner.run(drive())


def test_a_client_that_takes_nothing_is_cut_off(driven: Driven) -> None:
    async def drive() -> None:
        with driven.connection(ALL) as (connection, transport):
            connection.data_received(CONNECT)
            await wait_in_loop(lambda: codes(transport) == ["ok"])
            transport._waiting = 100_000
            connection.pause_writing()
            connection.data_received(PING * 3)
            assert codes(transport) == ["ok"]  # what it asks for waits too
            assert not transport.is_reading()
            transport._waiting = 90_000  # it takes something
            connection.expire()
            assert not transport.was_aborted()
            assert round(connection.deadline - driven.loop.time(), 1) == driven.store.limits.write_s
            connection.expire()
            assert transport.was_aborted()
        with driven.connection(ALL) as (connection, transport):
            connection.data_received(CONNECT)
            await wait_in_loop(lambda: codes(transport) == ["ok"])
            connection.pause_writing()
            waiting = asyncio.ensure_future(connection.out.room())
            connection.data_received(PING * 3)
            await asyncio.sleep(0)
            assert not waiting.done()
            transport.drain()
            await waiting
            assert codes(transport) == ["ok"] * 4
            assert transport.is_reading()

    driven.runner.run(drive())


def test_stopping_answers_what_was_asked_and_then_ends(driven: Driven) -> None:
    async def drive() -> None:
        with driven.connection(ALL) as (connection, transport), driven.connection(ALL) as (idle, quiet):
            connection.data_received(CONNECT + emit("a") * 10 + frame("WORK", {"turns": 5}) + emit("b") * 5 + PING[:9])
            connection.stop()
            idle.stop()
            connection.data_received(emit("a"))
            await wait_in_loop(lambda: transport.over)
            assert codes(transport) == ["ok"] * 17 + ["stopping"]
            assert codes(quiet) == ["stopping"]
            connection.stop()  # once more
            assert len(transport.answers()) == 18

    driven.runner.run(drive())


def test_a_connection_too_many_is_told_so(driven: Driven) -> None:
    async def drive() -> None:
        driven.connections.stopping = True
        with driven.connection(ALL) as (connection, transport):
            assert codes(transport) == ["stopping"]
            assert transport.closed
            assert connection.deadline == NEVER
        driven.connections.stopping = False
        most, driven.connections.limits = driven.connections.limits, ServerLimits(connections_max=0)
        with driven.connection(ALL) as (_, transport):
            assert codes(transport) == ["overloaded"]
        driven.connections.limits = most

    driven.runner.run(drive())

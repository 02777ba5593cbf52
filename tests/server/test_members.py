"""Remote members without a network: whose they are, what fits their window, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic

import pytest

from headwater.consumers.log_consumers import log_consumers
from headwater.errors import Fenced, Unavailable
from headwater.event import Event
from headwater.limits import ServerLimits
from headwater.server import member as member_module
from headwater.server.http.consumers import LINES
from headwater.server.member import MemberOwner, RemoteMember
from headwater.server.members import Members
from headwater.server.window import AckWindow
from headwater.store import Store
from tests.waiting import wait_in_loop

PATIENCE_S = 20.0
LIMITS = ServerLimits(members_max=3, lease_ms_max=5000)


@pytest.fixture(autouse=True)
def topics(hw: Store) -> None:
    hw.append_many("t", [b"a", b"b", b"c"])


@pytest.fixture
def members(hw: Store) -> Iterator[Members]:
    members = Members(hw.directory, log_consumers(hw.consumption), LIMITS, heartbeat_s=15.0)
    yield members
    members.close()


class Taker:
    """A connection that takes so many chunks, then is full."""

    def __init__(self, chunks_max: int = 100) -> None:
        self.chunks: list[bytes] = []
        self.ended = False
        self._chunks_max = chunks_max

    def write(self, chunk: bytes) -> bool:
        self.chunks.append(chunk)
        return len(self.chunks) < self._chunks_max

    def write_framed(self, chunk: bytes, framed: bytes) -> bool:
        raise AssertionError("a member's chunks are its own", chunk, framed)

    def end(self) -> None:
        self.ended = True


def join(members: Members, user: str = "ada", **options: object) -> RemoteMember:
    return members.join(user, "c", "t", LINES, **options)  # type: ignore[arg-type]


def test_a_member_is_found_by_its_own_user_alone(members: Members) -> None:
    member = join(members)
    assert members.get(member.token, "ada", "c", "t") is member
    for token, user, name in ((member.token, "bob", "c"), (member.token, "ada", "d"), ("x", "ada", "c")):
        with pytest.raises(Fenced) as caught:
            members.get(token, user, name, "t")
        assert caught.value.code == "member_gone"
    assert members.find(member.token, "bob") is None


def test_another_user_cannot_send_a_member_away(hw: Store, members: Members) -> None:
    member = join(members)
    join(members, "bob", instead=member.token)
    assert members.get(member.token, "ada") is member
    again = join(members, "ada", instead=member.token)
    assert members.find(member.token, "ada") is None
    assert again.consumer.partitions == [] or hw.consumers("t")[0].failures == 0, "leaving is no failure"


def test_only_so_many_join(members: Members) -> None:
    joined = [join(members) for _ in range(3)]
    with pytest.raises(Unavailable) as caught:
        join(members)
    assert caught.value.code == "too_many_members"
    joined[0].leave()
    joined[0].join()
    join(members)


def test_a_lease_is_not_longer_than_the_server_allows(members: Members) -> None:
    assert join(members, lease_ms=10**9).lease_s == 5.0


async def test_a_connection_that_is_full_is_sent_nothing_until_there_is_room(hw: Store, members: Members) -> None:
    member, taker = join(members), Taker(chunks_max=1)
    member.begin(taker)
    await wait_in_loop(lambda: taker.chunks)
    hw.append("t", b"d")
    state = await member.look()
    assert (len(taker.chunks), state.sent, state.idle) == (1, 3, False)
    member.resume()
    await wait_in_loop(lambda: len(taker.chunks) == 2)
    assert (await member.look()).sent == 4


async def test_a_look_tells_of_what_was_appended_before_it(hw: Store, members: Members) -> None:
    member, taker = join(members), Taker(10_000)
    member.begin(taker)
    for number in range(50):
        hw.append("t", b"x")
        state = await member.look()
        while not state.idle:
            state = await member.look()
        assert (state.sent, state.held[0].next) == (4 + number, 4 + number)


async def test_who_waits_for_a_look_hears_when_the_member_ends(hw: Store, members: Members) -> None:
    member, taker = join(members), Taker()
    member.begin(taker)
    hw.forget("c", "t")
    member.consumer.wake()
    with pytest.raises(Fenced):
        await look_for_ever(member)
    await wait_in_loop(lambda: taker.ended)
    assert b"consumer_not_found" in taker.chunks[-1]


async def look_for_ever(member: RemoteMember) -> None:
    while True:
        await member.look()


async def test_the_end_of_the_connection_is_the_death_of_the_client_and_leaving_is_not(
    hw: Store, members: Members
) -> None:
    for end, failures in ((RemoteMember.leave, 0), (RemoteMember.close, 1)):
        member, taker = join(members), Taker()
        member.begin(taker)
        await wait_in_loop(lambda taker=taker: taker.chunks)  # type: ignore[misc]
        end(member)
        member.join()
        with hw.consumer("c", "t", timeout=0) as other:
            assert other.failures(next(other)) == failures
            assert hw.consumers("t")[0].failures == failures


def test_a_window_counts_each_event_once() -> None:
    def event(partition: int, offset: int, size: int) -> Event:
        return Event("t", partition, offset, 0, "", None, b"x" * size, "bytes", 0)

    window = AckWindow(5, 100)
    window.hold({0: 1, 1: 1})
    window.add([event(0, offset, 10) for offset in range(3)], 50)
    window.add([event(0, 1, 10)], 50)  # it failed, and is sent again
    window.add([event(1, 7, 30)], 50)
    assert (window.events, window.bytes, window.full, window.room) == (4, 60, False, (1, 40))
    window.done(0, 1, 1 << 60)
    window.done(0, 1, 2)
    window.done(5, 0, 10)
    assert (window.events, window.bytes) == (2, 40)
    window.hold({0: 2, 1: 1})  # taken anew
    assert (window.events, window.bytes) == (1, 30)
    window.add([event(0, 0, 50)], 50)
    assert (window.events, window.bytes) == (2, 80)
    window.add([event(0, 9, 1000)], 50)  # above the limit for memory, so that its size alone is sent
    assert window.bytes == 80
    window.hold({})
    assert (window.events, window.bytes, window.full) == (0, 0, False)


# Bound to a connection


@pytest.mark.parametrize("bound", [False, True])
async def test_only_one_that_is_bound_to_its_connection_need_not_be_heard_of(
    members: Members, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join(members, bound=MemberOwner(10, lambda: None) if bound else None)
    member.begin(Taker())
    await member.look()
    monkeypatch.setattr(member_module, "monotonic", lambda: monotonic() + 10_000)
    if bound:
        assert (await member.look()).held
    else:
        with pytest.raises(Fenced):
            await look_for_ever(member)


@pytest.mark.parametrize("bound", [False, True])
async def test_one_that_is_bound_has_failed_at_nothing_when_it_ends(hw: Store, members: Members, bound: bool) -> None:
    said = []
    member, taker = join(members, bound=MemberOwner(10, lambda: said.append(1)) if bound else None), Taker()
    member.begin(taker)
    await wait_in_loop(lambda: taker.chunks)
    member.close()
    await asyncio.to_thread(member.join)
    with hw.consumer("c", "t") as consumer:
        assert consumer.failures(next(consumer)) == (0 if bound else 1)
    assert said == [1] * bound


async def test_one_that_is_bound_ends_when_it_is_moved(hw: Store, members: Members) -> None:
    member, taker = join(members, bound=MemberOwner(10, lambda: None)), Taker()
    member.begin(taker)
    await wait_in_loop(lambda: taker.chunks)
    hw.seek("c", "t", 0)
    await wait_in_loop(lambda: taker.ended)
    assert b"was taken over, or moved" in taker.chunks[-1]


async def test_one_that_is_bound_sends_nothing_from_the_place_it_was_moved_to(
    hw: Store, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, taker = join(members, bound=MemberOwner(10, lambda: None)), Taker()
    take = member.consumer.take

    def take_when_moved(events_max: int, bytes_max: int, wait_s: float) -> list[Event]:
        if taker.chunks:
            hw.seek("c", "t", 0)
            while not (events := take(events_max, bytes_max, 0.01)):  # until it has the partition anew
                pass
            return events
        return take(events_max, bytes_max, wait_s)

    monkeypatch.setattr(member.consumer, "take", take_when_moved)
    member.begin(taker)
    await wait_in_loop(lambda: taker.ended)
    assert len(taker.chunks) == 2
    assert b"was taken over, or moved" in taker.chunks[1]


async def test_one_that_is_bound_sends_as_many_as_it_is_told(hw: Store, members: Members) -> None:
    member, taker = join(members, bound=MemberOwner(2, lambda: None)), Taker()
    member.begin(taker)
    await wait_in_loop(lambda: taker.chunks)
    state = await member.look()
    assert (state.sent, state.full) == (2, True)
    member.consumer.ack_to((0, 0))
    member.done(0, 0, 1)
    await wait_in_loop(lambda: member.state.sent == 3)
    del hw

"""Whatever comes as the event of an EMIT: it is refused, or stored so that it can be read as what was sent."""

from __future__ import annotations

from pathlib import Path

import bson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.format.codec import codec
from tests.bsons import document, documents, mutations, text
from tests.log.unsynced import open_unsynced
from tests.server.tcp.driving import Driven
from tests.server.tcp.test_order import CONNECT
from tests.server.tcp.wire import framed
from tests.waiting import wait_in_loop

CODES = ("bad_frame", "too_deep", "frame_too_large", "unknown_frame", "bad_field")
LARGE = (2, b"large", text(b"x" * 70_000))


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        hw.create("events")
    return server_path


def emitted(event: bytes) -> bytes:
    frame = document([(2, b"eventType", text(b"t")), (3, b"event", event)])
    return document([(2, b"type", text(b"EMIT")), (3, b"frame", frame)])


def send(driven: Driven, sent: list[bytes]) -> tuple[list[str], list[bytes]]:
    """What is said of each of these frames, and the events that were stored meanwhile."""
    first = driven.engine.describe("events").events

    async def drive() -> list[str]:
        with driven.connection() as (connection, transport):
            connection.data_received(CONNECT + b"".join(framed(raw) for raw in sent))
            if not connection.eof_received():
                transport.close()
            await wait_in_loop(lambda: transport.over)
            return [body.get("errCode", "ok") for _, body in transport.answers()[1:]]

    told = driven.runner.run(drive())
    events = list(driven.engine.read("events", start=first)) if "ok" in told else []
    assert [event.offset for event in events] == list(range(first, first + told.count("ok")))
    for event in events:
        event.value  # noqa: B018  # it raises what cannot be decoded
    return told, [event.data or b"" for event in events]


def accepted(raw: bytes) -> bool:
    found = codec()
    try:
        found.decode(raw, found.options)
    except (found.damage, ValueError, TypeError, OverflowError):
        return False
    return len(raw) >= 5


@given(st.lists(mutations(documents), min_size=1, max_size=4), st.booleans())
@example([document([(2, b"a", text(b"\xff"))])], False)
@example([document([]), document([(8, b"a", b"\2")]), document([])], False)
@example([document([(9, b"a", b"\xff" * 7 + b"\x7f")])], True)
def test_an_event_is_stored_byte_for_byte_or_refused(driven: Driven, events: list[bytes], large: bool) -> None:
    if large:
        events = [document([(3, b"it", event), LARGE]) for event in events]
    told, stored = send(driven, [emitted(event) for event in events])
    fine = 0
    while fine < len(events) and accepted(events[fine]) and accepted(emitted(events[fine])):
        fine += 1
    assert told[:fine] == ["ok"] * fine
    assert stored == events[:fine]
    if fine < len(events):
        assert told[fine:] == ["bad_frame"]


@given(mutations(documents.map(emitted)))
def test_a_frame_that_is_broken_anywhere_stores_nothing_else(driven: Driven, raw: bytes) -> None:
    if len(raw) < 5:
        return
    told, stored = send(driven, [raw])
    assert len(told) == 1
    assert told[0] in ("ok", *CODES)
    if told == ["ok"]:
        options = codec().options
        assert stored == [bson.encode(bson.decode(raw)["frame"]["event"])] or repr(
            bson.decode(stored[0], options)
        ) == repr(bson.decode(raw, options)["frame"]["event"])


def test_a_run_of_emits_is_stored_up_to_the_one_that_is_broken(driven: Driven) -> None:
    fine, wrong = document([(0x10, b"n", b"\1\0\0\0")]), document([(2, b"a", text(b"\xff"))])
    told, stored = send(driven, [emitted(fine)] * 100 + [emitted(wrong)] + [emitted(fine)] * 100)
    assert told == ["ok"] * 100 + ["bad_frame"]
    assert stored == [fine] * 100

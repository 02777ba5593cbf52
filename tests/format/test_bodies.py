"""CALLBODY frames by hand are what the codec makes and reads."""

from __future__ import annotations

import bson
from hypothesis import given
from hypothesis import strategies as st

from headwater.format import bodies, protocol


@given(st.binary(max_size=300), st.booleans())
def test_a_frame_is_what_the_codec_makes(data: bytes, more: bool) -> None:
    frame = bodies.encode(data, more=more)
    assert frame == protocol.encode("CALLBODY", {"data": data, "more": more})
    assert bodies.decode(frame[4:]) == (data, more)


@given(st.binary(max_size=30), st.booleans(), st.data())
def test_what_is_changed_is_read_as_the_codec_reads_it_or_not_at_all(
    data: bytes, more: bool, drawn: st.DataObject
) -> None:
    raw = bytearray(bodies.encode(data, more=more)[4:])
    at = drawn.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= drawn.draw(st.integers(1, 255))
    for changed in (bytes(raw), bytes(raw[:at]), bytes(raw) + b"\0"):
        found = bodies.decode(changed)
        if found is not None:
            told = bson.decode(changed)
            assert told == {"type": "CALLBODY", "frame": {"data": found[0], "more": found[1]}}

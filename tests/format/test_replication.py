"""What a source answers to a replica: it comes back as it was, and damage is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Corrupt
from headwater.format import settings
from headwater.format.replication import LogRequest, LogShare, ReplicationResponse, decode, encode
from headwater.format.settings import Replica

ASKED = [LogRequest("t", "u", number, 0) for number in range(4)]
shares = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["ok", "gone", "behind", "diverged", "damaged"]), st.binary(max_size=50)
    )
)


def answer_of(told: list[tuple[int, str, bytes]]) -> ReplicationResponse:
    made = [LogShare(number, state, 1, 2, 3, 4, len(data), "why") for number, state, data in told]  # type: ignore[arg-type]
    return ReplicationResponse(17, made, [memoryview(data) for _, _, data in told])


@given(shares)
def test_an_answer_comes_back_as_it_was(told: list[tuple[int, str, bytes]]) -> None:
    answer = answer_of(told)
    assert decode(encode(answer), ASKED) == answer


@given(shares, st.data())
def test_damage_to_the_table_and_a_wrong_length_are_told(
    told: list[tuple[int, str, bytes]], data: st.DataObject
) -> None:
    """The batches have checksums of their own."""
    stored = bytearray(encode(answer_of(told)))
    table_end = 16 + int.from_bytes(stored[8:12], "little")
    kind = data.draw(st.sampled_from(["flip", "cut", "more"]))
    if kind == "flip":
        stored[data.draw(st.integers(0, table_end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del stored[data.draw(st.integers(0, len(stored) - 1)) :]
    else:
        stored += b"x"
    with pytest.raises(Corrupt):
        decode(bytes(stored), ASKED)


def test_a_share_of_what_was_not_asked_for_is_refused() -> None:
    stored = encode(answer_of([(3, "ok", b"")]))
    with pytest.raises(Corrupt, match="does not match its request"):
        decode(stored, ASKED[:3])


def test_the_marker_of_a_replica_is_under_a_checksum() -> None:
    marker = Replica(source="http://a:7450", source_uuid="u", since="2026-01-31T12:00:00+00:00")
    stored = settings.encode(marker)
    assert settings.decode(stored, Replica) == marker
    assert b'"promoted":null' in stored
    with pytest.raises(Corrupt):
        settings.decode(stored.replace(b"null", b'"x"'), Replica)

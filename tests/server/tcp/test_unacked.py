"""What is not acknowledged, against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.server.tcp.acks import AckedRange, UnackedEvents

MOST = 8
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("one"), st.just(0), st.just(0)),
        st.tuples(st.just("upto"), st.integers(0, 3), st.integers(-1, 40)),
    ),
    max_size=30,
)


@given(steps)
def test_it_is_as_a_list_of_all_that_was_sent(steps: list[tuple[str, int, int]]) -> None:
    unacked = UnackedEvents(MOST)
    sent: list[tuple[int, int]] = []
    following = [0, 100, 7]
    for kind, partition, number in steps:
        if kind == "send":
            offsets = [following[partition] + 2 * n for n in range(number)]  # some numbers are missing
            following[partition] += 2 * number
            sent += [(partition, offset) for offset in offsets]
            unacked.add(partition, offsets, fence=partition + 1)
        else:
            acked = sent[:1] if kind == "one" else [each for each in sent if each[0] == partition and each[1] <= number]
            sent = [each for each in sent if each not in acked]
            told = unacked.one() if kind == "one" else unacked.upto(partition, number)
            assert told == (AckedRange(*acked[-1], acked[-1][0] + 1, len(acked)) if acked else None)
        assert unacked.count == len(sent)
        assert unacked.room == max(0, MOST - len(sent))

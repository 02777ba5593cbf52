"""Huge events on their way out: encoded once for all who are in their midst, and again when memory was wanted."""

from __future__ import annotations

import pytest

from headwater.errors import Unavailable
from headwater.server.wire.pieces import SLICE_BYTES, Encodings

SIZE = 3 * SLICE_BYTES + 5


class Encoder:
    """Something to encode, and how often it was."""

    def __init__(self, letter: bytes, size: int = SIZE) -> None:
        self.data = letter * size
        self.times = 0

    def __call__(self) -> bytes:
        self.times += 1
        return self.data


@pytest.mark.parametrize("size", [1, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, SIZE])
def test_slices_are_the_whole_and_none_is_large(size: int) -> None:
    encodings, encoder = Encodings(), Encoder(b"x", size)
    pieces = list(encodings.slices("key", encoder))
    assert b"".join(pieces) == encoder.data
    assert max(map(len, pieces)) <= SLICE_BYTES
    assert (encoder.times, encodings.kept) == (1, 0)


def test_all_who_are_in_its_midst_share_it_and_the_last_lets_go() -> None:
    encodings, encoder = Encodings(), Encoder(b"x")
    readers = [encodings.slices("key", encoder) for _ in range(10)]
    for reader in readers:
        next(reader)
    assert (encoder.times, encodings.kept) == (1, SIZE)
    readers[0].close()  # its client has gone
    assert all(b"".join(reader) == encoder.data[SLICE_BYTES:] for reader in readers[1:])
    assert (encoder.times, encodings.kept) == (1, 0)


def test_those_who_wait_hold_nothing_beyond_what_is_kept_for_all() -> None:
    encodings = Encodings(2 * SIZE)
    encoders = [Encoder(b"%d" % number) for number in range(9)]
    readers = [encodings.slices(number, encoder) for number, encoder in enumerate(encoders)]
    firsts = []
    for reader in readers:
        firsts.append(next(reader))
        assert encodings.kept <= 2 * SIZE
    for encoder, first, reader in zip(encoders, firsts, readers, strict=True):
        assert first + b"".join(reader) == encoder.data
    assert all(encoder.times in (1, 2) for encoder in encoders)  # once more for those that were dropped meanwhile
    assert encodings.kept == 0


def test_what_is_encoded_again_must_be_the_same() -> None:
    encodings, encoder = Encodings(0), Encoder(b"x")
    reader = encodings.slices("key", encoder)
    next(reader)
    other = encodings.slices("other", Encoder(b"y"))
    next(other)  # for which it is dropped
    encoder.data = b"shorter"
    with pytest.raises(Unavailable):
        list(reader)

"""Lines from a stream, in batches of what has arrived: a fast source fills them, a slow one is not kept waiting."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from typing import IO, Any

from headwater.errors import TooLarge

BATCH_BYTES = 4 * 1024 * 1024  # enough that the sync which each batch costs does not count
BATCH_EVENTS = 50_000
LINGER_S = 0.02  # how long a batch may wait for more: a sync takes about that long too
READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024


def read_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Lists of lines without their ends; empty lines are left out, a last one without an end counts."""
    rest = b""
    for arrived in _arrivals(stream):
        *lines, rest = (rest + arrived).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise TooLarge(
                f"a line has more than {LINE_BYTES_MAX} bytes",
                hint="append it with --file",
                limit="line_bytes_max",
                maximum=LINE_BYTES_MAX,
            )
        found = [line for each in lines if (line := each.removesuffix(b"\r"))]
        for start in range(0, len(found), BATCH_EVENTS):
            yield found[start : start + BATCH_EVENTS]
    if rest := rest.removesuffix(b"\r"):
        yield [rest]


def _arrivals(stream: IO[bytes]) -> Iterator[bytes]:
    """What is there each time, after waiting for the first byte and a moment for more. Reads the end only once."""
    read: Any = getattr(stream, "read1", stream.read)
    while piece := read(READ_BYTES):
        pieces, size, deadline = [piece], len(piece), time.monotonic() + LINGER_S
        while piece and size < BATCH_BYTES and _more(stream, deadline - time.monotonic()):
            piece = read(READ_BYTES)
            pieces.append(piece)
            size += len(piece)
        yield b"".join(pieces)
        if not piece:
            return


def _more(stream: IO[bytes], wait_s: float) -> bool:
    """Return whether a read would return at once: something, or that it is the end."""
    if wait_s <= 0:
        return False
    try:
        return bool(select.select([stream], [], [], wait_s)[0])
    except (OSError, TypeError, ValueError):  # not a file: all of it is in memory
        return True

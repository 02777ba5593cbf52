"""JSON lines out and in (format/jsonl.py has their fields)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import msgspec
from msgspec import UNSET

from headwater.errors import Corrupt, HeadwaterError, Invalid, TooLarge
from headwater.format import jsonl
from headwater.format.events import EventBatch
from headwater.format.jsonl import EventLine
from headwater.transfer.chunks import ORIGINAL, EventChunk, ImportChunk, ImportOptions, original
from headwater.transfer.files import Input, events_of

BLOCK_BYTES = 4 * 1024 * 1024
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Invalid)


class LineWriter:
    """Writes a line for each event."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def write(self, group: list[EventBatch]) -> None:
        self._out.write(jsonl.encode_exactly([event for batch in group for event in events_of(batch)]))

    def close(self) -> None:
        """Nothing ends a file of lines."""


def read(input: Input, wanted: ImportOptions, line_bytes_max: int) -> Iterator[ImportChunk]:
    """Yield the events of the lines; blank ones are left out, a last one without an end counts.

    Raises Corrupt, with the range of bytes and the number, for a line that is not JSON, and Invalid for another that
    is no event, when all that came before has been given.
    """
    rest, position, number = b"", input.position, 1
    while block := input.read(BLOCK_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            lines, rest = rest + block[:cut], block[cut:]
            yield from _chunks(lines, position, number, input.name, wanted)
            position += len(lines)
            number += lines.count(b"\n")
        else:
            rest += block
        if len(rest) > line_bytes_max:
            raise TooLarge(
                f"line {number} of {input.name} has more than {line_bytes_max} bytes",
                limit="line_bytes_max",
                maximum=line_bytes_max,
                line=number,
                position=position,
            )
    if rest:
        yield from _chunks(rest, position, number, input.name, wanted)


def _chunks(lines: bytes, position: int, number: int, name: str, wanted: ImportOptions) -> Iterator[ImportChunk]:
    """Yield the events of many lines at once; if that fails, line by line, to tell which."""
    try:
        found = jsonl.decode_lines(lines)
        if len(found) == lines.count(b"\n") + (not lines.endswith(b"\n")):
            yield _chunk(found, wanted)
            return  # else some lines are blank, or an object goes over several
    except _WRONG:
        pass
    found = []
    for line in lines.split(b"\n"):
        if line.strip():
            try:
                event = jsonl.decode_line(line)
                _chunk([event], wanted)
            except _WRONG as error:
                if found:
                    yield _chunk(found, wanted)
                raise _located(error, name, number, position, len(line)) from error
            found.append(event)
        position += len(line) + 1
        number += 1
    if found:
        yield _chunk(found, wanted)


def _chunk(lines: list[EventLine], wanted: ImportOptions) -> EventChunk:
    data, contents = zip(*(jsonl.data_of(line, wanted.content) for line in lines), strict=True)
    metas: list[dict[str, str] | None] = [line.meta for line in lines]
    if wanted.keep_times:
        metas = [
            original(line.meta, **{name: getattr(line, name) for name in ORIGINAL if getattr(line, name) is not UNSET})
            for line in lines
        ]
    return EventChunk(
        list(data),
        list(contents),
        [None if line.topic is UNSET else line.topic for line in lines] if wanted.by_topic else None,
        [line.type for line in lines],
        [jsonl.key_of(line) for line in lines],
        metas,
        as_stored=all(line.id is not UNSET for line in lines),
    )


def _located(error: Exception, name: str, number: int, position: int, size: int) -> HeadwaterError:
    """Return the error of one line: Corrupt if it is not JSON, Invalid if it is no event."""
    wrong = isinstance(error, msgspec.ValidationError | Invalid)
    reason = error.message if isinstance(error, Invalid) else str(error)
    if wrong:
        message = f"line {number} of {name} is not an event: {reason}"
    else:
        message = f"line {number} of {name}, bytes {position} to {position + size}, is not JSON: {reason}"
    hint = error.hint if isinstance(error, Invalid) else ""
    kind = Invalid if wrong else Corrupt
    return kind(message, hint=hint, path=name, position=position, size=size, line=number, reason=reason)

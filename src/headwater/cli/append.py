"""`headwater append`: events from arguments, lines or a file."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import NaturalType, PairType, VersionType, data_argument, json_option, topic_argument
from headwater.cli.opening import open_log
from headwater.cli.show import ProgressLine
from headwater.errors import HeadwaterError, Invalid, TooLarge

if TYPE_CHECKING:
    from headwater.event import Content, Durability, Ref, Refs
    from headwater.format.given import Version as Version_
    from headwater.store import Store

BATCH_BYTES = 4 * 1024 * 1024  # enough to make the cost of a sync for each batch negligible
BATCH_EVENTS = 50_000
LINGER_S = 0.02  # how long a batch may wait for more: a sync takes about that long too
READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024


@command(
    examples=[
        "headwater append data orders --type placed --key o-17 '{\"total\": 12}'",
        "headwater append data notes 'the first' 'the second'",
        "journalctl -f -o json | headwater append data journal --quiet",
        "headwater append data videos --file film.mp4 --meta name=film.mp4",
        "headwater append data orders --key o-17 --expect 41 '{\"paid\": 12}'",
        "headwater append data orders --producer till-3 --seq 1207 '{\"total\": 8}'",
    ]
)
@data_argument
@topic_argument
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option("--type", "type_", default="", metavar="TYPE", help="The type of the events.")
@click.option("--key", metavar="KEY", help="The key of the events; it also chooses the partition.")
@click.option(
    "--meta", type=PairType(), multiple=True, metavar="NAME=VALUE", help="Metadata of the event; may be repeated."
)
@click.option("--content", type=click.Choice(["bytes", "text", "json", "bson"]), help="Content of the data.")
@click.option("--file", metavar="PATH", help="Append a file of any size as one event; - for stdin.")
@click.option("--lines", is_flag=True, help="Append each line of stdin as an event; the default in a pipe.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os"]),
    default="fsync",
    help="Wait for the disk (fsync), or only for the operating system (os).",
)
@click.option("--partition", type=NaturalType(), metavar="N", help="Append to this partition.")
@click.option(
    "--expect",
    type=VersionType(),
    metavar="VERSION",
    help="Append only if KEY's last event has this offset; none: has no event.",
)
@click.option("--producer", metavar="ID", help="Producer id: with --seq, a retry appends nothing twice.")
@click.option(
    "--epoch", type=NaturalType(), default=0, metavar="N", help="Producer epoch; a higher epoch fences lower ones."
)
@click.option("--seq", type=NaturalType(), metavar="N", help="Sequence number of the request; must increase.")
@json_option("Print references as JSON, one object a line.")
@click.option("-q", "--quiet", is_flag=True, help="Print no references.")
def append(
    data: str,
    topic: str,
    values: tuple[str, ...],
    type_: str,
    key: str | None,
    meta: tuple[tuple[str, str], ...],
    content: Content | None,
    file: str | None,
    lines: bool,
    durability: Durability,
    partition: int | None,
    expect: Version_ | None,
    producer: str | None,
    epoch: int,
    seq: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Append events and print their topic, partition, offset and id.

    Without --content, a JSON object or array is stored as json, other UTF-8 as text, and anything else as bytes; a file
    is stored as bytes. With --content, the data is checked. For bson, give values and lines as (Extended) JSON.

    Lines are appended in batches as they arrive; empty lines are ignored. The topic and the directory are created if
    they do not exist.
    """
    _check_use(values, file, lines)
    guard = _guard(key, expect, producer, epoch, seq, once=file is not None or bool(values))
    with open_log(data, durability=durability) as hw:
        if not quiet and topic not in hw.topics():
            show.note(f"new topic {topic} in {data}")
        target = AppendTarget(hw, topic, type_, key, dict(meta), partition, guard)
        reads_lines = file is None and not values
        told = References(as_json=as_json, quiet=quiet, ranges=reads_lines and show.is_terminal(sys.stdout))
        if reads_lines:
            _append_lines(target, content, told)
        elif file is not None:
            told.print([_append_file(target, file, content)])
        else:
            for refs in target.append([os.fsencode(value) for value in values], content):
                told.print(refs)


def _check_use(values: Sequence[str], file: str | None, lines: bool) -> None:
    if bool(values) + (file is not None) + lines > 1:
        raise click.UsageError("VALUE, --file and --lines are mutually exclusive")
    if not values and file is None and not lines and show.is_terminal(sys.stdin):
        raise click.UsageError("nothing to append: give a VALUE, --file, or lines on stdin")


def _guard(
    key: str | None, expect: Version_ | None, producer: str | None, epoch: int, seq: int | None, *, once: bool
) -> dict[str, Any]:
    """Return the conditions of a request, as arguments of the library; it has them only if it is one request."""
    if (producer is None) != (seq is None):
        raise click.UsageError("--producer and --seq must be given together")
    if expect is None and producer is None:
        return {}
    if expect is not None and key is None:
        raise click.UsageError("--expect needs --key")
    if not once:
        raise click.UsageError("--expect and --producer cannot be used with lines")
    return {"expected_version": expect, "producer": None if producer is None else (producer, epoch, seq)}


class AppendTarget:
    """Where the events go, and what they have in common."""

    def __init__(
        self,
        hw: Store,
        topic: str,
        type: str,
        key: str | None,
        meta: dict[str, str],
        partition: int | None,
        guard: dict[str, Any],
    ) -> None:
        self._hw = hw
        self.topic = topic
        self._type = type
        self._key = key
        self._meta = meta
        self._partition = partition
        self._guard = guard

    def append(self, values: Sequence[bytes], content: Content | None) -> Iterator[Refs]:
        """Append in order, neighbours of the same content together."""
        encoded = [encode(value, content) for value in values]
        if self._guard and len({found for found, _ in encoded}) > 1:
            raise Invalid(
                "the values have different contents, and cannot be sent in one request", hint="give --content"
            )
        for found, run in groupby(encoded, key=lambda each: each[0]):
            data = [value for _, value in run]
            yield self._hw.append_many(
                self.topic,
                data,
                types=self._type,
                keys=None if self._key is None else [self._key] * len(data),
                metas=[self._meta] * len(data) if self._meta else None,
                content=found,
                partition=self._partition,
                **self._guard,
            )

    def append_one(self, data: bytes | Iterator[bytes], content: Content) -> Ref:
        return self._hw.append(
            self.topic,
            data,
            type=self._type,
            key=self._key,
            meta=self._meta,
            content=content,
            partition=self._partition,
            **self._guard,
        )


class References:
    """Prints where events went: one by one, or, where lines go and a person watches, only the ranges."""

    def __init__(self, *, as_json: bool, quiet: bool, ranges: bool) -> None:
        self.count = 0
        self._out: IO[bytes] = sys.stdout.buffer
        self._as_json = as_json
        self._quiet = quiet
        self._ranges: dict[int, tuple[int, int]] | None = {} if ranges and not as_json else None

    def print(self, refs: Refs | Sequence[Ref]) -> None:
        self.count += len(refs)
        if self._quiet:
            return
        if self._ranges is not None:
            for run in cast("Refs", refs).runs:
                first = self._ranges.get(run.partition, (run.offset, 0))[0]
                self._ranges[run.partition] = first, run.offset + run.count - 1
            return
        from headwater.cli.events import ref_json

        for ref in refs:
            line = ref_json(ref) if self._as_json else f"{ref.topic} {ref.partition} {ref.offset} {ref.id}".encode()
            self._out.write(line + b"\n")
        self._out.flush()

    def finish(self, topic: str, seconds: float) -> None:
        """Print the ranges."""
        if self._ranges is not None and not self._quiet:
            show.done(f"{show.count(self.count, 'event')} in topic {topic}, {seconds:.1f} s")
            for partition, (first, last) in sorted(self._ranges.items()):
                click.echo(f"  partition {partition}, offsets {click.style(f'{first:,}..{last:,}', fg='cyan')}")


def encode(value: bytes, content: Content | None) -> tuple[Content, bytes]:
    """Return the content and the bytes of the data; raises Invalid if the data is not what `content` says."""
    import msgspec

    try:
        if content is None:
            return guess(value), value
        if content == "text":
            value.decode()
        elif content == "json":
            msgspec.json.decode(value)
        elif content == "bson":
            from headwater.format import jsonl

            return "bson", jsonl.to_bson(value)
    except ValueError as error:
        raise Invalid(f"{_quoted(value)} is not {content}: {error}", hint="see --content") from error
    return content, value


def guess(value: bytes) -> Content:
    """`json` for an object or an array, `text` for UTF-8, else `bytes`."""
    import msgspec

    stripped = value.strip()
    if stripped[:1] + stripped[-1:] in (b"{}", b"[]"):
        try:
            msgspec.json.decode(stripped)
        except (ValueError, RecursionError):
            pass
        else:
            return "json"
    try:
        value.decode()
    except UnicodeDecodeError:
        return "bytes"
    return "text"


def _quoted(value: bytes) -> str:
    text = show.printable(value[:40].decode(errors="replace"))
    return f"'{text}…'" if len(value) > 40 else f"'{text}'"


def _append_file(target: AppendTarget, path: str, content: Content | None) -> Ref:
    """Append a file as one event; above 1 MiB it is streamed to save memory, and its content is not checked."""
    from headwater.limits import BLOB_CHUNK_BYTES

    with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
        first = _read_fully(file, BLOB_CHUNK_BYTES + 1)
        if len(first) <= BLOB_CHUNK_BYTES:
            if content not in (None, "bson"):
                encode(first, content)
            return target.append_one(first, content or "bytes")
        rest = iter(lambda: file.read(BLOB_CHUNK_BYTES), b"")
        return target.append_one(chain((first,), rest), content or "bytes")


def _read_fully(file: IO[bytes], size: int) -> bytes:
    """As much as was asked for, also from a pipe; less only at the end."""
    pieces, missing = [], size
    while missing and (piece := file.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _append_lines(target: AppendTarget, content: Content | None, told: References) -> None:
    began = time.monotonic()
    try:
        with ProgressLine("events appended") as waiting:
            for lines in read_lines(sys.stdin.buffer):
                for refs in target.append(lines, content):
                    told.print(refs)
                    waiting.update(told.count)
    except HeadwaterError as error:
        if not told.count:
            raise
        message = f"{error.message} ({show.count(told.count, 'event')} appended before that)"
        raise type(error)(message, hint=error.hint, code=error.code, **error.facts) from error
    told.finish(target.topic, time.monotonic() - began)


def read_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their ends, in lists of those that have arrived; empty lines are left out.

    A fast source fills the lists, and a slow one is not kept waiting. The last line needs no end. Raises TooLarge.
    """
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
    """Yield the bytes that have arrived, after waiting for the first and a moment for more. Reads the end only once."""
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
    """Return whether a read would return at once, with bytes or at the end."""
    if wait_s <= 0:
        return False
    try:
        return bool(select.select([stream], [], [], wait_s)[0])
    except (OSError, TypeError, ValueError):  # not a file: all of it is in memory
        return True

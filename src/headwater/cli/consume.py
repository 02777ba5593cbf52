"""`headwater consume`: read a topic as a named consumer, which stores its position."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.app import command
from headwater.cli.arguments import (
    DurationType,
    NaturalType,
    PositionType,
    consumer_argument,
    data_argument,
    json_option,
    key_option,
    match_option,
    topic_argument,
    type_pattern_option,
)
from headwater.cli.opening import open_log
from headwater.errors import Invalid
from headwater.position import Position

if TYPE_CHECKING:
    from headwater.event import Event
    from headwater.protocols import Consumer


@command(
    examples=[
        "headwater consume data orders billing",
        "headwater consume data orders billing --drain --json | jq .data",
        "headwater consume data orders billing --from latest --type 'placed|paid' --exec ./bill",
        "headwater consume data orders billing --limit 1 --ack-each",
    ]
)
@data_argument
@topic_argument
@consumer_argument
@click.option(
    "--from",
    "start",
    type=PositionType(),
    default="earliest",
    metavar="POSITION",
    help="Where a new consumer starts, as in read.",
)
@type_pattern_option
@key_option
@match_option
@click.option("--limit", type=NaturalType(), metavar="N", help="Maximum number of events.")
@click.option("--drain", is_flag=True, help="Exit when all present events are handled.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Exit after this long without an event."
)
@click.option("--exec", "program", metavar="COMMAND", help="Run COMMAND for each event, with its data on stdin.")
@click.option("--ack-each", is_flag=True, help="Make each acknowledgement durable before the next event.")
@click.option(
    "--failures-max",
    type=NaturalType(),
    metavar="N",
    help="Dead-letter an event after this many failures.  [default: 5]",
)
@click.option(
    "--lease",
    type=DurationType(),
    metavar="DURATION",
    help="How long other members wait after this one dies.  [default: 10s]",
)
@json_option("One JSON object a line, as read does.")
@click.option("--raw", is_flag=True, help="Print only the data, each followed by a newline.")
def consume(
    data: str,
    topic: str,
    name: str,
    start: Position,
    type_: str | None,
    key: str | None,
    match: dict[str, Any] | None,
    limit: int | None,
    drain: bool,
    timeout: float | None,
    program: str | None,
    ack_each: bool,
    failures_max: int | None,
    lease: timedelta | None,
    as_json: bool,
    raw: bool,
) -> None:
    """Read a topic as the consumer NAME, and continue with new events as they arrive.

    An event is handled once it is printed, or once COMMAND has exited with 0; the next run continues after it. Several
    processes share the partitions of the topic. An event whose COMMAND fails is retried; after --failures-max failures
    it is dead-lettered to the topic TOPIC.dead with the reason: see replay.

    COMMAND receives HEADWATER_TOPIC, _PARTITION, _OFFSET, _TYPE, _KEY and _ID in its environment. Ends with Ctrl-C.
    """
    if sum((as_json, raw, program is not None)) > 1:
        raise click.UsageError("--json, --raw and --exec are mutually exclusive")
    from headwater.cli.events import Printer

    words = _words(program)
    lease_ms = None if lease is None else round(lease.total_seconds() * 1000)
    options: dict[str, Any] = {"timeout": timeout, "lease_ms": lease_ms, "failures_max": failures_max}
    with open_log(data, mode="existing") as hw:
        printer = Printer(len(hw.describe(topic).partitions), as_json=as_json, raw=raw)
        with hw.consumer(name, topic, start=start, type=type_, key=key, match=match, **options) as consumer:
            try:
                for event in _events(consumer, drain=drain, limit=limit):
                    if words:
                        _run(words, event, consumer)
                    else:
                        printer.print(event)
                        printer.flush()
                        consumer.ack(event)
                    if ack_each:
                        consumer.flush()
            except KeyboardInterrupt:
                return  # this is how it ends


def _events(consumer: Consumer, *, drain: bool, limit: int | None) -> Iterator[Event]:
    return islice(consumer.drain() if drain else consumer, limit)


def _words(program: str | None) -> list[str]:
    try:
        words = shlex.split(program or "")
    except ValueError as error:
        raise click.UsageError(f"--exec {program!r}: {error}") from None
    if program is not None and not words:
        raise click.UsageError("--exec is empty")
    return words


def _run(words: list[str], event: Event, consumer: Consumer) -> None:
    """Run the command for one event; 0 is an ack, anything else a failure."""
    environment = {
        "TOPIC": event.topic,
        "PARTITION": str(event.partition),
        "OFFSET": str(event.offset),
        "TYPE": event.type,
        "KEY": os.fsdecode(event.key or b""),
        "ID": str(event.id),
    }
    told = {f"HEADWATER_{name}": value for name, value in environment.items() if "\0" not in value}
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, env={**os.environ, **told}) as process:  # noqa: S603  # theirs
            assert process.stdin is not None
            try:
                event.save(process.stdin)
                process.stdin.close()
            except BrokenPipeError:
                pass  # it did not want to read all
            code = process.wait()
    except FileNotFoundError as error:
        raise Invalid(f"program not found: {words[0]!r}", hint="--exec takes a command in the PATH") from error
    if code == 0:
        consumer.ack(event)
    else:
        consumer.fail(event, f"{shlex.join(words)} ended with {code}")

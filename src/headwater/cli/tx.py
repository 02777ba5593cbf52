"""`headwater tx`: a transaction from lines of JSON."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, Literal

import click
import msgspec
from msgspec import UNSET, UnsetType

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.append import References, encode, read_lines
from headwater.cli.arguments import data_argument, json_option
from headwater.cli.opening import open_log
from headwater.errors import HeadwaterError, Invalid, TooLarge
from headwater.event import Content
from headwater.limits import DEFAULTS


@command(
    examples=[
        "headwater tx data transfer.jsonl",
        'echo \'{"topic": "orders", "key": "o-17", "expected_version": 3, "data": "paid"}\' | headwater tx data -',
    ]
)
@data_argument
@click.argument("file", metavar="FILE")
@json_option("Print references as JSON, one object a line.")
@click.option("-q", "--quiet", is_flag=True, help="Print no references.")
def tx(data: str, file: str, as_json: bool, quiet: bool) -> None:
    """Append the events of FILE (- for stdin) to any topics, all or nothing.

    Each line is a JSON object with a topic and data (a JSON value, stored as json; a string, stored as text) or
    data_base64 (bytes), and optionally type, key or key_base64, content, meta, partition and expected_version: the
    offset of the key's last event, or "none". If the version differs, nothing is appended and the exit code is 1.

    Topics and the directory are created if they do not exist. Prints topic, partition, offset and id of each event.
    """
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
        appends = list(read_appends(stream))  # all of them are read before anything is created
    with open_log(data) as hw:
        transaction = hw.transaction()
        for number, append in enumerate(appends, 1):
            with NumberedLine(number):
                transaction.append(**append)
        refs = transaction.commit()
    References(as_json=as_json, quiet=quiet, ranges=False).print(refs)
    if not refs:
        show.note("nothing to append")


class TransactionLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One append, in the form that `headwater read --json` prints; offset, time and id are ignored."""

    topic: str
    partition: int | None = None
    offset: int | None = None
    time: str | None = None
    id: str | None = None
    type: str = ""
    key: str | None = None
    key_base64: str | None = None
    content: Content | None = None
    data: msgspec.Raw | UnsetType = UNSET
    data_base64: str | None = None
    meta: dict[str, str] = {}
    expected_version: int | Literal["none"] | None = None


_decode = msgspec.json.Decoder(TransactionLine).decode


def read_appends(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each append; raises Invalid, with the number of the line, and TooLarge."""
    size, most = 0, DEFAULTS.transaction_bytes_max
    lines = (line for some in read_lines(stream) for line in some)
    for number, line in enumerate(lines, 1):
        with NumberedLine(number):
            append = _append_of(line)
            size += len(append["data"])
            if size > most or number > DEFAULTS.transaction_events_max:
                raise TooLarge(
                    f"a transaction may have at most {most} bytes and {DEFAULTS.transaction_events_max} events",
                    hint="split it into several transactions",
                    limit="transaction_bytes_max",
                    maximum=most,
                )
        yield append


def _append_of(line: bytes) -> dict[str, Any]:
    try:
        told = _decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(
            str(error)[:1].lower() + str(error)[1:], hint='a line is like {"topic": "orders", "data": {"total": 12}}'
        ) from error
    content, data = _data_of(told)
    key = _bytes(told.key_base64, "key_base64") if told.key_base64 is not None else told.key
    return {
        "topic": told.topic,
        "data": data,
        "content": content,
        "type": told.type,
        "key": key,
        "meta": told.meta,
        "partition": told.partition,
        "expected_version": told.expected_version,
    }


def _data_of(line: TransactionLine) -> tuple[Content, bytes]:
    if line.data_base64 is not None:
        return line.content or "bytes", _bytes(line.data_base64, "data_base64")
    if line.data is UNSET:
        raise Invalid("no data", hint="give data or data_base64")
    raw = bytes(line.data)
    content = line.content or ("text" if raw[:1] == b'"' else "json")
    if content in ("json", "bson"):
        return encode(raw, content)
    text = msgspec.json.decode(raw)
    if not isinstance(text, str):
        raise Invalid(f"data of content {content} must be a string", hint="omit content to store it as json")
    return content, text.encode()


def _bytes(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Invalid(f"{what} is not base64: {error}") from error


class NumberedLine:
    """Adds the number of the line to errors raised inside."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, HeadwaterError):
            message = f"line {self._number}: {error.message}"
            raise type(error)(message, hint=error.hint, code=error.code, **error.facts) from error

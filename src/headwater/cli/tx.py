"""`headwater tx`: a transaction from lines of JSON."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.append import References
from headwater.cli.arguments import data_argument, json_option
from headwater.cli.opening import open_log


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
    from headwater.cli.appends import NumberedLine, read_appends

    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
        appends = list(read_appends(stream))  # all of them are read before anything is made
    with open_log(data) as hw:
        transaction = hw.transaction()
        for number, append in enumerate(appends, 1):
            with NumberedLine(number):
                transaction.append(**append)
        refs = transaction.commit()
    References(as_json=as_json, quiet=quiet, ranges=False).print(refs)
    if not refs:
        show.note("nothing to append")

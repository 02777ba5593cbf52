"""`headwater consumers`: list consumers with their positions and members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log

if TYPE_CHECKING:
    from headwater.info import ConsumerInfo


@command(examples=["headwater consumers data", "headwater consumers data orders --json"])
@data_argument
@optional_topic_argument
@json_option("One JSON object a line.")
@click.pass_context
def consumers(ctx: click.Context, data: str, topic: str | None, as_json: bool) -> None:
    """List consumers with their cursor, lag and member in each partition.

    The lag is the number of events that are not acknowledged. A member that died keeps its partitions until its lease
    expires. A consumer or topic that cannot be read is listed with the reason, and the exit code is 1.
    """
    with open_log(data, mode="existing") as hw:
        found = hw.consumers(topic)
    if as_json:
        for info in found:
            click.echo(show.json_line(msgspec.to_builtins(info)))
    elif found:
        columns = ("consumer", "topic", "partition", "cursor", "end", "lag", "owner", "lease", "failures")
        right = ("partition", "cursor", "end", "lag", "lease", "failures")
        sound = [info for info in found if info.error is None]
        if sound:
            show.table(columns, [_row(info) for info in sound], right=right)
        for info in found:
            if info.error is not None:
                name = f"consumer {info.name} of topic {info.topic}" if info.name else f"topic {info.topic}"
                mark = click.style("✗", fg="red", bold=True)
                click.echo(f"{mark} {show.printable(name)}: {show.printable(info.error)}")
    else:
        show.note(f"no consumers yet — headwater consume {data} TOPIC NAME")
    if any(info.error is not None for info in found):
        ctx.exit(FAILED)


def _row(info: ConsumerInfo) -> list[show.Cell]:
    return [
        (show.printable(info.name), "bold"),
        show.printable(info.topic),
        str(info.partition),
        (show.number(info.cursor), "cyan"),
        show.number(info.end),
        (show.number(info.lag), "yellow" if info.lag else "green"),
        info.owner[:8] if info.owner else "",
        f"{info.lease_ms / 1000:.1f} s" if info.owner else "",
        (str(info.failures), "red") if info.failures else "",
    ]

"""`headwater check`: read everything, and tell what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log
from headwater.cli.progress import Waiting

if TYPE_CHECKING:
    from headwater.engine.checking import CheckReport
    from headwater.storage.check import Finding


@command(examples=["headwater check data", "headwater check data orders --json"])
@data_argument
@optional_topic_argument
@json_option("One JSON object.")
@click.pass_context
def check(ctx: click.Context, data: str, topic: str | None, as_json: bool) -> None:
    """Read every byte and verify every checksum.

    Changes nothing. The exit code is 1 when something is damaged, with the exact range of bytes of each piece.
    """
    with open_log(data, mode="existing") as hw, Waiting("checking", as_bytes=True, patience_s=0.3) as waiting:
        report = hw.check(topic, progress=waiting.update)
    damaged = sum(finding.damage for finding in report.findings)
    if as_json:
        click.echo(show.json_line(_told(report, damaged)))
    else:
        for finding in report.findings:
            _show(finding)
        _show_sum(report, damaged, data, topic)
    if damaged:
        ctx.exit(FAILED)


def _show(finding: Finding) -> None:
    mark = click.style("✗ damage", fg="red", bold=True) if finding.damage else click.style("· note", fg="yellow")
    click.echo(f"{mark}  {show.log_name(finding.topic, finding.partition)}: {show.printable(finding.problem)}")
    where = show.printable(finding.path)
    if finding.size:
        end = finding.position + finding.size
        where += f", bytes {finding.position} to {end} ({show.size(finding.size)})"
    click.echo(f"          {click.style(where, dim=True)}")


def _show_sum(report: CheckReport, damaged: int, data: str, topic: str | None) -> None:
    parts = [
        show.count(getattr(report, f"{noun}s" if noun != "batch" else "batches"), noun)
        for noun in ("topic", "partition", "segment", "batch", "event")
    ]
    read = f"{', '.join(parts)}, {show.size(report.bytes)}"
    if damaged:
        where = " ".join(filter(None, (data, topic)))
        click.echo(f"{click.style('✗', fg='red', bold=True)} {show.count(damaged, 'damaged range')} in {read}")
        click.echo(f"  'headwater repair {where}' shows what can be done")
    else:
        show.done(f"all good: {read}")


def _told(report: CheckReport, damaged: int) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(report)
    return {"ok": not damaged} | told

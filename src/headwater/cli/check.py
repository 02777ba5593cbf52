"""`headwater check`: read everything, and report damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headwater.address import is_bucket, is_directory
from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log
from headwater.cli.show import ProgressLine

if TYPE_CHECKING:
    from headwater.info import CheckReport, Finding
    from headwater.store import Store


@command(
    examples=[
        "headwater check data",
        "headwater check data orders --json",
        "headwater check data --archive",
        "headwater check s3://bucket/archive",
    ]
)
@data_argument
@optional_topic_argument
@click.option("--archive", is_flag=True, help="Also fetch and verify the archive of the directory.")
@json_option("One JSON object.")
@click.pass_context
def check(ctx: click.Context, data: str, topic: str | None, archive: bool, as_json: bool) -> None:
    """Read every byte and verify every checksum.

    Changes nothing. If something is damaged, prints the exact range of bytes, and the exit code is 1. Events that a
    repair removed are listed with their offsets, but do not count as damage. The archive of a log is verified only with
    --archive, because all of it must be fetched; or give the address of the archive itself.
    """
    reports: dict[str, CheckReport] = {}
    with ProgressLine("checking", as_bytes=True, patience_s=0.3) as waiting:
        at_archive = _is_archive(data)
        if at_archive:
            from headwater.history.check import check_archive_at

            reports[data] = check_archive_at(data, topic, progress=waiting.update)
        else:
            with open_log(data, mode="existing") as hw:
                reports[data] = hw.check(topic, progress=waiting.update)
                if archive:
                    reports["archive"] = _checked_archive(hw, topic, waiting)
    damaged = sum(finding.damage for report in reports.values() for finding in report.findings)
    if as_json:
        told = _told(reports[data], damaged)
        click.echo(show.json_line(told | ({"archive": reports["archive"]} if "archive" in reports else {})))
    else:
        for where, report in reports.items():
            for finding in report.findings:
                _show(finding)
            _show_sum(report, where, topic, is_archive=at_archive or where == "archive")
    if damaged:
        ctx.exit(FAILED)


def _is_archive(data: str) -> bool:
    if not is_directory(data) and not is_bucket(data):
        return False
    from headwater.history.records import is_archive

    return is_archive(data)


def _checked_archive(hw: Store, topic: str | None, waiting: ProgressLine) -> CheckReport:

    from headwater.history.check import check_archive_of

    return check_archive_of(hw.directory, topic, waiting.update)


def _show(finding: Finding) -> None:
    mark = click.style("✗ damage", fg="red", bold=True) if finding.damage else click.style("· note", fg="yellow")
    click.echo(f"{mark}  {show.log_name(finding.topic, finding.partition)}: {show.printable(finding.problem)}")
    where = show.printable(finding.path)
    if finding.size:
        end = finding.position + finding.size
        where += f", bytes {finding.position} to {end} ({show.size(finding.size)})"
    click.echo(f"          {click.style(where, dim=True)}")


def _show_sum(report: CheckReport, data: str, topic: str | None, *, is_archive: bool) -> None:
    damaged = sum(finding.damage for finding in report.findings)
    nouns = ("topic", "partition", "event") if is_archive else ("topic", "partition", "segment", "batch", "event")
    parts = [show.count(getattr(report, f"{noun}s" if noun != "batch" else "batches"), noun) for noun in nouns]
    if report.lost:
        parts[-1] += f" ({show.number(report.lost)} more are lost)"
    if is_archive:
        parts.append(show.count(report.segments, "file"))
    read = f"{', '.join(parts)}, {show.size(report.bytes)}"
    if damaged:
        click.echo(f"{click.style('✗', fg='red', bold=True)} {show.count(damaged, 'damaged range')} in {read}")
        if is_archive or not is_directory(data):
            click.echo("  objects cannot be repaired: restore a copy, or archive the log again to another target")
        else:
            click.echo(f"  'headwater repair {' '.join(filter(None, (data, topic)))}' shows how to repair them")
    else:
        how = "no damage now" if report.lost else "all good"
        show.done(f"{how}{' in the archive' if data == 'archive' else ''}: {read}")


def _told(report: CheckReport, damaged: int) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(report)
    return {"ok": not damaged} | told

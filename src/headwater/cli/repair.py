"""`headwater repair`: show the steps that repair a damaged log, or apply them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headwater.cli import show
from headwater.cli.app import FAILED, command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log

if TYPE_CHECKING:
    from headwater.directory.repair import Action


@command(examples=["headwater repair data", "headwater repair data orders --apply"])
@data_argument
@optional_topic_argument
@click.option("--apply", is_flag=True, help="Apply the repair. Without this, nothing is changed.")
@json_option("One JSON object a line, for each step.")
@click.pass_context
def repair(ctx: click.Context, data: str, topic: str | None, apply: bool, as_json: bool) -> None:
    """Show how to repair a damaged log; with --apply, repair it.

    Nothing is thrown away: removed bytes are kept beside the log, and the command prints where. The exit code is 0 if
    nothing is left to do, and 1 otherwise.
    """
    with open_log(data, mode="existing") as hw:
        actions = hw.repair(topic, apply=apply)
    for action in actions:
        if as_json:
            click.echo(show.json_line(action))
        else:
            _show(action)
    left = sum(not action.done for action in actions)
    if not as_json:
        _show_sum(actions, apply, " ".join(filter(None, (data, topic))))
    if left:
        ctx.exit(FAILED)


def _show(action: Action) -> None:
    if action.manual:
        mark = click.style("✗ by hand", fg="red", bold=True)
    else:
        mark = click.style("✓ done", fg="green") if action.done else click.style("· to do", fg="yellow")
    click.echo(f"{mark}  {show.log_name(action.topic, action.partition)}: {show.printable(action.what)}")
    click.echo(f"         {click.style(show.printable(action.path), dim=True)}")
    if action.kept:
        click.echo(f"         {'kept' if action.done else 'will be kept'} in {show.printable(action.kept)}")


def _show_sum(actions: list[Action], apply: bool, where: str) -> None:
    manual = sum(action.manual for action in actions)
    todo = sum(not action.done for action in actions) - manual
    done = len(actions) - manual - todo
    if not actions:
        show.done("nothing to repair")
    if done:
        show.done(f"{show.count(done, 'step')} done — 'headwater check {where}' verifies it")
    if todo and apply:
        click.echo(f"{click.style('✗', fg='red', bold=True)} {show.count(todo, 'step')} could not be done")
    elif todo:
        click.echo(f"Nothing was changed. 'headwater repair {where} --apply' applies this.")
    if manual:
        click.echo(f"{click.style('✗', fg='red', bold=True)} {show.count(manual, 'step')} must be done by hand")

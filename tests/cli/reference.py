"""The reference in `docs/CLI.md`, made from the help of every command: `python -m tests.cli.reference docs/CLI.md`.

What is above the marker in that page is written by hand and stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headwater.cli.app import SECTIONS, CommandContext, Family, cli

MARKER = "<!-- Below, this page is made by: python -m tests.cli.reference docs/CLI.md -->\n"
COLUMNS = 100


def reference() -> str:
    """Return the help of all commands, in Markdown."""
    parts = ["## Reference\n", _block(_help(cli, "headwater"))]
    for names in SECTIONS.values():
        for name in names:
            command = cli.get_command(CommandContext(cli), name)
            assert command is not None
            parts += _section(command, f"headwater {name}")
    return "\n".join(parts)


def renewed(page: str) -> str:
    """Return the page with its reference regenerated; raises ValueError if it has no marker."""
    written, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page lacks the line {MARKER.strip()}")
    return f"{written}{MARKER}\n{reference()}"


def _section(command: click.Command, path: str) -> list[str]:
    parts = [f"### {path}\n", _block(_help(command, path))]
    if isinstance(command, Family):
        for name, member in command.commands.items():
            parts += _section(member, f"{path} {name}")
    return parts


def _help(command: click.Command, path: str) -> str:
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=COLUMNS)
    return click.unstyle(command.get_help(context))


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```text\n{lines}\n```\n"


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.write_text(renewed(where.read_text(encoding="utf-8")), encoding="utf-8")

"""The program: its commands, its help, and its handling of errors.

Commands are modules of this package, imported on first use. Every failure ends here, as one line on
stderr and an exit code; with `--json`, as one JSON object.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import keyword
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import click
from click.exceptions import Exit

from headwater import __version__
from headwater.cli import show
from headwater.errors import HeadwaterError, out_of_memory

F = TypeVar("F", bound=Callable[..., Any])

SECTIONS = {
    "Topics": ("init", "create", "topics", "info", "delete"),
    "Events": ("append", "tx", "read", "tail", "export", "import"),
    "Consumers": ("consume", "consumers", "seek", "forget", "replay"),
    "Keeping": ("seal", "reindex", "retain", "maintain", "archive", "restore", "check", "repair"),
    "Replicas": ("replicate", "replica", "promote"),
    "Views": ("get", "query", "sql", "views", "pipeline"),
    "Serving": ("serve", "auth"),
    "Tools": ("bench", "completion"),
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)

# The library's hints speak of its arguments; here they are options.
HINTS = {
    "partition_needed": "give --partition, or a time",
    "topic_needed": "give --topic, or a time",
    "data_bytes_max": "create the topic with a larger --data-bytes-max",
    "batch_bytes_max": "append it with --file",
    "blob_bytes_in_memory": "export with a larger --hold, or save its data with 'headwater read --output'",
    "hard_bound_needed": "give --hard-bytes, or --overflow delete",
    "offset_gone": "read from earliest",
}

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

FAILED, INTERRUPTED, PIPE_CLOSED = 1, 130, 141


class Formatter(click.HelpFormatter):
    """Help with headings in bold and options in colour; on anything but a terminal, click takes both away."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, click.style("Usage: ", bold=True) if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{click.style(heading + ':', bold=True)}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(click.style(term, fg="cyan"), text) for term, text in rows], col_max, col_spacing)


class CommandContext(click.Context):
    """A context that knows our formatter."""

    formatter_class = Formatter


class Command(click.Command):
    """A command with examples in its help."""

    context_class = CommandContext

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        files = [option for option in self.params if _is_of_servers(option)]
        if files:
            with formatter.section("With a server"):
                formatter.write_text(f"{', '.join(option.opts[0] for option in files)}: see docs/CLIENT.md.")
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {click.style('$', dim=True)} {example}\n")


def _is_of_servers(option: click.Parameter) -> bool:
    """Return whether it is one of `opening.server_options`, which commands are not given."""
    return isinstance(option, click.Option) and option.hidden and not option.expose_value


class Family(click.Group):
    """A command of several, in one module: `headwater auth add`."""

    context_class = CommandContext

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the commands, in the order of the module."""
        with formatter.section("Commands"):
            rows = [(name, command.get_short_help_str(100)) for name, command in self.commands.items()]
            formatter.write_dl(rows)

    def command(self, *, examples: Sequence[str] = (), **options: Any) -> Callable[[Callable[..., Any]], Command]:  # type: ignore[override]
        """Make a function one of them."""

        def decorate(function: Callable[..., Any]) -> Command:
            made = command(examples=examples, **options)(function)
            self.add_command(made)
            return made

        return decorate


class Program(click.Group):
    """The commands by section, and one place for all errors."""

    context_class = CommandContext

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        found: click.Command = getattr(importlib.import_module(f"headwater.cli.{name}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one may have been meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, 1)
            raise click.UsageError(f"unknown command '{name}'" + (f" — did you mean '{near[0]}'?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by section."""
        for section, names in SECTIONS.items():
            with formatter.section(section):
                rows = []
                for name in names:
                    command = self.get_command(ctx, name)
                    assert command is not None
                    rows.append((f"{name:<10}", command.get_short_help_str(100)))
                formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run it and exit."""
        words = list(sys.argv[1:] if args is None else args)
        options = words[: words.index("--")] if "--" in words else words
        as_json = "--json" in options
        extra |= {"standalone_mode": False, "obj": as_json}
        if os.environ.get("NO_COLOR"):
            extra["color"] = False
        try:
            code = super().main(words, *rest, **extra)
        except click.ClickException as error:
            _fail_usage(error, as_json)
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn what it raises into an exit code."""
        as_json = bool(ctx.obj)
        handler = _Warnings(as_json)
        logger = logging.getLogger("headwater")
        logger.addHandler(handler)
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
            _fail(_translated(error), as_json)
            code = FAILED
        except BrokenPipeError:
            # Python would flush what is left when it exits, and complain: give it somewhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = PIPE_CLOSED
        except KeyboardInterrupt:
            code = INTERRUPTED
        except MemoryError:
            _fail(out_of_memory("the command cannot continue"), as_json)
            code = FAILED
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(HeadwaterError(f"{where}{error.strerror or error}", code="os_error"), as_json)
            code = FAILED
        finally:
            logger.removeHandler(handler)
        raise Exit(code)


class _Warnings(logging.Handler):
    """Prints warnings of the library (such as a recovery that cut something) on stderr."""

    def __init__(self, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        if self._as_json:
            click.echo(json.dumps({"warning": record.getMessage()}, ensure_ascii=False), err=True)
        else:
            show.warn(record.getMessage())
            if record.exc_info:
                click.echo("".join(traceback.format_exception(*record.exc_info)), err=True, nl=False)


def command(*, examples: Sequence[str], **options: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command: its docstring is the help, its name the command's."""

    def decorate(function: Callable[..., Any]) -> Command:
        options.setdefault("context_settings", HELP)
        options.setdefault("name", function.__name__.rstrip("_"))
        return click.command(cls=Command, examples=examples, **options)(function)

    return decorate


def group(function: Callable[..., Any]) -> Family:
    """Make a function a family of commands: its docstring is the help, its name the family's."""
    return click.group(function.__name__, cls=Family, context_settings=HELP)(function)


def yes_option(function: F) -> F:
    """Add --yes, for a command that calls `confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def confirm(ctx: click.Context, question: str, refused: str, *, yes: bool) -> None:
    """Ask for confirmation on the terminal unless `yes`; exits with `refused` on stderr if the answer is no."""
    if yes:
        return
    if not show.is_terminal(sys.stdin):
        raise click.UsageError("no terminal to confirm on: give --yes", ctx)
    if not click.confirm(question, err=True):
        click.echo(refused, err=True)
        ctx.exit(FAILED)


@contextlib.contextmanager
def on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on Ctrl-C and on SIGTERM while the block runs."""
    before = [(number, signal.signal(number, lambda *_: stop())) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@click.group(cls=Program, context_settings=HELP)
@click.version_option(__version__, message="headwater %(version)s")
def cli() -> None:
    """An event log in a directory or a bucket: append, read and follow events.

    DATA is the path of a directory, the address of a server such as http://host:7450, or of a bucket such as
    s3://bucket/prefix. Credentials for a server come from HEADWATER_TOKEN or from --token-file; credentials for a
    bucket from the AWS environment variables. 'headwater COMMAND --help' shows the options of a command and examples.
    """


def _translated(error: HeadwaterError) -> HeadwaterError:
    hint = HINTS.get(error.code) or HINTS.get(error.facts.get("limit", ""))
    if hint:
        error.hint = hint
    return error


def _fail(error: HeadwaterError, as_json: bool) -> None:
    if as_json:
        told = {"error": error.code, "message": error.message, "hint": error.hint}
        click.echo(json.dumps(told, ensure_ascii=False), err=True)
    else:
        line = " ".join(str(error).splitlines())
        click.echo(f"{click.style('error:', fg='red', bold=True)} {line}", err=True)


def _fail_usage(error: click.ClickException, as_json: bool) -> None:
    if type(error).__name__ == "NoArgsIsHelpError" and not as_json:  # a class of click from 8.2 on
        error.show()
        return
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "headwater"
    _fail(HeadwaterError(message, hint=f"see '{path} --help'", code="usage"), as_json)

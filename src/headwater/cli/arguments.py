"""Argument types: logs, topics, positions, sizes, durations; and the options that commands share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from headwater import position
from headwater.cli.opening import complete, server_options
from headwater.cli.show import ProgressLine
from headwater.errors import Invalid
from headwater.position import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


F = TypeVar("F", bound=Callable[..., Any])

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
FORMATS = ("jsonl", "arrow", "arrows", "parquet", "puro")
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """`64MiB`, `10MB` or `4096` as bytes; raises ValueError."""
    match = SIZE.fullmatch(text.strip())
    if match is None or (match[2] and not text.strip().upper().endswith("B")):
        raise ValueError(f"{text!r} is not a size; write 64MiB, 10MB or 4096")
    unit = (match[2] or "").upper()
    base = 1024 if unit.endswith("I") else 1000
    factor: int = base ** POWERS[unit[:1]]
    return round(float(match[1]) * factor)


if TYPE_CHECKING:
    from headwater.format.settings import Retention

    Kind = click.ParamType[Any]
else:
    Kind = click.ParamType  # not a generic class before click 8.4


class NaturalType(Kind):
    """A number from 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not isinstance(value, int) and not value.isdecimal():
            self.fail(f"{value!r} is not a whole number of 0 or more", param, ctx)
        return int(value)


class VersionType(Kind):
    """The offset of a key's last event, or that it has none."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value != "none" and not isinstance(value, int) and not value.isdecimal():
            self.fail(f"{value!r} is not a version; write the offset of the key's last event, or none", param, ctx)
        return value if value == "none" else int(value)


class SizeType(Kind):
    """A number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class DurationType(Kind):
    """A length of time."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return value if isinstance(value, timedelta) else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PositionType(Kind):
    """A position in a log; a time without a zone is local."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            now = datetime.now().astimezone()
            return position.parse(value, zone="local", now=now) if isinstance(value, str) else value
        except Invalid as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


class PairType(Kind):
    """One entry of meta, `name=value`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} has no name and '='; write name=value", param, ctx)
        return name, text


class MatchType(Kind):
    """A match over the data, as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 - the signature is click's
        from headwater.match import parse

        return parse(value) if isinstance(value, str) else value


class PassedType(Kind):
    """Events that a projection must have passed: an offset, or places in topics."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value.isdecimal():
            return int(value)
        from headwater.event import Ref

        refs = []
        for place in value.split(","):
            topic, *numbers = place.rsplit(":", 2)
            if len(numbers) != 2 or not topic or not all(number.isdecimal() for number in numbers):
                self.fail(
                    f"{place!r} is not a place in a topic; write topic:partition:offset, or an offset", param, ctx
                )
            refs.append(Ref(topic, int(numbers[0]), int(numbers[1]), 0, 0, "fsync"))
        return refs


def complete_directory(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - the signature is click's
    return [CompletionItem(incomplete, type="dir")]


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - as above
    """Return the topics of the log that was given; nothing if there is none."""
    names = complete(ctx.params["data"], lambda hw: hw.topics())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_consumer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - as above
    """Return the consumers of the topic that was given; nothing if there is none."""
    topic = ctx.params["topic"]
    names = complete(ctx.params["data"], lambda hw: sorted({info.name for info in hw.consumers(topic)}))
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_binder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - as above
    """Return the binders of the log that was given; nothing if there is none."""
    names = complete(ctx.params["data"], lambda hw: hw.binders())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_projection(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - as above
    """Return the projections of the log that was given; nothing if there is none."""
    names = complete(ctx.params["data"], lambda hw: [each.name for each in hw.views() if each.kind == "projection"])
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def data_argument(function: F) -> F:
    return click.argument("data", metavar="DATA", shell_complete=complete_directory)(server_options(function))


def topic_argument(function: F) -> F:
    return click.argument("topic", metavar="TOPIC", shell_complete=complete_topic)(function)


def optional_topic_argument(function: F) -> F:
    return click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=complete_topic)(function)


def binder_argument(function: F) -> F:
    return click.argument("binder", metavar="BINDER", shell_complete=complete_binder)(function)


def consumer_argument(function: F) -> F:
    return click.argument("name", metavar="NAME", shell_complete=complete_consumer)(function)


def partition_option(function: F) -> F:
    return click.option("--partition", type=NaturalType(), metavar="N", help="Only this partition.")(function)


def range_options(function: F) -> F:
    """Add --from and --to, where a read begins and ends."""
    help, kind, metavar = "Stop before this position.", PositionType(), "POSITION"
    function = click.option("--to", "end", type=kind, default="latest", metavar=metavar, help=help)(function)
    help = "Start at this position."
    return click.option("--from", "start", type=kind, default="earliest", metavar=metavar, help=help)(function)


def type_pattern_option(function: F) -> F:
    help = "Only events whose whole type matches this RE2 pattern, as in 'placed|paid'."
    return click.option("--type", "type_", metavar="PATTERN", help=help)(function)


def key_option(function: F) -> F:
    return click.option("--key", metavar="KEY", help="Only events with this key.")(function)


def match_option(function: F) -> F:
    help = 'Only events whose JSON or BSON data matches, as in \'{"total": {"$gt": 10}}\'.'
    return click.option("--match", type=MatchType(), metavar="JSON", help=help)(function)


def at_least_options(function: F) -> F:
    """Add the options that say which events a view must have passed; `passed_options` reads them."""
    place = "Wait until the projection has passed this offset, or TOPIC:PARTITION:OFFSET."
    wait = "With --at-least: the longest wait.  [default: 10]"
    function = click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help=wait)(function)
    return click.option("--at-least", type=PassedType(), metavar="PLACE", help=place)(function)


def passed_options(at_least: Any, timeout: float | None) -> dict[str, Any]:
    """Return the values of `at_least_options` as binders take them."""
    if timeout is None:
        return {"at_least": at_least}
    if at_least is None:
        raise click.UsageError("--timeout needs --at-least")
    return {"at_least": at_least, "timeout": timeout}


def format_option(function: F) -> F:
    help = "File format.  [default: by the suffix: .jsonl, .arrow, .arrows (a stream), .parquet or .puro]"
    return click.option("--format", type=click.Choice(FORMATS), help=help)(function)


def json_option(help: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=help)


def retention_options(prefix: str) -> Callable[[F], F]:
    """Return the options that say what a topic keeps; `retention_of` gathers them."""
    options = (
        (f"--{prefix}bytes", SizeType(), "SIZE", "Keep at most this many bytes of each partition."),
        (f"--{prefix}segments", NaturalType(), "N", "Keep at most this many segments of each partition."),
        (f"--{prefix}age", DurationType(), "AGE", "Keep segments whose last event is younger than this."),
    )

    def decorate(function: F) -> F:
        overflow = "At the hard limit: delete unread events, or refuse appends.  [default: delete]"
        function = click.option("--overflow", type=click.Choice(["delete", "refuse"]), help=overflow)(function)
        hard = "Limit of each partition, even if a consumer has not passed it."
        function = click.option("--hard-bytes", type=SizeType(), metavar="SIZE", help=hard)(function)
        name = f"{prefix}consumers"
        consumers = "Keep events that the slowest consumer has not passed."
        function = click.option(f"--{name}/--no-{name}", "keep_consumers", default=None, help=consumers)(function)
        for option, kind, metavar, help in reversed(options):
            parameter = f"keep_{option.removeprefix(f'--{prefix}')}"
            function = click.option(option, parameter, type=kind, metavar=metavar, help=help)(function)
        return function

    return decorate


def retention_of(given: dict[str, Any]) -> Retention:
    """Return the values of `retention_options`, without those that were not given."""
    age: timedelta | None = given["keep_age"]
    asked = {
        "retention_bytes": given["keep_bytes"],
        "retention_segments": given["keep_segments"],
        "retention_age_ms": None if age is None else round(age / timedelta(milliseconds=1)),
        "retention_consumers": given["keep_consumers"],
        "retention_bytes_hard": given["hard_bytes"],
        "overflow": given["overflow"],
    }
    return cast("Retention", {name: value for name, value in asked.items() if value is not None})


class Cluster(NamedTuple):
    """Where a command runs its jobs."""

    master: str | None
    memory: str
    config: dict[str, str]

    def started(self, *, quick: bool = False, **options: Any) -> SparkSession:
        """Return a session, for those who tell themselves how far they are."""
        from headwater.spark.session import session

        with ProgressLine("starting Spark") as waiting:
            waiting.update(0)
            return session(self.master, memory=self.memory, config=self.config, quick=quick, **options)

    @contextlib.contextmanager
    def working(self, what: str, *, quick: bool = False, **options: Any) -> Iterator[SparkSession]:
        """Return a session, and a bar of its tasks with a word for what is done, for a person who waits.

        `quick` is for work of seconds. A session that was there before is left as it was.
        """
        from headwater.spark.session import watching_tasks

        spark = self.started(quick=quick, **options)
        with ProgressLine(f"{what} (tasks)") as waiting, watching_tasks(spark, waiting.update):
            yield spark


def spark_options(function: F) -> F:
    """Add --master, --memory and --config; the command is given a `cluster`."""

    def gathered(*arguments: Any, master: str | None, memory: str, config: tuple[str, ...], **named: Any) -> Any:
        settings = dict(_setting(each) for each in config)
        return function(*arguments, cluster=Cluster(master, memory, settings), **named)

    gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
    gathered.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # click's own
    found: Any = gathered
    found = click.option("--config", metavar="KEY=VALUE", multiple=True, help="Spark setting; may be repeated.")(found)
    found = click.option("--memory", metavar="SIZE", default="1g", show_default=True, help="Heap of the Spark driver.")(
        found
    )
    return click.option(  # type: ignore[no-any-return]  # it is what was given, with options
        "--master",
        metavar="URL",
        envvar="HEADWATER_MASTER",
        help="Where Spark runs: local[*] (the default), or a cluster.",
    )(found)


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
    return key, value

"""The options of every command that runs on Spark: the master, the memory, and other settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from headwater.cli.progress import ProgressLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


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

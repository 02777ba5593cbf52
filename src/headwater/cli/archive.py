"""`headwater archive`: write finished segments to an archive as Parquet files, once or for as long as it runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from headwater.cli import show
from headwater.cli.app import command, on_signals
from headwater.cli.arguments import Cluster, complete_topic, data_argument, json_option, spark_options
from headwater.cli.opening import open_log, tell_workers
from headwater.cli.show import ProgressLine

if TYPE_CHECKING:
    from headwater.errors import HeadwaterError
    from headwater.history.archiver import Archiver
    from headwater.info import ArchivedRange


@command(
    examples=[
        "headwater archive data s3://bucket/archive",
        "headwater archive data --once --seal",
        "headwater archive data /mnt/backup/archive --topic orders --once",
        "headwater archive --on spark data out/ --seal",
        "headwater archive --on spark s3://bucket/log s3://bucket/archive --master spark://host:7077",
    ]
)
@data_argument
@click.argument("url", metavar="[URL]", required=False)
@click.option("--once", is_flag=True, help="Archive all finished segments, then exit.")
@click.option("--seal", is_flag=True, help="Seal the active segments first, so that the archive is complete up to now.")
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Only this topic.")
@click.option("--on", type=click.Choice(["spark"]), help="Write the files in bulk with Spark, then exit.")
@spark_options
@json_option("One JSON object a line: each file written; with --once and on Spark, a summary.")
def archive(
    data: str,
    url: str | None,
    once: bool,
    seal: bool,
    topic: str | None,
    on: str | None,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Keep the finished segments of a log as Parquet files, in a directory or a bucket.

    URL is a directory or s3://bucket/prefix; credentials come from the environment. The log remembers it, so you can
    omit it later. From then on, 'headwater retain' deletes only archived segments, and reads of deleted events continue
    in the archive. Without --once, archives each segment when it is finished, by any process, until Ctrl-C or SIGTERM.
    Spark, DuckDB and Polars read the files as tables. 'headwater restore' restores a log, 'headwater check URL'
    verifies the archive.

    With --on spark, the same files are written in parallel, and DATA may also be a bucket or a server.
    """
    if on is not None:
        _archive_on_spark(data, url, topic, cluster, seal=seal, as_json=as_json)
        return
    from headwater.history.archiver import archiver_of

    stopping = threading.Event()
    with open_log(data, mode="existing") as hw:
        archiver = archiver_of(hw.directory, url, topic=topic, stopping=stopping)
        if once:
            with ProgressLine("archived", as_bytes=True) as waiting:
                done = archiver.once(seal=seal, progress=waiting.update)
            _show_once(archiver, done, as_json)
        else:
            _run(archiver, stopping, seal, as_json)


def _archive_on_spark(
    data: str, url: str | None, topic: str | None, cluster: Cluster, *, seal: bool, as_json: bool
) -> None:
    with open_log(data, mode="existing") as hw:  # so that errors come before Spark starts
        hw.topics() if topic is None else hw.describe(topic)
        target = url or hw.archive_url
    if target is None:
        raise click.UsageError(f"{data} was never archived: name a target, as in out/ or s3://bucket/archive")
    from headwater.spark.archiving import archive

    tell_workers(data)
    spark = cluster.started()
    with ProgressLine("archived", as_bytes=True) as waiting:
        topics = None if topic is None else [topic]
        done = archive(spark, data, target, topics=topics, seal=seal, progress=waiting.update)
    size, events = sum(each.bytes for each in done), sum(each.end - each.first for each in done)
    if as_json:
        click.echo(show.json_line({"url": target, "archived": done, "bytes": size, "events": events}))
    elif done:
        files = show.count(len(done), "file")
        show.done(f"archived {show.count(events, 'event')} in {files} ({show.size(size)}) to {show.printable(target)}")
    else:
        show.done(f"all finished segments are already in {show.printable(target)}")


def _show_once(archiver: Archiver, done: list[ArchivedRange], as_json: bool) -> None:
    size = sum(each.bytes for each in done)
    lag = archiver.lag()
    if as_json:
        told = {"url": archiver.url, "archived": done, "bytes": size, "lag": lag._asdict()}
        click.echo(show.json_line(told))
        return
    what = f"archived {show.count(len(done), 'file')} ({show.size(size)})" if done else "everything is already archived"
    show.done(f"{what} in {show.printable(archiver.url)}{_behind(lag.events)}")


def _run(archiver: Archiver, stopping: threading.Event, seal: bool, as_json: bool) -> None:
    reporter = _Reporter(archiver, as_json)
    with on_signals(stopping.set):
        if not as_json:
            show.note(f"archiving to {show.printable(archiver.url)}; press Ctrl-C to stop")
        archiver.run(reporter.archived, reporter.failed, seal=seal)


class _Reporter:
    """Prints archived files, and each error once until the next success."""

    def __init__(self, archiver: Archiver, as_json: bool) -> None:
        self._archiver = archiver
        self._as_json = as_json
        self._failure = ""

    def archived(self, done: list[ArchivedRange]) -> None:
        self._failure = ""
        lag = self._archiver.lag().events if done else 0
        for each in done:
            if self._as_json:
                click.echo(show.json_line(each))
            else:
                where = show.log_name(each.topic, each.partition)
                click.echo(f"{where}  {each.first}..{each.end - 1}  {show.size(each.bytes)}{_behind(lag)}")

    def failed(self, error: HeadwaterError) -> None:
        if str(error) != self._failure:
            self._failure = str(error)
            show.warn(str(error))


def _behind(events: int) -> str:
    return f"; {show.count(events, 'event')} not archived yet" if events else ""

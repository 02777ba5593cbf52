"""`headwater reindex`: rebuild the indexes."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import data_argument, json_option, optional_topic_argument
from headwater.cli.opening import open_log
from headwater.cli.show import ProgressLine


@command(examples=["headwater reindex data", "headwater reindex data orders"])
@data_argument
@optional_topic_argument
@json_option("One JSON object.")
def reindex(data: str, topic: str | None, as_json: bool) -> None:
    """Rebuild the indexes of closed segments.

    An index is built from its segment, so nothing is lost when it is missing or damaged. Use this for logs sealed by
    an earlier version, or after index files were deleted.
    """
    with open_log(data, mode="existing") as hw, ProgressLine("indexing", as_bytes=True, patience_s=0.3) as waiting:
        made = hw.reindex(topic, progress=waiting.update)
    if as_json:
        click.echo(show.json_line({"indexed": made}))
    else:
        show.done(f"{show.count(made, 'segment')} indexed" if made else "no sealed segments to index")

"""`headwater sql`: query topics and binders; prints a table, JSON, CSV or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import Cluster, NaturalType, data_argument, json_option, spark_options
from headwater.cli.opening import tell_workers
from headwater.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Format = Literal["table", "json", "csv", "parquet"]

SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
TABLE_ROWS = 1000  # the default limit of a table


@command(
    examples=[
        'headwater sql data "SELECT type, count(*) FROM orders GROUP BY type"',
        'headwater sql data "SELECT by.name, sum(total) FROM orders JOIN baskets ON key = _id GROUP BY 1" --json',
        'headwater sql data "SELECT time, total FROM orders WHERE total > 10" --output totals.parquet',
        "headwater sql data 'SELECT n FROM `my-topic`' --schema 'my-topic: n decimal(20, 2)'",
        "cat query.sql | headwater sql http://127.0.0.1:7450 -",
    ]
)
@data_argument
@click.argument("query", metavar="QUERY")
@click.option(
    "--schema",
    "schemas",
    metavar="'TABLE: FIELDS'",
    multiple=True,
    help="Fields of a table's data and their types, instead of inferring them from a sample; may be repeated.",
)
@click.option(
    "--limit",
    type=NaturalType(),
    metavar="N",
    help="Maximum number of rows.  [default: 1000 in a table, otherwise all]",
)
@click.option(
    "--output", type=click.Path(), metavar="FILE", help="Write to a file, which appears only when it is complete."
)
@click.option(
    "--format",
    type=click.Choice(["table", "json", "csv", "parquet"]),
    help="Default: a table on a terminal, JSON in a pipe, or the format that the suffix of --output names.",
)
@json_option("One JSON object a line, as --format json.")
@spark_options
def sql(
    data: str,
    query: str,
    schemas: tuple[str, ...],
    limit: int | None,
    output: str | None,
    format: Format | None,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Run a SQL QUERY on Spark, with topics and binders as tables. With -, the query is read from stdin.

    A topic has the columns topic, partition, offset, time, id, type, key, data and meta, and the fields of its JSON or
    BSON data, which are inferred from a sample unless --schema gives them. Columns data_bytes, ticks and content are
    there if the query names them. A field with the name of a column is `data.type`. A binder has _id and the fields of
    its documents. Put names with dots or dashes in backticks.

    Times are in UTC. Bytes are shown as text if they are UTF-8, and otherwise as \\x and hexadecimal digits. The
    result must fit in --memory; for larger results, use a pipeline.
    """
    chosen = _format(format, output, as_json)
    text = sys.stdin.read() if query == "-" else query
    given = dict(_schema(each) for each in schemas)
    if limit is None and chosen == "table":
        limit = TABLE_ROWS
    tell_workers(data)
    with cluster.working("sql", quick=True) as spark:
        from headwater.spark.sql_queries import sql

        found = sql(spark, data, text, schemas=given)
        result = _collected(found, limit)
    more = limit is not None and result.num_rows > limit
    _write(result.slice(0, limit) if more else result, chosen, output)
    if more and chosen == "table":
        show.note(f"Only the first {show.number(result.num_rows - 1)} rows are shown; raise --limit for more.")


def _format(format: Format | None, output: str | None, as_json: bool) -> Format:
    if as_json and format not in (None, "json"):
        raise click.UsageError(f"--json and --format {format} are mutually exclusive")
    if as_json or format is not None:
        return format or "json"
    if output is not None:
        suffix = Path(output).suffix.lower()
        if suffix not in SUFFIXES:
            raise Invalid(
                f"the suffix of {output!r} is not a known format", hint=f"give --format, or {', '.join(SUFFIXES)}"
            )
        return SUFFIXES[suffix]
    return "table" if show.is_terminal(sys.stdout) else "json"


def _schema(text: str) -> tuple[str, str]:
    table, separator, fields = text.partition(":")
    if not separator or not table.strip() or not fields.strip():
        raise click.BadParameter(f"{text!r} is not 'TABLE: FIELDS', as in 'orders: total int'", param_hint="--schema")
    return table.strip().strip("`"), fields


def _collected(found: DataFrame, limit: int | None) -> pa.Table:
    """Return the rows, and one more than the limit if there is one. Raises our errors in place of Spark's."""
    from pyspark.errors import PySparkException

    from headwater.spark import failures

    with failures.quiet():
        try:
            return (found if limit is None else found.limit(limit + 1)).toArrow()
        except PySparkException as error:
            raise failures.translated(error) from None


def _write(result: pa.Table, format: Format, output: str | None) -> None:
    from headwater.cli import rows
    from headwater.disk.disk import Disk
    from headwater.transfer.files import written

    if format == "table" and output is None:
        rows.print_table(result)
        return
    if format == "parquet" and output is None and show.is_terminal(sys.stdout):
        raise Invalid("Parquet cannot be written to a terminal", hint="give --output FILE")
    writers = {"table": rows.write_table, "json": rows.write_json, "csv": rows.write_csv, "parquet": rows.write_parquet}
    with written(Disk(), sys.stdout.buffer if output is None else output) as out:
        writers[format](result, out)

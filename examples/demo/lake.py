"""The same log on Spark: revenue by day and product, an archive as Parquet, and the documents folded anew."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

import headwater
import headwater.spark
from examples.demo import plot, shop
from examples.demo.screen import bar, chapter, expect, note, say, timed
from examples.demo.serving import documents
from headwater.spark.session import watching_tasks


def run(log: Path, directory: Path, visits: int) -> None:
    chapter("A pipeline on Spark, from the same log")
    spark, took = timed(lambda: headwater.spark.session(quick=True))
    say(f"Spark {spark.version} has started in this process ({took})")
    with bar("tasks of Spark") as update, watching_tasks(spark, update):
        compute(spark, log, directory, visits)
        chapter("The history as Parquet, and as one table with what is live")
        archive(spark, log, directory)
        chapter("The documents once more, folded on Spark")
        rebuild(spark, log)
    spark.stop()


def compute(spark: SparkSession, log: Path, directory: Path, visits: int) -> None:
    """Revenue by day and product, and a picture of it."""
    _, took = timed(lambda: headwater.spark.run(spark, str(log), shop.app, ["revenue"]))
    rows = spark.read.parquet(str(directory / "revenue")).collect()
    cents = {(row.day, row["product"]): row.cents for row in rows}
    expect(cents == shop.books(visits), "the revenue is not what the books say")
    late: Counter[date] = Counter()
    for row in rows:
        late[row.day] += row.late
    plot.draw(cents, late, directory / "revenue.png")
    say(f"{len(cents)} days and products are as in the books; {directory / 'revenue.png'} shows them")
    note(
        "revenue by day and product", f"{sum(cents.values()) / 100:,.0f} in {len({day for day, _ in cents})} days", took
    )
    note("of it, heard of days later", f"{late.total() / 100:,.0f}")


def archive(spark: SparkSession, log: Path, directory: Path) -> None:
    """All that is sealed, as Parquet; then a few events more, and one table over both."""
    parquet = directory / "parquet"
    _, took = timed(lambda: headwater.spark.archive(spark, str(log), str(parquet), seal=True))
    size = sum(file.stat().st_size for file in parquet.rglob("*.parquet"))
    note("archived as Parquet", f"{size / 1e6:.1f} MB in {parquet}", took)
    with headwater.open(log) as hw:
        for customer in range(3):
            hw.append(shop.TOPIC, {"product": "tea", "count": 1}, type="added", key=f"c-{customer}")
        events = hw.describe(shop.TOPIC).events
    table = headwater.spark.table(spark, str(log), shop.TOPIC)
    count, took = timed(table.count)
    expect(count == events, f"the table has {count} events, and the log {events}")
    say(f"{count - 3:,} events from Parquet and 3 from the live log are one table")
    note("count over archive and log", f"{count:,} events", took)


def rebuild(spark: SparkSession, log: Path) -> None:
    """Fold all of history again, and compare each document with the one that was kept up to date."""
    with headwater.open(log) as hw:
        shop.app.catch_up(hw)
        live = documents(hw, "baskets")
        folded, took = timed(lambda: headwater.spark.rebuild(spark, hw, shop.app, "baskets"))
        expect(documents(hw, "baskets") == live, "the documents of Spark are not those of the live projection")
    say(f"{folded:,} events folded on Spark: all {len(live):,} baskets are equal to the live ones")
    note("baskets folded anew on Spark", f"{len(live):,}, each equal to the live one", took)

"""A shop's events, from one directory to a server, to documents, to Spark, each step compared with the shop's books.

Run it with `make demo`. It makes ./demo-data afresh, and leaves it for you to look at. With ARGS="--visits 8000" the
shop is smaller.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import headwater
from examples.demo import appending, serving, shop
from examples.demo.screen import chapter, expect, note, say, show, summary, timed

DATA = Path("demo-data")
LOG = DATA / "log"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--visits", type=int, default=shop.VISITS, help="how many there are (default %(default)s)")
    visits = parser.parse_args().visits
    start_afresh()
    with headwater.open(LOG) as hw:
        chapter("A shop writes down what happens")
        hw.create(shop.TOPIC, partitions=4, segment_bytes=4 * 1024 * 1024)
        with serving.server(LOG) as url:
            say(f"{LOG} is a new log, served at {url}")
            expected = appending.append_all(hw, url, visits)
            chapter("Baskets and stock become documents")
            serving.wait_for_documents(hw, url, expected)
        chapter("What one can ask a log")
        look_around(hw, expected)
    from examples.demo import lake  # it takes a second to import Spark

    lake.run(LOG, DATA, visits)
    summary()
    point_onwards()


def start_afresh() -> None:
    if DATA.exists():
        expect((LOG / "headwater.json").exists(), f"{DATA} is there, and is not of this demonstration: move it away")
        shutil.rmtree(DATA)
    DATA.mkdir()


def look_around(hw: headwater.Store, expected: int) -> None:
    count, took = timed(lambda: sum(1 for _ in hw.read(shop.TOPIC)))
    expect(count == expected, "a read finds something else")
    note("read all, by time", f"{count:,} events", took)
    count, took = timed(lambda: sum(1 for _ in hw.read(shop.TOPIC, type="removed", match={"product": "clock"})))
    note("read removed clocks", f"{count:,} events", took)
    count, took = timed(lambda: sum(1 for _ in hw.read(shop.TOPIC, key="c-17")))
    note("read one customer's story", f"{count:,} events", took)
    _, took = timed(lambda: hw.seal(shop.TOPIC))
    partitions = hw.describe(shop.TOPIC).partitions
    note("seal: pack and index", f"{sum(partition.sealed for partition in partitions)} segments", took)
    torn = sum(report.cut_bytes for partition in partitions for report in partition.recovered)
    note("torn by the kill", f"{torn:,} bytes, cut and kept aside" if torn else "nothing")
    report, took = timed(hw.check)
    expect(not report.damaged, f"check found {report.findings}")
    note("check every checksum", f"{report.bytes / 1e6:.1f} MB, no damage", took)
    say("read by time, type, field and key; packed, indexed and checked")


def point_onwards() -> None:
    beside = Path(sys.executable).with_name("headwater")
    inside = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    program = "headwater" if shutil.which("headwater") or not beside.exists() else str(inside)
    show(f"""
Look at what it left:
  {DATA}/revenue.png
  {program} info {LOG}
  {program} read {LOG} {shop.TOPIC} --key c-17 --limit 5
  {program} query {LOG} baskets --sort -spent --limit 5
  {program} sql {LOG} "SELECT product, sum(cents) / 100 AS earned FROM shop WHERE type = 'sold' GROUP BY product"
Try it yourself, in two terminals:
  {program} tail -f {LOG} {shop.TOPIC}
  {program} append {LOG} {shop.TOPIC} --type added --key c-1 '{{"product": "tea", "count": 1}}'
Read on: README.md, docs/SPARK.md, docs/VIEWS.md, docs/CLI.md""")


if __name__ == "__main__":
    main()

"""A shop's events, end to end: processes append, one is killed, one follows; refunds are credited exactly once, and
orders become documents, although the processes that do it are killed too; then all of it is read and checked.

Run it with `make demo`. It makes ./demo-data afresh, and leaves it for you to look at.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import headwater

DATA = Path("demo-data")
TOPIC = "shop"
WRITERS = 4
ORDERS = 70_000
ORDERS_PER_BATCH = 100
COUNTRIES = ("Austria", "Brazil", "Canada", "Denmark", "Ethiopia", "France")
PATIENCE_S = 60.0
STORY = "o-4242"
CREDITS = "credits"
DOCUMENTS = find_spec("bson") is not None
CREDITS_UNTIL_KILLED = 500

processes = multiprocessing.get_context("spawn")


class Entry(NamedTuple):
    type: str
    key: str
    data: dict[str, Any]


# The shop: what happens to an order follows from its number, so that the log can be compared with the truth.


def events_of(order: int) -> list[Entry]:
    """What happens to one order: it is placed, most are paid and shipped, some are refunded."""
    chance = order * 2_654_435_761 % 4_294_967_296 // 7
    key, total, country = f"o-{order}", 5 + chance % 200, COUNTRIES[chance % 6]
    entries = [Entry("placed", key, {"order": order, "total": total, "country": country})]
    if chance % 10:
        entries.append(Entry("paid", key, {"total": total, "country": country}))
        entries.append(Entry("shipped", key, {"parcel": f"P{chance:09d}"}))
        if chance % 25 == 1:
            entries.append(Entry("refunded", key, {"total": total}))
    return entries


def batches_of(writer: int) -> Iterator[list[Entry]]:
    """The work of one writer: every fourth order, a hundred orders at a time."""
    orders = range(writer, ORDERS, WRITERS)
    for start in range(0, len(orders), ORDERS_PER_BATCH):
        yield [entry for order in orders[start : start + ORDERS_PER_BATCH] for entry in events_of(order)]


def append(hw: headwater.Engine, batch: list[Entry]) -> None:
    hw.append_many(
        TOPIC,
        [entry.data for entry in batch],
        types=[entry.type for entry in batch],
        keys=[entry.key for entry in batch],
    )


# The orders as documents: what `headwater views run demo-data --app examples/demo.py` would keep up to date.

app = headwater.App()
app.binder("orders").index("total")


@app.projection(TOPIC, "orders")
def order_of(doc: dict[str, Any] | None, event: headwater.Event) -> dict[str, Any]:
    return {**(doc or {}), **event.value, "state": event.type, "events": (doc or {"events": 0})["events"] + 1}


def document_of(order: int) -> dict[str, Any]:
    """What the document of an order must be."""
    entries = events_of(order)
    data = {name: value for entry in entries for name, value in entry.data.items()}
    return {**data, "state": entries[-1].type, "events": len(entries)}


# The processes.


def write(writer: int, acknowledged: Connection | None) -> None:
    """Append all batches of a writer, and tell of each one that is on disk."""
    with headwater.open(DATA, mode="existing") as hw:
        for number, batch in enumerate(batches_of(writer)):
            append(hw, batch)
            if acknowledged is not None:
                acknowledged.send(number)


def resume(writer: int) -> None:
    """Do what a killed writer left undone: look at what is there, append the rest."""
    with headwater.open(DATA, mode="existing") as hw:
        there = {(event.key, event.type) for event in hw.read(TOPIC)}
        for batch in batches_of(writer):
            missing = [entry for entry in batch if (entry.key.encode(), entry.type) not in there]
            if missing:
                append(hw, missing)


def follow(expected: int, news: Connection) -> None:
    """Count along until all events were seen; tell now and then how many there are."""
    seen: Counter[str] = Counter()
    with headwater.open(DATA, mode="existing") as hw:
        for count, event in enumerate(hw.follow(TOPIC, start="earliest", timeout=PATIENCE_S), 1):
            seen[event.type] += 1
            if count % 5_000 == 0:
                news.send(count)
            if count == expected:
                break
    news.send(dict(seen))


def credit(news: Connection | None) -> None:
    """Credit every refund: what is appended for it, and how far this has come, are one transaction."""
    with headwater.open(DATA, mode="existing") as hw, hw.consumer("bank", TOPIC, type="refunded", lease_ms=500) as bank:
        for count, event in enumerate(bank.drain(), 1):
            with hw.transaction() as tx:
                tx.append(CREDITS, {"total": event.value["total"]}, type="credited", key=event.key)
                tx.ack(event)
            if news is not None and count == CREDITS_UNTIL_KILLED:
                news.send(count)


def project() -> None:
    """Keep the documents up to date, until somebody ends this process."""
    with headwater.open(DATA, mode="existing") as hw, app.running(hw):
        signal.pause()


# The demonstration.


def main() -> None:
    began = time.monotonic()
    start_afresh()
    truth = Counter(entry.type for order in range(ORDERS) for entry in events_of(order))
    expected = truth.total()
    with headwater.open(DATA) as hw:
        hw.create(TOPIC, partitions=4, segment_bytes=2 * 1024 * 1024)
        say(f"{DATA} is a new log; topic {TOPIC!r} has 4 partitions")
        seen, killed, seconds = run_shop(hw, expected)
        expect(seen == truth, f"the follower saw {seen}, the shop made {truth}")
        expect(Counter(event.type for event in hw.read(TOPIC)) == truth, "the log holds something else")
        expect(hw.describe(TOPIC).events == expected, "the offsets say something else")
        say(f"{expected:,} events: each is there once, and the follower in its own process saw them all")
        rows = [
            ("appended by 4 processes", f"{expected:,} events", f"{seconds:.1f} s"),
            ("promised to the killed one", f"{killed:,} events, all there", ""),
            *credit_refunds(hw, truth["refunded"]),
            *make_documents(hw),
            *read_in_many_ways(hw),
            *keep(hw),
            *aggregate(hw),
        ]
    show(rows)
    say(f"done in {time.monotonic() - began:.1f} s")
    point_onwards()


def start_afresh() -> None:
    if DATA.exists():
        expect((DATA / "headwater.json").exists(), f"{DATA} is there, and is not a log: move it away")
        shutil.rmtree(DATA)


def run_shop(hw: headwater.Local, expected: int) -> tuple[Counter[str], int, float]:
    """Writers, a follower, a kill, a recovery; returns what was followed, what the victim was promised, and seconds."""
    news, told = processes.Pipe(duplex=False)
    acknowledged, acknowledge = processes.Pipe(duplex=False)
    follower = begin(follow, expected, told)
    told.close()
    began = time.monotonic()
    victim = begin(write, 0, acknowledge)
    acknowledge.close()
    others = [begin(write, writer, None) for writer in range(1, WRITERS)]
    projector = begin(project) if DOCUMENTS else None
    say(f"{WRITERS} processes append, one follows{', one makes documents' if projector else ''}")
    promised = kill_half_way(victim, acknowledged)
    check_promises(hw, promised)
    if projector is not None:
        kill_with_documents(hw, projector)
    others.append(begin(resume, 0))
    with progress(expected) as update:
        seen = None
        while seen is None:
            expect(bool(wait([news], PATIENCE_S)), "the follower says nothing")
            told_now = news.recv()
            if isinstance(told_now, dict):
                seen = Counter(told_now)
            else:
                update(told_now)
    seconds = time.monotonic() - began
    for process in (*others, follower):
        process.join(PATIENCE_S)
        expect(process.exitcode == 0, f"{process.name} ended with {process.exitcode}")
    return seen, promised, seconds


def kill_half_way(victim: BaseProcess, acknowledged: Connection) -> int:
    """Kill a writer in the middle of its work; returns how many events it was promised to be on disk."""
    sizes = [len(batch) for batch in batches_of(0)]
    last = -1
    with contextlib.suppress(EOFError):
        while True:
            last = acknowledged.recv()
            if last == len(sizes) // 2:
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    expect(victim.exitcode == -signal.SIGKILL, f"the victim ended with {victim.exitcode}")
    promised = sum(sizes[: last + 1])
    say(f"SIGKILL for one of them, after {promised:,} acknowledged events; the others go on")
    return promised


def kill_with_documents(hw: headwater.Local, projector: BaseProcess) -> None:
    """Kill the process that makes documents, when it has made some."""
    orders, until = hw.binder("orders"), time.monotonic() + PATIENCE_S
    while "orders" not in hw.binders() or not orders.count():
        expect(projector.is_alive() and time.monotonic() < until, "the projection does nothing")
        time.sleep(0.01)
    projector.kill()
    projector.join()
    say(f"SIGKILL for the one that makes documents, after {orders.count():,} of them; it goes on later")


def check_promises(hw: headwater.Engine, promised: int) -> None:
    """Every event that was acknowledged to the killed process is in the log."""
    there = {(event.key, event.type) for event in hw.read(TOPIC)}
    entries = (entry for batch in batches_of(0) for entry in batch)
    lost = sum((entry.key.encode(), entry.type) not in there for entry in islice(entries, promised))
    expect(not lost, f"{lost} acknowledged events are lost")
    say("every one of them is in the log; a new process takes over where it was")


def credit_refunds(hw: headwater.Engine, refunds: int) -> Iterator[tuple[str, str, str]]:
    """A consumer that is killed in the midst of its transactions; the next one goes on where it was."""
    began = time.perf_counter()
    for _ in range(2):
        news, told = processes.Pipe(duplex=False)
        bank = begin(credit, told)
        told.close()
        expect(bool(wait([news], PATIENCE_S)), "the bank says nothing")
        bank.kill()
        bank.join()
        say("SIGKILL for the process that credits refunds; another one takes over")
    bank = begin(credit, None)
    bank.join(PATIENCE_S)
    expect(bank.exitcode == 0, f"the bank ended with {bank.exitcode}")
    credited = Counter(event.key for event in hw.read(CREDITS))
    expect(set(credited.values()) == {1} and credited.total() == refunds, f"{credited.total()} credits")
    yield "refunds, credited once each", f"{refunds:,} transactions", f"{time.perf_counter() - began:.1f} s"


def make_documents(hw: headwater.Local) -> Iterator[tuple[str, str, str]]:
    """Go on with the projection whose process was killed: each event is folded once all the same."""
    if not DOCUMENTS:
        yield "documents", "need pip install 'headwater[bson]'", ""
        return
    _, took = timed(lambda: app.catch_up(hw))
    orders = hw.binder("orders")
    wrong = sum(document.data != document_of(int(document.id[2:])) for document in orders.find())
    expect(not wrong and orders.count() == ORDERS, f"{wrong} documents are not what their events make of them")
    yield "events folded into documents", f"{ORDERS:,} orders, each as it must be", took
    dearest, took = timed(lambda: next(orders.find({"state": "refunded"}, sort="-total")))
    yield "find one, by an index", f"{dearest.id}: {dearest.data['total']}", took


def read_in_many_ways(hw: headwater.Engine) -> Iterator[tuple[str, str, str]]:
    count, took = timed(lambda: sum(1 for _ in hw.read(TOPIC)))
    yield "read all, by time", f"{count:,} events", took
    count, took = timed(lambda: sum(1 for _ in hw.read(TOPIC, type="refunded")))
    yield "read by type 'refunded'", f"{count:,} events", took
    story, took = timed(lambda: [event.type for event in hw.read(TOPIC, key=STORY)])
    expect(story == [entry.type for entry in events_of(int(STORY[2:]))], f"the story of {STORY} is {story}")
    yield f"read by key {STORY!r}", " → ".join(story), took
    first = next(hw.read(TOPIC))
    last = next(hw.read(TOPIC, reverse=True))
    middle = first.time + (last.time - first.time) / 2
    count, took = timed(lambda: sum(1 for _ in hw.read(TOPIC, start=middle)))
    yield "read the later half", f"{count:,} events", took
    found, took = timed(lambda: next(hw.read(TOPIC, start=last.id)))
    expect(found == last, "an id leads elsewhere")
    yield "find an event by its id", f"{found.partition}:{found.offset}", took
    newest, took = timed(lambda: list(islice(hw.read(TOPIC, reverse=True), 3)))
    yield "read backwards, three", ", ".join(f"{event.partition}:{event.offset}" for event in newest), took


def keep(hw: headwater.Engine) -> Iterator[tuple[str, str, str]]:
    _, took = timed(lambda: hw.seal(TOPIC))
    partitions = hw.describe(TOPIC).partitions
    yield "seal: pack and index", f"{sum(partition.sealed for partition in partitions)} segments", took
    cuts = [report for partition in partitions for report in partition.recovered]
    torn = sum(report.cut_bytes for report in cuts)
    yield "torn by the kill", f"{torn:,} bytes, kept" if torn else "nothing", ""
    report, took = timed(hw.check)
    expect(not report.damaged, f"check found {report.findings}")
    expect(report.events == sum(hw.describe(topic).events for topic in hw.topics()), "check counted something else")
    yield "check every checksum", f"{report.bytes / 1e6:.1f} MB, no damage", took


def aggregate(hw: headwater.Engine) -> Iterator[tuple[str, str, str]]:
    """What was earned in each country, from Arrow; compared with the shop's own books."""
    if find_spec("pyarrow") is None:
        yield "scan as Arrow", "needs pip install 'headwater[arrow]'", ""
        return
    import pyarrow.json  # noqa: F401 - so that its start is not counted

    table, took = timed(lambda: hw.read_arrow(TOPIC, columns=["offset", "type", "key", "data"]))
    yield "scan as Arrow", f"{table.num_rows:,} rows", took
    sums, took = timed(lambda: earned_in_each_country(hw))
    earned = dict(zip(sums["country"].to_pylist(), sums["total_sum"].to_pylist(), strict=True))
    books: Counter[str] = Counter()
    for order in range(ORDERS):
        for entry in events_of(order):
            if entry.type == "paid":
                books[entry.data["country"]] += entry.data["total"]
    expect(earned == books, f"earned {earned}, and the books say {books}")
    best, total = books.most_common(1)[0]
    yield "earned, by country", f"most in {best}: {total:,}", took


def earned_in_each_country(hw: headwater.Engine) -> Any:
    from pyarrow import json

    data: list[Any] = hw.read_arrow(TOPIC, type="paid", columns=["data"]).column("data").to_pylist()
    return json.read_json(io.BytesIO(b"\n".join(data))).group_by("country").aggregate([("total", "sum")])


# Saying and showing.


def begin(work: Any, *args: Any) -> BaseProcess:
    process = processes.Process(target=work, args=args, daemon=True)
    process.start()
    return process


def expect(truth: bool, otherwise: str) -> None:
    if not truth:
        sys.exit(f"✗ {otherwise}")


def timed(work: Any) -> tuple[Any, str]:
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    return result, f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def say(text: str) -> None:
    if find_spec("rich") is not None:
        from rich.console import Console
        from rich.text import Text

        Console(soft_wrap=True).print(Text.assemble(("✓ ", "bold green"), text))
    else:
        print(f"✓ {text}", flush=True)


@contextlib.contextmanager
def progress(total: int) -> Iterator[Any]:
    """A bar of what the follower has seen, where somebody can see it."""
    if find_spec("rich") is None or not sys.stdout.isatty():
        yield lambda count: None  # noqa: ARG005 - nobody is there to look
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(TextColumn("  the follower"), BarColumn(), MofNCompleteColumn(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, completed=count)


def show(rows: list[tuple[str, str, str]]) -> None:
    if find_spec("rich") is None:
        for what, result, took in rows:
            print(f"  {what:<28} {result:<32} {took:>10}")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("what", no_wrap=True)
    table.add_column("result", style="cyan", no_wrap=True)
    table.add_column("took", justify="right", style="dim", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print()
    console.print(table)
    console.print()


def point_onwards() -> None:
    beside = Path(sys.executable).with_name("headwater")
    inside = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    program = "headwater" if shutil.which("headwater") or not beside.exists() else str(inside)
    print(f"""
Look at what it left:
  {program} info {DATA}
  {program} read {DATA} {TOPIC} --key {STORY}
  {program} read {DATA} {TOPIC} --type refunded --reverse --limit 5
  {program} query {DATA} orders '{{"state": "refunded"}}' --sort -total --limit 5
Try it yourself, in two terminals:
  {program} tail -f {DATA} {TOPIC}
  {program} append {DATA} {TOPIC} --type placed --key o-1 '{{"total": 12}}'
Read on: README.md, docs/VIEWS.md, docs/CLI.md""")


if __name__ == "__main__":
    main()

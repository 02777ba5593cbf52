import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import headwater
from tests.cli.conftest import Run


@pytest.fixture
def orders(run: Run, data: Path) -> Path:
    run("append", data, "orders", "a", "b", "c", "--type", "placed", "--key", "k", "--quiet")
    return data


def test_consume_goes_on_where_it_ended(run: Run, orders: Path) -> None:
    assert run("consume", orders, "orders", "billing", "--limit", "2", "--raw").lines == ["a", "b"]
    assert run("consume", orders, "orders", "billing", "--drain", "--raw").lines == ["c"]
    assert run("consume", orders, "orders", "billing", "--drain", "--json").lines == []
    assert run("consume", orders, "orders", "audit", "--timeout", "0", "--json").objects[1]["offset"] == 1
    assert run("consume", orders, "orders", "late", "--from", "2", "--drain", "--ack-each", "--raw").lines == ["c"]
    assert run("consume", orders, "orders", "none", "--type", "paid", "--drain", "--raw").lines == []


def test_consume_hands_on_only_what_matches(run: Run, orders: Path) -> None:
    for total in (5, 15, 25):
        run("append", orders, "orders", f'{{"total": {total}}}', "--content", "json")
    large = ("--match", '{"total": {"$gt": 10}}', "--drain", "--json")
    assert [event["data"]["total"] for event in run("consume", orders, "orders", "large", *large).objects] == [15, 25]
    assert run("consume", orders, "orders", "large", "--drain", "--raw").lines == []  # the others were passed over
    assert "bad_match" in run("consume", orders, "orders", "x", "--match", '{"a": {"$x": 1}}', "--json", code=1).err


def test_consume_acks_only_what_was_handed_on(program: Sequence[str], orders: Path) -> None:
    command = [*program, "consume", str(orders), "orders", "billing", "--raw", "--drain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
    with headwater.open(orders) as hw:
        assert hw.consumers("orders")[0].cursor == 0


def test_consume_ends_with_an_interrupt(program: Sequence[str], orders: Path) -> None:
    command = [*program, "consume", str(orders), "orders", "billing", "--raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    with headwater.open(orders) as hw:
        (info,) = hw.consumers("orders")
        assert info.owner is None
        assert info.cursor in (2, 3)  # the last may have been printed and not yet acked


def test_consume_runs_a_command_for_each_event_and_sets_aside_what_fails(
    run: Run, orders: Path, tmp_path: Path
) -> None:
    script = tmp_path / "handle.py"
    script.write_text(
        "import os, sys\n"
        "data = sys.stdin.read()\n"
        "told = ' '.join(os.environ['HEADWATER_' + name] for name in ('TOPIC', 'PARTITION', 'OFFSET', 'TYPE', 'KEY'))\n"
        f"open({str(tmp_path / 'seen')!r}, 'a').write(data + ' ' + told + '\\n')\n"
        "sys.exit(data == 'b')\n"
    )
    options = ["--exec", f"{sys.executable} {script}", "--drain", "--failures-max", "2"]
    run("consume", orders, "orders", "billing", *options)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen == [
        f"{letter} orders 0 {offset} placed k" for letter, offset in (("a", 0), ("b", 1), ("b", 1), ("c", 2))
    ]
    (dead,) = run("read", orders, "orders.dead", "--json").objects
    assert dead["meta"]["dead_error"].endswith("handle.py ended with 1")
    assert run("replay", orders, "orders").out == "✓ replayed 1 event of orders.dead\n"
    assert run("replay", orders, "orders", "--consumer", "x").out == "✓ replayed 0 events of orders.dead\n"
    assert run("read", orders, "orders", "--raw").lines == ["a", "b", "c", "b"]


def test_consume_refuses_what_it_cannot_do(run: Run, orders: Path) -> None:
    assert "exclusive" in run("consume", orders, "orders", "c", "--json", "--raw", code=2).err
    assert "--exec" in run("consume", orders, "orders", "c", "--exec", "'", code=2).err
    assert "--exec is empty" in run("consume", orders, "orders", "c", "--exec", " ", code=2).err
    assert "program not found" in run("consume", orders, "orders", "c", "--exec", "/no/such", "--drain", code=1).err
    assert "no topic" in run("consume", orders, "nothing", "c", code=1).err
    assert "at least" in run("consume", orders, "orders", "c", "--lease", "1ms", code=1).err


def test_consumers_lists_places_and_owners(run: Run, orders: Path) -> None:
    run("consume", orders, "orders", "billing", "--limit", "2", "--raw")
    header, _, row = run("consumers", orders).lines
    assert header.split() == ["consumer", "topic", "partition", "cursor", "end", "lag", "owner", "lease", "failures"]
    assert row.split() == ["billing", "orders", "0", "2", "3", "1"]
    (told,) = run("consumers", orders, "orders", "--json").objects
    assert (told["name"], told["cursor"], told["lag"], told["owner"]) == ("billing", 2, 1, None)
    with headwater.open(orders) as hw, hw.consumer("billing", "orders") as consumer:
        assert run("consumers", orders, "--json").objects[0]["owner"] == consumer.id
        assert consumer.id[:8] in run("consumers", orders).out
    assert "no topic" in run("consumers", orders, "nothing", code=1).err


def test_seek_moves_a_consumer(run: Run, orders: Path) -> None:
    run("consume", orders, "orders", "billing", "--drain", "--raw")
    assert run("seek", orders, "orders", "billing", "--to", "1").out == "✓ consumer billing continues at 0:1\n"
    assert run("consume", orders, "orders", "billing", "--drain", "--raw").lines == ["b", "c"]
    told = run("seek", orders, "orders", "billing", "--to", "-1h", "--json").objects
    assert told == [{"consumer": "billing", "topic": "orders", "partition": 0, "cursor": 0}]
    assert run("seek", orders, "orders", "billing", "--to", "latest").out.endswith("0:3\n")
    assert "has no consumer 'x'" in run("seek", orders, "orders", "x", "--to", "0", code=1).err
    assert "beyond the end" in run("seek", orders, "orders", "billing", "--to", "9", code=1).err


def test_forget_asks_and_deletes(run: Run, orders: Path) -> None:
    run("consume", orders, "orders", "billing", "--drain", "--raw")
    assert "give --yes" in run("forget", orders, "orders", "billing", code=2).err
    assert run("forget", orders, "orders", "billing", "--yes").out == "✓ forgot consumer billing of topic orders\n"
    assert run("consumers", orders).out == ""
    assert "has no consumer" in run("forget", orders, "orders", "billing", "--yes", code=1).err

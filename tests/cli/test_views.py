"""`headwater views`: how views are, rebuilding, resuming, following."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.shell_completion import ShellComplete

import headwater
from headwater.cli.app import cli
from headwater.views.files import Files
from tests.cli.conftest import Run
from tests.cli.views import SHOP, fill, run_app
from tests.server.serving import serving

PATIENCE_S = 30.0
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def shop_data(data: Path) -> Path:
    fill(data)
    run_app(data)
    return data


def seen(run: Run, *words: str | Path, code: int = 0) -> dict[str, Any]:
    """What `views status --json` tells, by name."""
    return {told["name"]: told for told in run("views", "status", *words, "--json", code=code).objects}


def stop_basket(data: Path) -> None:
    """Have the projection `basket` stopped by an order that its fold cannot handle."""
    with headwater.open(data) as hw:
        hw.append("orders", {"price": 1}, key="cyd", type="odd")
    with pytest.raises(headwater.Unavailable, match="has stopped"):
        run_app(data)


def test_status_tells_how_far_each_view_is(run: Run, shop_data: Path) -> None:
    told = seen(run, shop_data)
    assert list(told) == ["basket", "visitor", "greet"]
    basket = told["basket"]
    assert (basket["kind"], basket["topic"], basket["binder"]) == ("projection", "orders", "baskets")
    assert (basket["state"], basket["lag"], basket["events"], basket["error"]) == ("idle", 0, 2, None)
    assert (told["greet"]["kind"], told["greet"]["events"], told["greet"]["binder"]) == ("function", 2, None)
    with headwater.open(shop_data) as hw:
        hw.append_many("orders", [{"n": 1, "price": 1}] * 3, keys=["cyd"] * 3)
    basket = seen(run, shop_data)["basket"]
    assert basket["lag"] == 3
    assert basket["partitions"] == [{"partition": 0, "next": 2, "end": 5, "lag": 3, "owner": None}]


def test_status_is_a_table_for_people(run: Run, shop_data: Path) -> None:
    lines = run("views", "status", shop_data).lines
    cells = [[cell for cell in line.split() if not cell.endswith("/s")] for line in lines[2:5]]
    assert cells == [
        ["basket", "projection", "orders", "→", "baskets", "idle", "0", "2", "0", "0"],
        ["visitor", "projection", "visits", "→", "visitors", "idle", "0", "1", "1", "1"],
        ["greet", "function", "visits", "idle", "0", "2", "0", "0"],
    ]
    assert lines[6:] == ["visitor: last error at offset 1 of visits/0, type seen: ValueError: nobody is there"]


def test_without_views_status_says_nothing(run: Run, data: Path) -> None:
    run("init", data)
    assert run("views", "status", data).out == ""


def test_quarantined_events_are_listed(run: Run, shop_data: Path) -> None:
    assert run("views", "status", shop_data, "--events").lines[-1] == (
        "  at offset 1 of visits/0, type seen: ValueError: nobody is there"
    )
    told = seen(run, shop_data, "--events")
    (event,) = told["visitor"]["quarantined"]
    assert (event["topic"], event["offset"], event["error"]) == ("visits", 1, "ValueError: nobody is there")
    assert "nobody is there" in event["trace"]
    assert told["basket"]["quarantined"] == []


def test_a_view_that_runs_is_running_and_its_partition_has_an_owner(run: Run, data: Path) -> None:
    fill(data)
    from tests.cli.shop import app

    with headwater.open(data) as hw, app.running(hw) as runner:
        runner.settle()
        basket = seen(run, data)["basket"]
    assert basket["state"] == "running"
    assert basket["partitions"][0]["owner"]


def test_a_binder_that_is_being_built_is_rebuilding(run: Run, shop_data: Path) -> None:
    with headwater.open(shop_data) as hw, Files.of(hw).building("baskets"):
        told = seen(run, shop_data)
        assert (told["basket"]["state"], told["visitor"]["state"]) == ("rebuilding", "idle")
    assert seen(run, shop_data)["basket"]["state"] == "idle"


def test_an_error_stops_a_view_and_resume_tries_again(run: Run, shop_data: Path) -> None:
    stop_basket(shop_data)
    basket = seen(run, shop_data, code=1)["basket"]
    assert (basket["state"], basket["lag"], basket["errors"]) == ("stopped", 1, 1)
    assert (basket["error"]["offset"], basket["error"]["type"]) == (2, "odd")
    shown = run("views", "status", shop_data, code=1).out
    assert "basket: stopped at offset 2 of orders/0, type odd: KeyError: 'n'" in shown
    assert run("views", "resume", shop_data, "basket").out == "✓ projection basket resumes with binder baskets\n"
    basket = seen(run, shop_data)["basket"]
    assert (basket["state"], basket["error"]) == ("idle", None)
    assert "no such projection: 'nobody'" in run("views", "resume", shop_data, "nobody", code=1).err


def test_a_damaged_binder_hides_no_other(run: Run, shop_data: Path) -> None:
    with headwater.open(shop_data) as hw:
        file = Files.of(hw).current("baskets")
    for found in file.parent.glob(f"{file.name}-*"):
        found.unlink()
    file.write_bytes(b"this is no database at all" * 100)
    told = seen(run, shop_data, code=1)
    assert list(told) == ["baskets", "visitor", "greet"]
    assert told["baskets"]["state"] == "unreadable"
    assert "not a database" in told["baskets"]["error"]["error"]
    assert "baskets: cannot be read" in run("views", "status", shop_data, code=1).out
    assert run("views", "resume", shop_data, "visitor").code == 0


def test_a_topic_that_is_gone_leaves_nothing_to_do_and_one_made_again_all(run: Run, shop_data: Path) -> None:
    with headwater.open(shop_data) as hw:
        hw.delete("orders")
        assert seen(run, shop_data)["basket"]["lag"] == 0
        hw.append_many("orders", [{"n": 1, "price": 1}] * 3, keys=["cyd"] * 3)
        assert seen(run, shop_data)["basket"]["lag"] == 3


def test_watching_looks_again_and_ends_quietly_with_ctrl_c(shop_data: Path, program: Sequence[str]) -> None:
    words = [*program, "views", "status", str(shop_data), "--watch", "--json"]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)
    assert watching.stdout is not None
    lines = [msgspec.json.decode(watching.stdout.readline()) for _ in range(6)]
    assert [line["name"] for line in lines] == ["basket", "visitor", "greet"] * 2
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate()
    assert (watching.returncode, err) == (0, b"")


def test_a_binder_is_rebuilt_from_all_events(run: Run, shop_data: Path) -> None:
    with headwater.open(shop_data) as hw:
        before = Files.of(hw).current("baskets")
        hw.append("orders", {"n": 2, "price": 5}, key="bob")
    (told,) = run("views", "rebuild", shop_data, "baskets", "--app", SHOP, "--json").objects
    assert (told["binder"], told["events"]) == ("baskets", 3)
    assert run("views", "rebuild", shop_data, "baskets", "--app", SHOP).out.startswith(
        "✓ rebuilt baskets from 3 events"
    )
    with headwater.open(shop_data) as hw:
        bob = hw.binder("baskets").get("bob")
        assert bob is not None
        assert (bob.version, bob.data) == (2, {"items": 8, "total": 52})
        assert hw.binder("baskets").info().indexes == ["total"]
        assert not before.exists()


def test_a_binder_that_was_never_there_is_built_with_its_indexes(run: Run, data: Path) -> None:
    fill(data)
    run("views", "rebuild", data, "baskets", "--app", SHOP)
    with headwater.open(data) as hw:
        info = hw.binder("baskets").info()
    assert (info.documents, info.indexes) == (2, ["total"])


def test_a_rebuild_whose_fold_raises_names_the_event_and_changes_nothing(run: Run, shop_data: Path) -> None:
    with headwater.open(shop_data) as hw:
        before = Files.of(hw).current("baskets")
        ref = hw.append("orders", {"price": 1}, key="cyd", type="odd")
        failed = run("views", "rebuild", shop_data, "baskets", "--app", SHOP, code=1)
        assert f"offset 2 of orders/0 (type 'odd', id {ref.id}) raised KeyError: 'n'" in failed.err
        assert Files.of(hw).current("baskets") == before
    told = msgspec.json.decode(run("views", "rebuild", shop_data, "baskets", "--app", SHOP, "--json", code=1).err)
    assert told["error"] == "fold_failed"
    assert run("get", shop_data, "baskets", "bob").code == 0


def test_a_rebuild_needs_a_projection_that_fills_the_binder(run: Run, shop_data: Path) -> None:
    assert "no projection of this application" in run("views", "rebuild", shop_data, "no", "--app", SHOP, code=1).err
    assert "no such file" in run("views", "rebuild", shop_data, "baskets", "--app", "nowhere.py", code=1).err


def test_changes_are_followed_from_a_place(run: Run, shop_data: Path) -> None:
    first, second = run("views", "follow", shop_data, "baskets", "--timeout", "0").objects
    assert (first["kind"], first["id"], first["data"]) == ("put", "ann", {"items": 1, "total": 120})
    assert second["id"] == "bob"
    again = run("views", "follow", shop_data, "baskets", "--timeout", "0", "--after", second["place"])
    assert again.out == ""


def test_following_sees_what_comes_and_ends_quietly_with_ctrl_c(shop_data: Path, program: Sequence[str]) -> None:
    words = [*program, "views", "follow", str(shop_data), "baskets"]
    following = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)
    assert following.stdout is not None
    assert [msgspec.json.decode(following.stdout.readline())["id"] for _ in range(2)] == ["ann", "bob"]
    with headwater.open(shop_data) as hw:
        hw.append("orders", {"n": 1, "price": 1}, key="cyd")
    run_app(shop_data)
    assert select.select([following.stdout], [], [], PATIENCE_S)[0]
    assert msgspec.json.decode(following.stdout.readline())["data"] == {"items": 1, "total": 1}
    following.send_signal(signal.SIGINT)
    out, err = following.communicate()
    assert (following.returncode, out, err) == (0, b"", b"")


def test_a_server_tells_how_views_are_and_what_needs_its_directory(run: Run, shop_data: Path) -> None:
    with serving(shop_data) as server:
        assert list(seen(run, server.url)) == ["basket", "visitor", "greet"]
        assert (
            "'headwater views status DIRECTORY --events'" in run("views", "status", server.url, "--events", code=1).err
        )
        assert "'headwater views resume DIRECTORY basket'" in run("views", "resume", server.url, "basket", code=1).err
        assert (
            "on the machine that has the directory"
            in run("views", "rebuild", server.url, "baskets", "--app", SHOP, code=1).err
        )


def test_binders_and_projections_are_completed(shop_data: Path) -> None:
    shell = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")

    def complete(*words: str) -> list[str]:
        return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]

    assert complete("get", str(shop_data), "") == ["baskets", "visitors"]
    assert complete("query", str(shop_data), "b") == ["baskets"]
    assert complete("views", "rebuild", str(shop_data), "v") == ["visitors"]
    assert complete("views", "follow", str(shop_data), "v") == ["visitors"]
    assert complete("views", "resume", str(shop_data), "") == ["basket", "visitor"]
    assert complete("get", "nowhere", "") == []

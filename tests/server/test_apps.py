"""An application beside a server: real processes, which are killed, broken, and asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable
from headwater.limits import ServerLimits
from headwater.opening import open_directory
from headwater.server.apps import Application
from headwater.server.metrics import ApplicationMeter
from tests.server.process import ServerProcess, http
from tests.waiting import wait_for

SHOP = """
import os, time
from headwater import App

app = App()

@app.projection("orders", "totals")
def total(doc, event):
    return {"n": (doc["n"] if doc else 0) + event.value["n"], "by": os.getpid()}

@app.projection("orders", "fragile")
def fragile(doc, event):
    if event.value["n"] == 13:
        raise ValueError("thirteen is not for me")
    return {"n": event.value["n"]}

@app.query("top")
def top(views, limit=10):
    return views.binder("totals").find(sort="-n", limit=limit, fields=["n"])

@app.query("who")
def who(views):
    return os.getpid()

@app.query("broken")
def broken(views):
    return {}["nothing"]

@app.query("slow")
def slow(views, seconds, tell=""):
    if tell:
        open(tell, "w").close()
    time.sleep(seconds)
    return seconds

@app.query("huge")
def huge(views):
    return ["x" * 1_000_000] * 40

@app.query("strange")
def strange(views):
    return object()

@app.query("missing")
def missing(views):
    return views.binder("nowhere").get("x").id
"""
SERVE = [sys.executable, "-m", "headwater.cli", "serve", "--http", "127.0.0.1:0", "--tcp", "none"]
WAIT_S = 30.0


def until(condition: Callable[[], Any]) -> Any:
    """What a condition gives, once it gives something; a server that is not there yet gives nothing."""

    def quietly() -> Any:
        with suppress(headwater.HeadwaterError, httpx.HTTPError):
            return condition()
        return None

    return wait_for(quietly)


def gone(pid: int) -> bool:
    """Whether a process has ended; what waits for its parent counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return path


@pytest.fixture(scope="module")
def steady_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Any]]:
    """A server whose application nobody kills."""
    path = tmp_path_factory.mktemp("steady")
    (path / "shop.py").write_text(SHOP)
    with running(path / "data", path / "shop.py") as found:
        yield found


@contextmanager
def running(data: Path, shop: Path) -> Iterator[tuple[ServerProcess, Any]]:
    server = ServerProcess(data, "--app", str(shop))
    try:
        with headwater.open(server.url) as hw:
            yield server, hw
    finally:
        assert server.stop() == 0


def samples(server: ServerProcess, name: str) -> dict[str, float]:
    lines = http.get(f"{server.url}/metrics").text.splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if line.startswith(name))}


def test_documents_are_made_and_queries_answered_by_another_process(steady_app: tuple[ServerProcess, Any]) -> None:
    server, hw = steady_app
    refs = hw.append_many("orders", [{"n": 1}, {"n": 500}, {"n": 300}], keys=["one", "two", "three"])
    document = hw.binder("totals").get("two", at_least=refs)
    child = document.data["by"]
    assert child not in (server.pid, os.getpid())
    assert hw.query("who") == child
    assert [each["id"] for each in hw.query("top", limit=2)] == ["two", "three"]
    told = http.post(f"{server.url}/query/top").json()[0]
    assert told == {"id": "two", "version": refs[1].offset, "data": {"n": 500}}


def test_what_is_wrong_with_a_query_is_told(steady_app: tuple[ServerProcess, Any]) -> None:
    server, hw = steady_app

    def ask(name: str, **arguments: Any) -> tuple[int, str]:
        answer = http.post(f"{server.url}/query/{name}", json=arguments)
        return answer.status_code, answer.json()["code"]

    assert ask("nothing") == (404, "no_such_query")
    assert ask("top", other=1) == (400, "wrong_arguments")
    assert ask("slow") == (400, "wrong_arguments")
    assert ask("broken") == (500, "query_failed")
    assert ask("strange") == (500, "query_failed")
    assert ask("missing") == (404, "no_such_binder")
    assert ask("huge") == (413, "too_large")
    body = http.post(f"{server.url}/query/broken").json()
    assert "KeyError: 'nothing'" in body["message"]
    assert "Traceback" not in str(body)
    assert http.post(f"{server.url}/query/top", content=b"[1]").json()["code"] == "bad_body"
    for name, kind in (("nothing", NotFound), ("broken", Unavailable)):
        with pytest.raises(kind):
            hw.query(name)
    with pytest.raises(Invalid):
        hw.query("top", other=1)
    assert isinstance(hw.query("who"), int)


def test_an_application_that_is_killed_is_started_again_and_goes_on(tmp_path: Path, shop_file: Path) -> None:
    with running(tmp_path / "data", shop_file) as (server, hw):
        first = hw.query("who")
        hw.append("orders", {"n": 1}, key="a")
        os.kill(first, signal.SIGKILL)
        down = until(lambda: (answer := http.post(f"{server.url}/query/who")).status_code == 503 and answer)
        assert down.json()["code"] == "application_down"
        assert samples(server, "headwater_application_up") == {"headwater_application_up": 0.0}
        ref = hw.append("orders", {"n": 2}, key="a")
        second = until(lambda: hw.query("who"))
        assert second != first
        assert hw.binder("totals").get("a", at_least=ref, timeout=WAIT_S).data["n"] == 3
        assert samples(server, "headwater_application") == {
            "headwater_application_up": 1.0,
            "headwater_application_restarts_total": 1.0,
        }
        assert not gone(second)
    assert gone(second)


def test_who_waits_for_an_answer_when_the_application_dies_is_told(tmp_path: Path, shop_file: Path) -> None:
    with running(tmp_path / "data", shop_file) as (server, hw):
        child = hw.query("who")
        told = tmp_path / "told"

        def kill_while_it_works() -> None:
            wait_for(told.exists)
            os.kill(child, signal.SIGKILL)

        killing = threading.Thread(target=kill_while_it_works)
        killing.start()
        answer = http.post(f"{server.url}/query/slow", json={"seconds": 60, "tell": str(told)})
        assert (answer.status_code, answer.json()["code"]) == (503, "application_down")
        killing.join()


def test_an_interrupt_from_the_terminal_ends_both_properly(tmp_path: Path, shop_file: Path) -> None:
    command = [*SERVE, str(tmp_path / "data")]
    command += ["--app", str(shop_file)]
    pipe, asked = subprocess.PIPE, tmp_path / "asked"
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        child = http.post(f"{url}/query/who").json()
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(http.post(f"{url}/query/slow", json={"seconds": 1, "tell": str(asked)}))
        )
        asking.start()
        until(asked.exists)
        os.killpg(process.pid, signal.SIGINT)
        _, complaints = process.communicate(timeout=WAIT_S)
        assert (process.returncode, complaints) == (0, "")
        asking.join()
        assert (answers[0].status_code, answers[0].json()) == (200, 1)
        assert gone(child)


def test_the_application_ends_when_the_server_is_killed(tmp_path: Path, shop_file: Path) -> None:
    ended = tmp_path / "ended properly"
    shop_file.write_text(f"{SHOP}\nimport atexit, pathlib\natexit.register(pathlib.Path({str(ended)!r}).touch)\n")
    server = ServerProcess(tmp_path / "data", "--app", str(shop_file))
    child = http.post(f"{server.url}/query/who").json()
    assert not gone(child)
    server.kill()
    until(lambda: gone(child))
    assert ended.exists()


def test_an_application_that_cannot_be_imported_keeps_the_server_from_starting(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("from nowhere import nothing\n")
    command = [*SERVE, str(tmp_path / "data")]
    done = subprocess.run([*command, "--app", str(broken)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    *traceback, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert "No module named 'nowhere'" in last
    assert any(f'"{broken}", line 1' in line for line in traceback)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "has no App"),
        ("import sys; sys.exit(3)\n", "SystemExit: 3"),
        ("import os; os._exit(3)\n", "exit code 3 before it was ready"),
        ("import time; time.sleep(60)\n", "did not start within 1 s"),
    ],
)
async def test_why_an_application_does_not_begin_is_told(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    limits = ServerLimits(application_start_s=1.0 if "sleep" in text else 60.0)
    application = Application(str(tmp_path / "broken.py"), tmp_path / "data", limits, ApplicationMeter())
    with pytest.raises(HeadwaterError, match=expected):
        await application.start()
    await application.stop()


def test_a_fold_that_raises_is_shown_and_stops_no_other(steady_app: tuple[ServerProcess, Any]) -> None:
    server, hw = steady_app
    hw.append("orders", {"n": 1}, key="a")
    bad = hw.append("orders", {"n": 13}, key="a")
    ref = hw.append("orders", {"n": 2}, key="a")
    assert hw.binder("totals").get("a", at_least=ref).data["n"] == 16
    with pytest.raises(Unavailable) as failed:
        hw.binder("fragile").get("a", at_least=ref, timeout=WAIT_S)
    assert failed.value.code == "projection_stopped"
    views = {view.name: view for view in hw.views()}
    assert views["fragile"].state == "stopped"
    assert views["fragile"].error.offset == bad.offset
    assert "thirteen is not for me" in views["fragile"].error.error
    assert views["total"].error is None
    stopped = samples(server, "headwater_view_stopped")
    assert {key.partition('name="')[2].partition('"')[0]: value for key, value in stopped.items()} == {
        "fragile": 1.0,
        "total": 0.0,
    }
    assert sum(samples(server, 'headwater_view_errors_total{kind="projection",name="fragile"').values()) == 1
    assert hw.query("who")


def test_two_servers_run_the_same_application_on_one_directory(tmp_path: Path, shop_file: Path) -> None:
    data = tmp_path / "data"
    with open_directory(data) as hw:
        hw.create("orders", partitions=2)
    with running(data, shop_file) as (_, one), running(data, shop_file) as (_, other):
        keys = [f"k{number}" for number in range(20)]
        sides = (one, other, one, other, one)
        *_, refs = [side.append_many("orders", [{"n": 1}] * 20, keys=keys) for side in sides]
        for side in (one, other):
            for key in keys:
                assert side.binder("totals").get(key, at_least=refs, timeout=WAIT_S).data["n"] == 5
        assert one.query("who") != other.query("who")


def test_an_application_runs_without_a_server_until_it_is_told_to_end(tmp_path: Path, shop_file: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "headwater.cli", "views", "run", str(data), "--app", str(shop_file)]
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "running" in process.stdout.readline()
            with open_directory(data) as hw:
                ref = hw.append("orders", {"n": 1}, key=f"of {number}")
                found = hw.binder("totals").get(f"of {number}", at_least=ref, timeout=WAIT_S)
                assert found is not None
                assert found.data["by"] == process.pid
            process.send_signal(number)
            assert process.wait(WAIT_S) == 0
            assert process.stdout.read() == ""

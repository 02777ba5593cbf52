"""Where a command takes a directory, it takes the address of a server."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec
import pytest
from click.shell_completion import ShellComplete

from headwater.cli.app import cli
from tests.cli.conftest import Run
from tests.server.people import SECRET, add
from tests.server.process import served
from tests.server.serving import Server, serving


def test_events_are_appended_and_read(run: Run, server_url: str) -> None:
    run("create", server_url, "orders", "--partitions", "2")
    appended = run(
        "append", server_url, "orders", "--type", "placed", "--key", "o-17", '{"total": 12}', "two", "--json"
    )
    assert [line["topic"] for line in appended.objects] == ["orders", "orders"]
    run("append", server_url, "orders", "--key", "o-17", stdin=b"three\nfour\n")
    read = run("read", server_url, "orders", "--json").objects
    assert [event["data"] for event in read] == [{"total": 12}, "two", "three", "four"]
    newest = run("read", server_url, "orders", "--reverse", "--limit", "1", "--raw")
    assert newest.out == "four\n"
    assert [event["data"] for event in run("tail", server_url, "orders", "-n", "2", "--json").objects] == [
        "three",
        "four",
    ]
    assert run("read", server_url, "orders", "--match", '{"total": {"$gt": 10}}', "--raw").out == '{"total": 12}\n'


@pytest.mark.parametrize("command", [("topics",), ("append", "t", "x"), ("init",), ("check",), ("consume", "t", "c")])
def test_an_address_of_the_protocol_over_tcp_names_that_of_http(
    run: Run, server: Server, command: tuple[str, ...]
) -> None:
    verb, *rest = command
    assert "open it as http://host:7450" in run(verb, server.tcp_url, *rest, code=1).err
    assert completed("read", server.tcp_url, "") == []


@pytest.mark.parametrize("address", ["headwater://127.0.0.1:7451", "http://127.0.0.1:7450", "ftp://host", "s3://b/p"])
def test_what_needs_a_directory_takes_no_address(
    run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "is not a directory" in run("replicate", "source", address, "--once", code=1).err
    assert "is not a directory" in run("serve", address, code=1).err
    assert list(tmp_path.iterdir()) == []


def test_topics_and_the_log_are_described(run: Run, server_url: str, server: Server) -> None:
    run("append", server_url, "described", "x")
    topics = {line["topic"]: line["events"] for line in run("topics", server_url, "--json").objects}
    assert topics["described"] == 1
    (told,) = run("info", server_url, "--json").objects
    (here,) = run("info", server.path, "--json").objects
    assert (told["server"], told["uuid"]) == (server_url, here["uuid"])
    assert run("info", server_url).out.split()[:2] == ["server", server_url]
    assert "described" in run("info", server_url, "described").out
    run("delete", server_url, "described", "--yes")
    assert "described" not in run("topics", server_url).out


def test_large_files_go_in_and_out(run: Run, server_url: str, tmp_path: Path) -> None:
    film = tmp_path / "film.mp4"
    film.write_bytes(bytes(range(256)) * 50_000)
    run("append", server_url, "films", "--file", film, "--meta", "name=film.mp4")
    run("read", server_url, "films", "--output", tmp_path / "copy.mp4")
    assert (tmp_path / "copy.mp4").read_bytes() == film.read_bytes()


def test_transactions_consumers_and_retention(run: Run, server_url: str) -> None:
    lines = b'{"topic": "moved", "data": "a"}\n{"topic": "moved too", "data": "b"}\n'
    assert len(run("tx", server_url, "-", stdin=lines).lines) == 2
    run("append", server_url, "moved", "c")
    assert run("consume", server_url, "moved", "billing", "--drain", "--raw").out == "a\nc\n"
    assert [line["cursor"] for line in run("consumers", server_url, "moved", "--json").objects] == [2]
    run("seek", server_url, "moved", "billing", "--to", "earliest")
    run("forget", server_url, "moved", "billing", "--yes")
    run("retain", server_url, "moved", "--segments", "3", "--json")
    assert run("replay", server_url, "moved").code == 0


def test_transfers(run: Run, server_url: str, tmp_path: Path) -> None:
    run("append", server_url, "transferred", "a", "b")
    run("export", server_url, "transferred", tmp_path / "file.jsonl")
    run("import", server_url, "imported", tmp_path / "file.jsonl")
    assert run("read", server_url, "imported", "--raw").out == "a\nb\n"


@pytest.mark.parametrize("command", ["check", "repair", "reindex", "seal"])
def test_what_needs_the_directory_says_so(run: Run, server_url: str, command: str) -> None:
    run("append", server_url, "kept", "x")
    refused = run(command, server_url, "kept", code=1)
    assert f"run 'headwater {command}' where the directory is" in refused.err


def test_a_log_is_not_made_on_a_server(run: Run, server_url: str) -> None:
    assert "headwater init DIRECTORY" in run("init", server_url, code=1).err


def test_a_server_that_is_not_there_is_told_of_at_once(run: Run, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as gone:
        pass
    began = time.monotonic()
    refused = run("topics", gone.url, "--json", code=1)
    assert msgspec.json.decode(refused.err)["error"] == "unreachable"
    assert time.monotonic() - began < 10


def test_a_token_comes_from_the_environment_or_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, file = tmp_path / "users.json", tmp_path / "token"
    file.write_text(add(users, "shop", token=True) + "\n")
    add(users, "ada", password=SECRET)
    with served(tmp_path / "data", "--auth", str(users)) as server:
        assert "error" in run("topics", server.url, code=1).err
        run("append", server.url, "t", "x", "--token-file", file)
        monkeypatch.setenv("HEADWATER_TOKEN", file.read_text())
        assert run("read", server.url, "t", "--raw").out == "x\n"
        monkeypatch.delenv("HEADWATER_TOKEN")
        monkeypatch.setenv("HEADWATER_TOKEN_FILE", str(file))
        assert run("read", server.url, "t", "--raw").out == "x\n"
        monkeypatch.delenv("HEADWATER_TOKEN_FILE")
        monkeypatch.setenv("HEADWATER_USER", f"ada:{SECRET}")
        assert run("read", server.url, "t", "--raw").out == "x\n"
        run("topics", server.url, "--token-file", tmp_path / "missing", code=1)


def test_a_password_in_the_address_is_refused_and_not_repeated(run: Run) -> None:
    refused = run("topics", "http://ada:topsecret@127.0.0.1:7450", code=1)
    assert "--token-file" in refused.err
    assert "topsecret" not in refused.err


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    shell = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_topics_and_consumers_are_completed(run: Run, server_url: str) -> None:
    run("append", server_url, "completed", "x")
    run("consume", server_url, "completed", "biller", "--drain")
    assert completed("read", server_url, "compl") == ["completed"]
    assert completed("consume", server_url, "completed", "bi") == ["biller"]


def test_completion_does_not_wait_for_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert completed("read", f"http://127.0.0.1:{silent.getsockname()[1]}", "x") == []
        assert time.monotonic() - began < 10

"""The program as a process of its own: exit codes, pipes, signals and completion."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import pytest
from click.shell_completion import ShellComplete, split_arg_string

import headwater
from headwater.cli.app import COMMANDS, Command, CommandContext, Family, cli
from tests.cli.conftest import Run


def test_version_and_help(run: Run) -> None:
    assert run("--version").out == f"headwater {headwater.__version__}\n"
    assert run("-h").out == run("--help").out


def test_usage_errors_are_one_line_and_2(run: Run) -> None:
    assert run("raed", code=2).err == "error: unknown command 'raed' — did you mean 'read'? — see 'headwater --help'\n"
    assert run("read", "data", code=2).err == "error: missing argument 'TOPIC' — see 'headwater read --help'\n"
    told = msgspec.json.decode(run("read", "data", "--json", code=2).err)
    assert told == {"error": "usage", "message": "missing argument 'TOPIC'", "hint": "see 'headwater read --help'"}


def test_errors_are_one_line_and_1_and_json_where_that_is_wanted(run: Run, data: Path) -> None:
    run("init", data)
    ran = run("read", data, "t", code=1)
    assert ran.out == ""
    assert ran.err == f"error: there is no topic 't' in {data} — 'headwater topics' lists them\n"
    told = msgspec.json.decode(run("read", data, "t", "--json", code=1).err)
    assert (told["error"], told["hint"]) == ("topic_not_found", "'headwater topics' lists them")


def every_command() -> dict[str, click.Command]:
    """All commands by what one types, those of families too: `auth add`."""
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(CommandContext(cli), name)
        assert command is not None
        members = command.commands if isinstance(command, Family) else {"": command}
        found |= {f"{name} {member}".strip(): each for member, each in members.items()}
    return found


@pytest.mark.parametrize(("name", "command"), every_command().items())
def test_each_command_has_examples_that_parse(name: str, command: click.Command) -> None:
    assert isinstance(command, Command)
    assert command.examples
    for example in command.examples:
        found = re.search(rf"headwater {name}\b(.*?)(?: \||>|\)|$)", example)
        assert found, example
        words = split_arg_string(found[1])
        command.make_context(name, words)


def start(*words: str | Path, **options: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "headwater.cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def test_tail_f_sees_appends_of_another_process_and_ends_quietly_with_ctrl_c(data: Path) -> None:
    with headwater.open(data) as hw:
        hw.append("t", "before")
        following = start("tail", "-f", data, "t", "--json")
        assert following.stdout is not None
        assert msgspec.json.decode(following.stdout.readline())["data"] == "before"
        hw.append("t", "after")
        assert msgspec.json.decode(following.stdout.readline())["data"] == "after"
        following.send_signal(signal.SIGINT)
        out, err = following.communicate()
    assert (following.returncode, out, err) == (0, b"", b"")


def test_tail_f_follows_only_what_matches(data: Path) -> None:
    with headwater.open(data) as hw:
        hw.append_many("t", [{"total": 20}, {"total": 1}])
        following = start("tail", "-f", data, "t", "--json", "--match", '{"total": {"$gt": 10}}')
        assert following.stdout is not None
        assert msgspec.json.decode(following.stdout.readline())["offset"] == 0
        hw.append_many("t", [{"total": 2}, {"total": 30}])
        assert msgspec.json.decode(following.stdout.readline())["offset"] == 3
        following.send_signal(signal.SIGINT)
        out, err = following.communicate()
    assert (following.returncode, out, err) == (0, b"", b"")


def test_a_segment_sealed_by_one_process_is_sound_for_another(run: Run, data: Path, program: Sequence[str]) -> None:
    with headwater.open(data) as hw:
        hw.append_many("t", [b""] * 12, types=[f"type-{number}" for number in range(12)])
    run("seal", data, "t")
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    checked = subprocess.run([*program, "check", data], env=environment, capture_output=True, check=False, text=True)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


def test_ctrl_c_elsewhere_is_130_without_a_word(data: Path) -> None:
    appending = start("append", data, "t", "--json", stdin=subprocess.PIPE)
    assert appending.stdin is not None
    assert appending.stdout is not None
    appending.stdin.write(b"a\n")
    appending.stdin.flush()
    assert b'"offset":0' in appending.stdout.readline()  # it appends lines before the input ends
    appending.send_signal(signal.SIGINT)
    out, err = appending.communicate()
    assert (appending.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_has_enough_ends_it_without_a_word(data: Path, program: Sequence[str]) -> None:
    with headwater.open(data) as hw:
        hw.append_many("t", [b"x" * 100] * 20_000)
    line = f"{' '.join(program)} read {data} t --raw | head -n 2; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True)
    assert piped.stdout.splitlines() == ["x" * 100, "x" * 100, "141"]
    assert piped.stderr == ""


def test_completion_answers_the_shell(program: Sequence[str]) -> None:
    asked = {"_HEADWATER_COMPLETE": "bash_complete", "COMP_WORDS": "headwater to", "COMP_CWORD": "1"}
    done = subprocess.run(program, env=os.environ | asked, capture_output=True, check=True, text=True)
    assert done.stdout == "plain,topics\n"


def test_completion_knows_directories_and_the_topics_in_them(run: Run, data: Path) -> None:
    for topic in ("orders", "other", "payments"):
        run("create", data, topic)
    shell = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")

    def complete(*words: str) -> list[tuple[str, str]]:
        return [(item.type, item.value) for item in shell.get_completions(list(words[:-1]), words[-1])]

    assert complete("read", "d") == [("dir", "d")]
    assert complete("read", str(data), "o") == [("plain", "orders"), ("plain", "other")]
    assert complete("append", str(data), "p") == [("plain", "payments")]
    assert complete("read", "nowhere", "o") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_say_how_to_install_them(run: Run, shell: str) -> None:
    out = run("completion", shell).out
    assert f"# {shell} completion for headwater. To install it:" in out
    assert out.startswith("#compdef headwater\n") == (shell == "zsh")


def test_without_its_extra_it_says_what_to_install() -> None:
    script = "import sys; sys.modules |= {'click': None, 'rich': None}; from headwater.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: the command line needs click and rich — pip install 'headwater[cli]'\n"


def test_bench_measures_and_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    (told,) = run("bench", tmp_path, "--seconds", "0.01", "--json").objects
    names = [measure["name"] for measure in told["measures"]]
    assert names[:2] == ["durable, one at a time", "durable, 32 threads"]
    assert all(measure["events_per_s"] > 0 for measure in told["measures"])
    assert list(tmp_path.iterdir()) == []
    assert "read as events" in run("bench", tmp_path, "--seconds", "0.01").out

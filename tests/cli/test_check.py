from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import headwater
from headwater.directory.repair import Action
from headwater.format.batch import encode_one
from headwater.info import CheckReport, Finding
from tests.cli.conftest import Run

DAMAGE = Finding("t", 0, "data/topics/t/0/0.log", 4096, 128, "a wrong checksum", True)
NOTE = Finding("t", 1, "data/topics/t/1/0.index", 0, 0, "no index; it is made again", False)


@pytest.fixture
def found(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What `check` will find; empty unless a test fills it."""
    run("init", data)
    findings: list[Finding] = []

    def check(
        _: headwater.Store, topic: str | None = None, progress: Callable[[int, int], None] | None = None
    ) -> CheckReport:
        assert topic in (None, "t")
        assert progress is not None
        progress(2048, 2048)
        return CheckReport(findings, 1, 2, 3, 4, 5000, 2048)

    monkeypatch.setattr(headwater.Store, "check", check)
    return findings


@pytest.fixture
def steps(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> list[Action]:
    """What `repair` will have to do; nothing unless a test fills it."""
    run("init", data)
    actions: list[Action] = []

    def repair(_: headwater.Store, topic: str | None = None, *, apply: bool = False) -> list[Action]:
        assert topic is None
        return [msgspec.structs.replace(action, done=apply) for action in actions]

    monkeypatch.setattr(headwater.Store, "repair", repair)
    return actions


@pytest.mark.usefixtures("found")
def test_check_of_a_sound_log_says_what_it_read(run: Run, data: Path) -> None:
    ran = run("check", data)
    assert ran.out == "✓ all good: 1 topic, 2 partitions, 3 segments, 4 batches, 5,000 events, 2.0 KiB\n"
    assert run("check", data, "--json").objects[0]["ok"] is True


def test_check_exits_with_1_and_the_exact_range_of_damage(run: Run, data: Path, found: list[Finding]) -> None:
    found += [DAMAGE, NOTE]
    ran = run("check", data, "t", code=1)
    assert ran.lines[0] == "✗ damage  t/0: a wrong checksum"
    assert ran.lines[1].strip() == "data/topics/t/0/0.log, bytes 4096 to 4224 (128 B)"
    assert ran.lines[2].startswith("· note  t/1: ")
    assert f"'headwater repair {data} t'" in ran.lines[-1]
    (told,) = run("check", data, "--json", code=1).objects
    assert told["ok"] is False
    assert told["findings"][0]["position"] == 4096


def test_a_note_is_not_damage(run: Run, data: Path, found: list[Finding]) -> None:
    found.append(NOTE)
    assert run("check", data).lines[-1].startswith("✓ all good")


def test_repair_shows_first_and_does_it_when_told(run: Run, data: Path, steps: list[Action]) -> None:
    assert run("repair", data).out == "✓ nothing to repair\n"
    steps.append(Action("t", 0, "0.log", "remove bytes 4096 to 4224", "0.cut-4096", False))
    ran = run("repair", data, code=1)
    assert ran.lines[0] == "· to do  t/0: remove bytes 4096 to 4224"
    assert ran.lines[2].strip() == "will be kept in 0.cut-4096"
    assert ran.lines[-1] == f"Nothing was changed. 'headwater repair {data} --apply' applies this."
    assert run("repair", data, "--json", code=1).objects[0]["done"] is False
    applied = run("repair", data, "--apply")
    assert applied.lines[0] == "✓ done  t/0: remove bytes 4096 to 4224"
    assert applied.lines[2].strip() == "kept in 0.cut-4096"


def test_check_and_repair_of_a_real_log(run: Run, data: Path) -> None:
    run("append", data, "t", "a", "b", "c", "--quiet")
    assert run("check", data, "--json").objects[0]["events"] == 3
    assert run("repair", data).out == "✓ nothing to repair\n"
    (log,) = (data / "topics" / "t" / "0").glob("*.log")
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 0xFF
    log.write_bytes(damaged)
    (told,) = run("check", data, "--json", code=1).objects
    (finding,) = [finding for finding in told["findings"] if finding["damage"]]
    assert (finding["topic"], finding["partition"]) == ("t", 0)
    assert finding["position"] + finding["size"] <= len(damaged)
    run("repair", data, code=1)
    run("repair", data, "--apply")
    run("check", data)


def test_repair_does_not_bring_back_what_the_data_of_an_event_forges(run: Run, data: Path) -> None:
    """The forged offsets are later than those that follow, and more than a batch can count."""
    forged = encode_one(2**62, 2**58, "bytes", b"forged", b"", None, None)
    with headwater.open(data) as hw:
        for content in (b"a", forged, b"c", b"d"):
            hw.append("t", content)
    (log,) = (data / "topics" / "t" / "0").glob("*.log")
    damaged = bytearray(log.read_bytes())
    damaged[damaged.index(forged) - 30] ^= 0xFF  # in the header of the batch whose data it is
    log.write_bytes(damaged)
    run("check", data, code=1)
    run("repair", data, "--apply")
    run("check", data)
    assert [event["offset"] for event in run("read", data, "t", "--json").objects] == [0, 2, 3]


def test_check_and_reads_miss_an_active_segment_and_repair_begins_it_anew(run: Run, data: Path) -> None:
    run("append", data, "t", "a", "--key", "k", "--quiet")
    run("seal", data, "t")
    run("append", data, "t", "b", "c", "--key", "k", "--quiet")
    (data / "topics/t/0/00000000000000000001.log").unlink()
    ran = run("check", data, code=1)
    assert ran.lines[0] == "✗ damage  t/0: the segment is missing, with offsets 1 to 2"
    for options in ((), ("--key", "k"), ("--reverse",)):
        assert "00000000000000000001.log is missing" in run("read", data, "t", *options, code=1).err
    run("repair", data, "--apply")
    run("check", data)
    assert [event["offset"] for event in run("read", data, "t", "--json").objects] == [0]


def test_check_misses_the_settings_of_a_topic_whose_data_is_there(run: Run, data: Path) -> None:
    run("append", data, "t", "a", "--quiet")
    (data / "topics/t/topic.json").unlink()
    ran = run("check", data, code=1)
    assert "topic.json is missing" in ran.lines[0]
    assert "topic.json is missing" in run("append", data, "t", "b", code=1).err

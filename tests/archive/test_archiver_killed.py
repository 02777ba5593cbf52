"""An archiver may die at any instant: nothing wrong is named, nothing is dropped that is not there, and it goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.history.check import check_archive_of
from headwater.history.restore import restore
from tests.archive.logs import FailingStore, drop, everything, fill, manifest_of, objects, open_engine
from tests.log.unsynced import UnsyncedDisk
from tests.waiting import wait_for


class Died(BaseException):
    """The process is gone, as far as the archive can see."""


class Dying:
    """Dies before or after the call of this number."""

    def __init__(self, when: str, number: int) -> None:
        self._when = when
        self._number = number
        self.calls = 0

    def __call__(self, when: str, _what: str, _key: str) -> None:
        if when == "before":
            self.calls += 1
        if self.calls > self._number or (self.calls == self._number and when == self._when):
            raise Died


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Any, ...]]]:
    path = tmp_path_factory.mktemp("filled") / "data"
    with open_engine(path) as hw:
        fill(hw, 45)
        hw.append("t", b"z" * 3000, type="huge")
        hw.seal("t")
        return path, everything(hw)


@pytest.mark.parametrize("when", ["before", "after"])
def test_died_at_any_call_to_the_store(tmp_path: Path, original: tuple[Path, list[Any]], when: str) -> None:
    source, expected = original
    number, finished = 0, False
    while not finished:
        number += 1
        path = tmp_path / f"{when}-{number}"
        shutil.copytree(source, path / "data")
        url, dying = f"objects://{path / 'archive'}", Dying(when, number)
        with open_engine(path / "data", store=FailingStore(objects(path / "archive"), dying)) as hw:
            try:
                hw.archive(url)
                finished = dying.calls < number
            except Died:
                pass
        with open_engine(path / "data") as hw:
            if hw.archive_url is not None:
                assert not check_archive_of(hw.directory).damaged
                dropped = drop(hw)
                noted = hw.describe("t").partitions[0].archived or 0
                assert not dropped or dropped[-1].end <= noted
            assert everything(hw) == expected
            hw.archive(url)
            manifest = manifest_of(objects(path / "archive"), hw)
            assert (manifest.start, manifest.end) == (0, len(expected))
            assert not [finding for finding in check_archive_of(hw.directory).findings if finding.damage]
            drop(hw)
            assert everything(hw) == expected
        shutil.rmtree(path)
    assert number > 20, "it was let die at every call that archiving makes"


def test_a_killed_process_leaves_an_archive_that_the_next_one_finishes(tmp_path: Path) -> None:
    url, chance = f"objects://{tmp_path / 'archive'}", Random(4)  # not for secrets
    with open_engine(tmp_path / "data") as hw:
        fill(hw, 30)
        for turn in range(3):
            command = [sys.executable, "-m", "headwater.cli", "archive", str(tmp_path / "data"), url, "--json"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                fill(hw, 60, seed=turn)
                for _ in range(chance.randrange(1, 3)):
                    process.stdout.readline()
                process.send_signal(signal.SIGKILL if turn < 2 else signal.SIGTERM)
                code = process.wait(20)
            assert code == (-signal.SIGKILL if turn < 2 else 0)
            assert not check_archive_of(hw.directory).damaged
            drop(hw)
        expected = everything(hw)
        assert [event[1] for event in expected] == list(range(210))
        hw.archive(seal=True)
        wait_for(lambda: hw.describe("t").partitions[0].archived == 210)
        assert not check_archive_of(hw.directory).damaged
    restore(url, tmp_path / "back", disk=UnsyncedDisk())
    with open_engine(tmp_path / "back") as back:
        assert everything(back) == expected

"""The servers that tests share: they answer, and end with the run that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from headwater.bucket.object_store import ObjectStore
from tests import servers
from tests.waiting import wait_for


def test_a_store_is_fresh_for_each_test(object_store: ObjectStore) -> None:
    assert list(object_store.list("")) == []
    object_store.put("a", b"1")
    found = object_store.get("a")
    assert found is not None
    assert bytes(found.data) == b"1"


def test_dynamodb_answers(dynamodb: str, dynamodb_table: str) -> None:
    client = boto3.client("dynamodb", endpoint_url=dynamodb)
    assert dynamodb_table not in client.list_tables()["TableNames"]


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("killed", ["owner", "keeper"])
def test_a_server_ends_when_its_run_or_its_keeper_is_killed(killed: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    owner = subprocess.Popen(["sleep", "100"])
    keeper_program = str(Path(servers.__file__).with_name("keeper.py"))
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    files = str(tmp_path / "files")
    command = [sys.executable, keeper_program, str(owner.pid), files, sys.executable, "-c", program]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert keeper.stdout is not None
    try:
        server = int(keeper.stdout.readline())
        assert is_alive(server)
        os.kill({"owner": owner.pid, "keeper": keeper.pid}[killed], signal.SIGKILL)
        owner_or_keeper = owner if killed == "owner" else keeper
        owner_or_keeper.wait()
        wait_for(lambda: not is_alive(server))
        if killed == "owner":
            wait_for(lambda: not (tmp_path / "files").exists())
    finally:
        owner.kill()
        owner.wait()
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()

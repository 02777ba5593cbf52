"""What the store in a directory promises beyond the others: kills, power losses, several processes, hands of people."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import RESERVED
from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid, Unavailable, Unsupported
from tests.crash.machine import Loss, Machine, Tree
from tests.crash.recording import Op, RecordingDisk

LOSSES = [Loss("dropped", "dropped"), Loss("dropped", "kept"), Loss("random", "ordered"), Loss("random", "adversarial")]
CREATING = """
import sys
from pathlib import Path
from headwater.bucket.directory_store import DirectoryStore
from headwater.disk.disk import Clock, Disk
store = DirectoryStore(Path(sys.argv[1]), Disk(), Clock())
for number in range(int(sys.argv[2]), 1_000_000, int(sys.argv[3])):
    if store.create(f"objects/{number:06d}", number.to_bytes(4) * 20_000) is not None:
        print(number, flush=True)
"""
RACING = """
import sys
from pathlib import Path
from headwater.bucket.directory_store import DirectoryStore
from headwater.disk.disk import Clock, Disk
store = DirectoryStore(Path(sys.argv[1]), Disk(), Clock())
print("ready", flush=True)
sys.stdin.readline()
print(*(number for number in range(100) if store.create(f"race/{number}", sys.argv[2].encode()) is not None))
counted = 0
while counted < 20:
    found = store.get("counter")
    counted += store.swap("counter", b"%d" % (int(bytes(found.data)) + 1), found.version) is not None
"""


@pytest.fixture
def directory_store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects", Disk(), Clock())


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_of_several_processes_one_creates_a_key_and_no_swap_is_lost(directory_store: DirectoryStore) -> None:
    directory_store.create("counter", b"0")
    children = [child(RACING, directory_store.path, me) for me in range(3)]
    for each in children:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    won = [each.communicate("go\n")[0].split() for each in children]
    assert sorted(int(number) for numbers in won for number in numbers) == list(range(100))
    for me, numbers in enumerate(won):
        for number in numbers:
            found = directory_store.get(f"race/{number}")
            assert found is not None
            assert bytes(found.data) == b"%d" % me
    counter = directory_store.get("counter")
    assert counter is not None
    assert bytes(counter.data) == b"60"


def test_what_a_killed_process_was_creating_is_whole_or_not_there_and_swept_later(
    directory_store: DirectoryStore,
) -> None:
    chance = random.Random(7)
    for attempt in range(5):
        writing = child(CREATING, directory_store.path, attempt, 5)
        assert writing.stdout is not None
        told = [int(writing.stdout.readline()) for _ in range(chance.randrange(1, 12))]
        writing.send_signal(signal.SIGKILL)
        told += map(int, writing.communicate()[0].split())
        there = [each.key for each in directory_store.list("objects/")]
        assert {f"objects/{number:06d}" for number in told} <= set(there)
        for key in there:
            found = directory_store.get(key)
            assert found is not None
            assert bytes(found.data) == int(key[-6:]).to_bytes(4) * 20_000
    temporary = directory_store.path / RESERVED / "temporary"
    (temporary / "object.00000000.tmp").write_bytes(b"left by a killed one")
    assert RESERVED not in directory_store.folders("")
    DirectoryStore(directory_store.path, Disk(), Clock()).put("any", b"")
    assert os.listdir(temporary) == []


def test_a_file_that_is_being_written_is_not_swept(directory_store: DirectoryStore) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        DirectoryStore(directory_store.path, Disk(), Clock()).put("other", b"sweeps first")
        yield b" and half"

    directory_store.put_pieces("slow", pieces())
    found = directory_store.get("slow")
    assert found is not None
    assert bytes(found.data) == b"half and half"


def work(store: DirectoryStore, disk: RecordingDisk) -> None:
    """Each change, with what is to be there before it and after."""

    def change(key: str, before: bytes | None, after: bytes | None) -> None:
        disk.mark((key, before, after))

    def done(key: str, now: bytes | None) -> None:
        disk.mark((key, now))

    change("a/b/c", None, b"1" * 5000)
    version = store.create("a/b/c", b"1" * 5000)
    done("a/b/c", b"1" * 5000)
    assert version is not None
    change("a/b/c", b"1" * 5000, b"2" * 3000)
    store.swap("a/b/c", b"2" * 3000, version)
    done("a/b/c", b"2" * 3000)
    change("d/e", None, b"345")
    store.put_pieces("d/e", [b"3", b"45"])
    done("d/e", b"345")
    change("a/b/c", b"2" * 3000, None)
    store.delete(["a/b/c"])
    done("a/b/c", None)


def content(tree: Tree, key: str) -> bytes | None:
    node: bytes | Tree | None = tree.get("objects")
    for part in key.split("/"):
        node = node.get(part) if isinstance(node, dict) else None
    assert not isinstance(node, dict)
    return node


def check(trees: list[Tree], allowed: dict[str, set[bytes | None]], moment: str) -> None:
    for tree in trees:
        for key, contents in allowed.items():
            assert content(tree, key) in contents, f"{key} after {moment}"


def test_every_change_is_whole_and_what_was_answered_stays_at_a_crash_at_any_moment(
    tmp_path: Path,
) -> None:
    disk = RecordingDisk(tmp_path)
    work(DirectoryStore(tmp_path / "objects", disk, Clock()), disk)
    machine = Machine()
    allowed: dict[str, set[bytes | None]] = {"a/b/c": {None}, "d/e": {None}}
    for number, op in enumerate(disk.trace):
        machine.apply(op)
        if op.kind == "mark":
            allowed[op.note[0]] = set(op.note[1:])
        losses = [loss._replace(seed=seed) for loss in LOSSES for seed in range(number, number + 3)]
        trees = [machine.cached(), *(machine.after_power_loss(loss) for loss in losses)]
        check(trees, allowed, f"{number}: {op.kind} {op.path} {op.target}")


def test_what_was_read_stays_though_its_writer_died_before_the_sync(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    store = DirectoryStore(tmp_path / "objects", disk, Clock())
    store.put("a/first", b"so that the folder is durable")
    fd = disk.create(tmp_path / "written")
    disk.write(fd, b"1", 0)
    disk.fdatasync(fd)
    disk.close(fd)
    disk.link(tmp_path / "written", tmp_path / "objects/a/b")
    before = len(disk.trace)
    assert store.get("a/b") is not None
    assert after_power_loss(disk.trace[:before], "a/b") is None
    assert after_power_loss(disk.trace, "a/b") == b"1"


def test_what_is_known_to_be_durable_is_read_without_a_sync(tmp_path: Path) -> None:
    clock = LaterClock()
    DirectoryStore(tmp_path / "objects", Disk(), clock).put("a/b", b"1")
    disk = RecordingDisk(tmp_path)
    store = DirectoryStore(tmp_path / "objects", disk, clock)
    clock.later_s = 1
    store.get("a/b")
    assert [op.kind for op in disk.trace] == ["sync directory"]
    store.get("a/b")
    assert len(disk.trace) == 1
    clock.later_s = 61
    DirectoryStore(tmp_path / "objects", disk, clock).get("a/b")
    assert len(disk.trace) == 1


class LaterClock(Clock):
    """A wall clock that is ahead."""

    later_s = 0

    def ticks(self) -> int:
        return super().ticks() + self.later_s * 10_000_000


def after_power_loss(trace: list[Op], key: str) -> bytes | None:
    machine = Machine()
    for op in trace:
        machine.apply(op)
    return content(machine.after_power_loss(Loss("dropped", "dropped")), key)


def test_a_folder_that_another_process_has_just_made_is_made_durable(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    for directory in ("objects", "objects/a", "objects/a/b"):
        disk.mkdir(tmp_path / directory)
    DirectoryStore(tmp_path / "objects", disk, Clock()).create("a/b/c", b"1")
    assert after_power_loss(disk.trace, "a/b/c") == b"1"


def test_bytes_that_come_again_make_another_version(directory_store: DirectoryStore) -> None:
    first = directory_store.create("a", b"A")
    assert first is not None
    second = directory_store.swap("a", b"B", first)
    assert second is not None
    third = directory_store.swap("a", b"A", second)
    assert third not in (None, first)
    assert directory_store.swap("a", b"C", first) is None


def test_reading_makes_nothing(directory_store: DirectoryStore) -> None:
    directory_store.get("a")
    directory_store.delete(["a"])
    assert list(directory_store.list("")) == []
    assert not directory_store.path.exists()


def test_a_directory_that_somebody_removed_is_made_again(directory_store: DirectoryStore) -> None:
    directory_store.create("a/b", b"1")
    shutil.rmtree(directory_store.path)
    assert directory_store.create("a/b", b"2") is not None
    shutil.rmtree(directory_store.path / "a")
    assert directory_store.create("a/b", b"3") is not None


def test_an_object_is_no_folder(directory_store: DirectoryStore) -> None:
    directory_store.create("a/b", b"1")
    assert directory_store.get("a") is None
    assert directory_store.get("a/b/c") is None
    for key in ("a", "a/b/c"):
        with pytest.raises(Invalid) as refused:
            directory_store.create(key, b"")
        assert refused.value.code == "key_is_folder"
        with pytest.raises(Invalid):
            directory_store.put(key, b"")
    directory_store.delete(["a/b/c"])
    assert [each.key for each in directory_store.list("")] == ["a/b"]


def test_what_the_disk_refuses_is_told_with_what_to_do(tmp_path: Path) -> None:
    class Full(Disk):
        def fdatasync(self, fd: int) -> None:  # type: ignore[override]  # fewer options than os has
            raise OSError(28, "No space left on device", fd)

    store = DirectoryStore(tmp_path / "objects", Full(), Clock())
    with pytest.raises(Unavailable, match="free some space") as failed:
        store.create("a", b"1")
    assert failed.value.code == "disk_full"
    assert list(store.list("")) == []
    assert os.listdir(tmp_path / "objects" / RESERVED / "temporary") == []


def test_a_file_system_without_links_is_refused(tmp_path: Path) -> None:
    class Linkless(Disk):
        def link(self, path: Path, target: Path) -> None:  # type: ignore[override]  # fewer options than os has
            raise PermissionError(errno.EPERM, f"{path} {target}")

    store = DirectoryStore(tmp_path / "objects", Linkless(), Clock())
    with pytest.raises(Unsupported, match="another file system") as refused:
        store.create("a", b"1")
    assert refused.value.code == "no_conditional_writes"
    assert os.listdir(tmp_path / "objects" / RESERVED / "temporary") == []


def test_an_object_that_is_deleted_just_when_another_is_created_was_there(tmp_path: Path) -> None:
    class Racing(Disk):
        def link(self, path: Path, target: Path) -> None:  # type: ignore[override]  # fewer options than os has
            raise FileExistsError(errno.EEXIST, f"{path} {target}")

    assert DirectoryStore(tmp_path / "objects", Racing(), Clock()).create("a", b"1") is None

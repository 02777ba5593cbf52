"""Every byte of a small log is damaged in turn: nothing wrong is ever read, and nothing is cut in silence."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

import headwater
from headwater.errors import Corrupt, HeadwaterError, Invalid, NotFound, Unsupported
from headwater.event import Event
from headwater.format.index import Index
from headwater.limits import Limits
from headwater.store import Store
from tests.log.conformance import plain
from tests.log.unsynced import open_unsynced

LIMITS = Limits(blob_bytes_min=40)  # so that small events become blobs
VOLATILE = range(8, 24)  # of a tail: hints outside every checksum
Files = dict[str, bytes]


class Small:
    """A log of a few KiB with two sealed segments and an active one, blobs, indexes and all; and what it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_unsynced(path, limits=LIMITS) as hw:
            hw.append("t", b"first", type="a", key=b"k")
            hw.append("t", {"n": 2}, type="b", meta={"m": "n"})
            hw.append("t", b"huge " * 10, type="a")
            hw.append_many("t", [b"four", b"five", b"six"], types=["a", "b", "c"], keys=[None, b"k", b""])
            hw.seal("t")
            hw.append("t", "seven", type="c")
            hw.append("t", "eight", type="c")
            hw.seal("t")
            hw.append("t", b"nine", key=b"k")
            hw.append("t", b"huge too " * 6, type="b")
            hw.append("t", b"eleven", type="a", key=b"k")
            self.events = [plain(event) for event in hw.read("t")]
            self.ids = [event.id for event in hw.read("t")]
        self.log = path / "topics/t/0"
        self.files = self.snapshot()

    def snapshot(self) -> Files:
        found = {}
        for directory, _, names in os.walk(self.path):
            for name in names:
                with open(f"{directory}/{name}", "rb") as file:
                    found[os.path.relpath(file.name, self.path)] = file.read()
        return found

    def restore(self) -> None:
        now = self.snapshot()
        for name in now.keys() - self.files.keys():
            (self.path / name).unlink()
        for name, stored in self.files.items():
            if now.get(name) != stored:
                (self.path / name).write_bytes(stored)

    def flips(self, *endings: str, step: int = 1, only_read: bool = False) -> Iterator[tuple[str, int]]:
        """Flip each byte of the files that end so; the log is whole again afterwards.

        `only_read` says that nothing else is changed meanwhile, which is then proved once, at the end.
        """
        flips = [
            (name, at) for name in sorted(self.files) if name.endswith(endings) for at in range(len(self.files[name]))
        ]
        assert flips
        for name, at in flips[::step]:
            stored, path = self.files[name], self.path / name
            damaged = stored[:at] + bytes([stored[at] ^ 0x15]) + stored[at + 1 :]
            path.write_bytes(damaged)
            yield name, at
            if only_read:
                assert path.read_bytes() == damaged
                path.write_bytes(stored)
            else:
                self.restore()
        if only_read:
            now = self.snapshot()
            assert {name for name in now if now[name] != self.files.get(name)} <= {"topics/t/0/tail"}  # its hints

    def open(self) -> Store:
        return open_unsynced(self.path, create=False, limits=LIMITS)

    def check_that_nothing_is_lost(self, where: object) -> None:
        """All bytes of every segment and blob are still there, in place or kept beside it."""
        for name in self.files:
            if name.endswith((".log", ".blob")):
                kept = (self.path / name).read_bytes()
                for cut in self.path.glob(f"{name.removesuffix('.log')}.cut-*"):
                    kept = kept[: int(cut.name.rpartition("-")[2])] + cut.read_bytes()
                assert len(kept) >= len(self.files[name]), where
                assert sum(a != b for a, b in zip(kept, self.files[name], strict=False)) <= 1, where


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("damage") / "data")


@pytest.fixture
def small(built: Small) -> Iterator[Small]:
    yield built
    built.restore()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Recovery warns of what it cuts; here that happens a thousand times."""
    logging.getLogger("headwater").setLevel(logging.ERROR)
    yield
    logging.getLogger("headwater").setLevel(logging.NOTSET)


def read_until_damage(events: Callable[[], Iterator[Event]]) -> tuple[list[tuple[Any, ...]], Corrupt | None]:
    found = []
    try:
        for event in events():
            found.append(plain(event))  # noqa: PERF401  (what came before the error counts)
    except Corrupt as error:
        return found, error
    return found, None


def test_the_small_log_has_everything(small: Small) -> None:
    names = sorted(name.removeprefix("topics/t/") for name in small.files)
    assert names == [
        "0/00000000000000000000.blobs/00000000000000000002.blob",
        "0/00000000000000000000.index",
        "0/00000000000000000000.log",
        "0/00000000000000000006.index",
        "0/00000000000000000006.log",
        "0/00000000000000000008.blobs/00000000000000000009.blob",
        "0/00000000000000000008.log",
        "0/lock",
        "0/tail",
        "headwater.json",
        "topic.json",
        "topics/.lock",
    ]
    assert len(small.events) == 11
    assert sum(map(len, small.files.values())) < 5000


def test_any_damaged_byte_of_a_segment_or_blob_is_corrupt_where_it_is_and_what_is_before_is_read(small: Small) -> None:
    for where in small.flips(".log", ".blob", only_read=True):
        name, at = where
        with small.open() as hw:
            found, error = read_until_damage(lambda: hw.read("t"))
        assert error is not None, where
        assert found == small.events[: len(found)], where
        assert Path(error.path) == small.path / name, where
        assert error.position <= at < error.position + error.size, (where, error)
        first_of_segment = int(Path(name).name[:20]) if name.endswith(".log") else 0
        assert len(found) >= first_of_segment, where


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.torture)])
def test_no_damaged_byte_makes_any_read_wrong(small: Small, step: int) -> None:
    """From any place, forwards and backwards, filtered or not: what was written, or Corrupt."""
    events = small.events
    wanted: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = [
        ({"reverse": True}, events[::-1]),
        ({"type": "b"}, [event for event in events if event[5] == "b"]),
        ({"type": "c", "reverse": True}, [event for event in events[::-1] if event[5] == "c"]),
        ({"key": b"k"}, [event for event in events if event[6] == b"k"]),
        ({"key": b"", "reverse": True}, [event for event in events[::-1] if event[6] == b""]),
        ({"key": b"none"}, []),
        *(({"start": small.ids[i]}, events[i:]) for i in (1, 4, 7, 9, 10)),
        *(({"start": i, "end": i + 1}, events[i : i + 1]) for i in (3, 8, 10)),
    ]
    for where in small.flips(".log", ".index", "/tail", step=step):
        with small.open() as hw:
            for options, expected in wanted:
                found, error = read_until_damage(lambda: hw.read("t", **options))  # noqa: B023  (used at once)
                if error is None:
                    assert found == expected, (where, options)
                else:
                    assert found == expected[: len(found)], (where, options)
            for key, version in ((b"k", 10), (b"", 5), (b"none", None)):
                with contextlib.suppress(Corrupt):
                    assert hw.version("t", key) == version, (where, key)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.torture)])
def test_damage_of_what_can_be_rebuilt_changes_nothing(small: Small, step: int) -> None:
    for where in small.flips(".index", "/tail", step=step):
        with small.open() as hw:
            assert [plain(event) for event in hw.read("t")] == small.events, where
            assert [plain(event) for event in hw.read("t", type="c")] == [e for e in small.events if e[5] == "c"], where
            for key in (b"k", b""):
                mine = [event for event in small.events if event[6] == key]
                assert [plain(event) for event in hw.read("t", key=key)] == mine, where
                assert [plain(event) for event in hw.read("t", key=key, reverse=True)] == mine[::-1], where
                assert hw.version("t", key) == mine[-1][2], where
            assert hw.version("t", b"none") is None, where
            assert hw.append("t", b"next").offset == 11, where
        small.check_that_nothing_is_lost(where)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("way", ["start", "end", "offset", "backwards"])
def test_no_damaged_header_leads_astray(tmp_path: Path, way: str, finished: bool) -> None:
    """A place is searched by the headers of many batches, most of which are not read for it."""
    with open_unsynced(tmp_path / "data") as hw:
        events = [hw.append("t", b"%d" % number) for number in range(9)]
        if finished:
            hw.directory._topics.get("t").logs[0].roll(tell=False)
    file = tmp_path / "data/topics/t/0/00000000000000000000.log"
    stored = file.read_bytes()
    size = (len(stored) - 64) // 9
    for at in [64 + size * number + byte for number in range(9) for byte in range(8, 36)]:
        file.write_bytes(stored[:at] + bytes([stored[at] ^ 0x41]) + stored[at + 1 :])
        with open_unsynced(tmp_path / "data") as hw:
            for number in range(1, 9, 2):
                ways: dict[str, tuple[dict[str, Any], list[int]]] = {
                    "start": ({"start": events[number].id, "end": number + 1}, [number]),
                    "end": ({"end": events[number].id}, list(range(number))),
                    "offset": ({"start": number, "end": number + 1}, [number]),
                    "backwards": ({"start": number, "reverse": True}, list(range(number, 9))[::-1]),
                }
                options, offsets = ways[way]
                expected = [b"%d" % i for i in offsets]
                found, error = read_until_damage(lambda: hw.read("t", **options))  # noqa: B023  (used at once)
                wanted = expected if error is None else expected[: len(found)]
                assert [event[7] for event in found] == wanted, (at, number)


def test_any_damaged_byte_of_settings_is_corrupt(small: Small) -> None:
    for where in small.flips(".json", only_read=True):
        with pytest.raises(Corrupt) as caught, small.open() as hw:
            hw.read("t")
        assert Path(caught.value.path) == small.path / where[0]


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("tail", ["kept", "removed"])
def test_an_append_to_a_damaged_log_cuts_nothing_in_silence(small: Small, tail: str, step: int) -> None:
    for where in small.flips(".log", ".blob", step=step):
        if tail == "removed":
            (small.log / "tail").unlink()
        try:
            with small.open() as hw:
                ref = hw.append("t", b"next")
                reported = hw.describe("t").partitions[0].recovered
            assert ref.offset == 11 or reported, where
        except Corrupt:
            pass
        small.check_that_nothing_is_lost(where)


def test_reading_a_damaged_log_without_a_tail_gives_a_beginning_of_it(small: Small) -> None:
    for where in small.flips("8.log", step=2):
        (small.log / "tail").unlink()
        with small.open() as hw:
            found, error = read_until_damage(lambda: hw.read("t"))
            if error is None:
                assert hw.describe("t").partitions[0].recovered, where
        assert found == small.events[: len(found)], where
        small.check_that_nothing_is_lost(where)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.torture)])
def test_check_finds_every_damaged_byte(small: Small, step: int) -> None:
    with small.open() as hw:
        assert not hw.check().damaged
        for where in small.flips(".log", ".blob", ".index", "/tail", "/topic.json", step=step, only_read=True):
            name, at = where
            report = hw.check()
            if name.endswith("/tail") and at in VOLATILE:
                assert not report.damaged, where
                continue
            damage = [finding for finding in report.findings if finding.damage]
            assert damage, where
            if name.endswith(".log"):
                assert any(
                    Path(finding.path) == small.path / name and finding.position <= at < finding.position + finding.size
                    for finding in damage
                ), (where, damage)


def test_check_finds_an_index_that_does_not_tell_the_truth(small: Small) -> None:
    file = small.log / "00000000000000000000.index"
    index = Index.decode(file.read_bytes())
    assert index.types is not None
    assert index.keys is not None
    lies = [
        msgspec.structs.replace(index, positions=index.positions[::-1].copy()),
        msgspec.structs.replace(index, types={b"a": index.types[b"a"]}),
        msgspec.structs.replace(index, keys=index.keys[1:]),
        msgspec.structs.replace(index, ticks=index.ticks + 1),
    ]
    for lie in lies:
        file.write_bytes(lie.encode())
        with small.open() as hw:
            (finding,) = [finding for finding in hw.check().findings if finding.damage]
            assert Path(finding.path) == file
            hw.repair(apply=True)
        assert file.read_bytes() == small.files["topics/t/0/00000000000000000000.index"]


def test_check_changes_nothing(small: Small) -> None:
    for where in small.flips(".log", ".index", "/tail", step=23):
        before = small.snapshot()
        with small.open() as hw:
            hw.check()
            hw.repair()
        assert small.snapshot() == before, where


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.torture)])
def test_repair_keeps_all_that_is_sound(small: Small, step: int) -> None:
    for where in small.flips(".log", ".blob", ".index", "/tail", step=step):
        with small.open() as hw:
            before, _ = read_until_damage(lambda: hw.read("t"))
            actions = hw.repair(apply=True)
            assert all(action.done for action in actions), where
            assert not hw.check().damaged, where
        with small.open() as hw:
            after = [plain(event) for event in hw.read("t")]
            assert [event for event in after if event in before] == before, where
            assert [event for event in after if event not in small.events] == [], where
            assert len(after) >= len(small.events) - 3, where
            assert hw.append("t", b"next").offset == 11, where
            assert [event.data for event in hw.read("t", start=11)] == [b"next"], where
            assert hw.repair() == [], where
        for action in actions:
            if action.kept:
                assert Path(action.kept).stat().st_size, where


@pytest.mark.parametrize("missing", ["tail", "lock", "00000000000000000000.index", "00000000000000000006.index"])
def test_what_can_be_rebuilt_may_be_missing(small: Small, missing: str) -> None:
    (small.log / missing).unlink()
    with small.open() as hw:
        assert [plain(event) for event in hw.read("t")] == small.events
        assert [plain(event) for event in hw.read("t", type="c")] == [e for e in small.events if e[5] == "c"]
        assert hw.append("t", b"next").offset == 11
    with small.open() as hw:
        assert len(list(hw.read("t"))) == 12


@pytest.mark.parametrize("size", [0, 1, 100, 319, 321])
def test_a_tail_of_another_size_is_made_again(small: Small, size: int) -> None:
    (small.log / "tail").write_bytes((small.files["topics/t/0/tail"] + b"\0")[:size])
    with small.open() as hw:
        assert [plain(event) for event in hw.read("t")] == small.events
        assert hw.append("t", b"next").offset == 11


def test_a_tail_of_zeros_is_made_again(small: Small) -> None:
    (small.log / "tail").write_bytes(bytes(320))
    with small.open() as hw:
        assert [plain(event) for event in hw.read("t")] == small.events


@pytest.mark.parametrize("name", ["00000000000000000000", "00000000000000000006", "00000000000000000008"])
def test_a_segment_that_was_cut_short_is_corrupt(small: Small, name: str) -> None:
    file = small.log / f"{name}.log"
    stored = file.read_bytes()
    for size in [*range(0, len(stored), 5), len(stored) - 1]:
        file.write_bytes(stored[:size])
        with small.open() as hw:
            found, error = read_until_damage(lambda: hw.read("t"))
            assert error is not None, size
            assert found == small.events[: len(found)]
            assert len(found) >= int(name)
            assert hw.check().damaged, size
        assert file.stat().st_size == size
    small.restore()


def test_a_missing_segment_is_corrupt(small: Small) -> None:
    (small.log / "00000000000000000006.log").unlink()
    with small.open() as hw:
        found, error = read_until_damage(lambda: hw.read("t"))
        assert (found, error is not None) == (small.events[:6], True)
        assert hw.check().damaged


def test_a_missing_blob_is_corrupt(small: Small) -> None:
    (small.log / "00000000000000000008.blobs" / "00000000000000000009.blob").unlink()
    with small.open() as hw:
        found, error = read_until_damage(lambda: hw.read("t"))
        assert (found, error is not None) == (small.events[:9], True)
        assert hw.check().damaged


def test_swapped_segments_are_corrupt(small: Small, tmp_path: Path) -> None:
    Small(tmp_path / "other")
    shutil.copy(tmp_path / "other/topics/t/0/00000000000000000006.log", small.log / "00000000000000000006.log")
    with small.open() as hw:
        found, error = read_until_damage(lambda: hw.read("t"))
        assert (found, error is not None) == (small.events[:6], True)
        assert hw.check().damaged


def test_the_index_of_another_file_is_not_used(small: Small) -> None:
    shutil.copy(small.log / "00000000000000000006.index", small.log / "00000000000000000000.index")
    with small.open() as hw:
        assert [plain(event) for event in hw.read("t")] == small.events
        assert [plain(event) for event in hw.read("t", type="a")] == [e for e in small.events if e[5] == "a"]


def test_strange_files_are_ignored(small: Small) -> None:
    for name in ("README", "00000000000000000003.txt", "x.log", "00000000000000000000.blobs/notes", "y.tmp"):
        (small.log / name).write_bytes(b"strange")
    (small.log / "tail").unlink()
    with small.open() as hw:
        assert [plain(event) for event in hw.read("t")] == small.events
        assert hw.append("t", b"next").offset == 11
        hw.seal("t")
        assert not hw.check().damaged
    for name in ("README", "00000000000000000003.txt", "x.log", "00000000000000000000.blobs/notes"):
        (small.log / name).unlink()


def test_a_large_segment_that_was_cut_short_is_corrupt(tmp_path: Path) -> None:
    """Above the size from which segments are mapped: a map beyond the end of a file would kill the process."""
    with open_unsynced(tmp_path / "data") as hw:
        hw.append_many("t", [b"x" * 1000] * 600)
        hw.append("t", b"last")
        os.truncate(tmp_path / "data/topics/t/0/00000000000000000000.log", 300_000)
        with pytest.raises(Corrupt):
            list(hw.read("t"))
    with open_unsynced(tmp_path / "data") as hw:
        with pytest.raises(Corrupt):
            list(hw.read("t"))
        with pytest.raises(Corrupt):
            hw.append("t", b"next")
    assert (tmp_path / "data/topics/t/0/00000000000000000000.log").stat().st_size == 300_000


# Directories


def test_a_newer_format_is_unsupported(small: Small) -> None:
    for name in ("headwater.json", "topics/t/topic.json"):
        plain_text = small.files[name].replace(b'"format":1', b'"format":2')
        start, end = plain_text.index(b'"crc":'), plain_text.index(b",") + 1
        unsigned = plain_text[:start] + plain_text[end:-1]
        crc = b'"crc":"%08x",' % crc32c(unsigned)
        (small.path / name).write_bytes(unsigned[:1] + crc + unsigned[1:] + b"\n")
        with pytest.raises(Unsupported, match="upgrade") as caught, small.open() as hw:
            hw.read("t")
        assert caught.value.path == str(small.path / name)
        small.restore()


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(Invalid, match=r"thesis\.txt") as caught:
        headwater.open(tmp_path)
    assert (caught.value.code, bool(caught.value.hint)) == ("not_a_log", True)
    with pytest.raises(NotFound) as missing:
        headwater.open(tmp_path, mode="existing")
    assert missing.value.code == "not_a_log"
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_file_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    with pytest.raises(Invalid) as caught:
        headwater.open(tmp_path / "file")
    assert caught.value.code == "not_a_log"
    with pytest.raises(NotFound):
        headwater.open(tmp_path / "file", mode="existing")


def test_a_missing_directory_is_not_found_unless_it_may_be_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="headwater init"):
        headwater.open(tmp_path / "data", mode="existing")
    with pytest.raises(NotFound, match="create that directory first"):
        headwater.open(tmp_path / "missing" / "data")
    assert os.listdir(tmp_path) == []
    headwater.open(tmp_path / "data").close()
    headwater.open(tmp_path / "data", mode="existing").close()


def test_an_address_of_another_kind_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="gopher"):
        headwater.open("gopher://host")


READ_ONLY = """
import os, sys
from pathlib import Path
import headwater.opening, pyarrow, re2  # before the user changes, who may not see where they are
data, events, uid = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if uid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
before = sorted(map(str, data.rglob("*")))
with headwater.open(data, mode=sys.argv[4]) as hw:
    assert len(list(hw.read("t"))) == events, "read"
    assert len(list(hw.read("t", reverse=True))) == events, "reverse"
    assert hw.read_arrow("t").num_rows == events, "arrow"
    assert len(list(hw.follow("t", start=0, timeout=0.05))) == events, "follow"
    assert hw.describe("t").events == events, "describe"
    assert not hw.check().damaged, "check"
    for append in (
        lambda: hw.append("t", b"x"),
        lambda: hw.append_many("t", [b"x"]),
        lambda: hw.append("t", iter([b"x" * 2_000_000])),
        lambda: hw.append("new", b"x"),
        lambda: hw.create("new"),
        lambda: hw.seal("t"),
        lambda: hw.sync("t"),
        lambda: hw.delete("t"),
    ):
        try:
            append()
        except headwater.Unavailable as error:
            assert error.hint, error
            assert error.code == "read_only", (error, error.code)
        else:
            raise AssertionError("something was appended")
    assert len(list(hw.read("t"))) == events, "read again"
assert sorted(map(str, data.rglob("*"))) == before
print("fine")
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that other users may enter, unlike those of the tests."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("missing", "mode"),
    [("nothing", "create"), ("nothing", "existing"), ("tail", "create"), ("lock", "existing"), ("index", "create")],
)
def test_a_read_only_directory_can_be_read(small: Small, shared: Path, missing: str, mode: str) -> None:
    data = shared / "data"
    shutil.copytree(small.path, data)
    for path in data.rglob("*"):
        if missing != "nothing" and path.name.endswith(missing):
            path.unlink()
    for path in [*data.rglob("*"), data]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    nobody = 65534 if os.getuid() == 0 else 0  # root may write what is read-only
    arguments = [str(data), str(len(small.events)), str(nobody), mode]
    ran = subprocess.run([sys.executable, "-c", READ_ONLY, *arguments], capture_output=True, text=True, check=False)
    assert ran.stdout == "fine\n", ran.stderr


def test_every_damage_is_one_of_our_errors(small: Small) -> None:
    """Random bytes in place of each file, one after the other."""
    for name in small.files:
        for stored in (b"", b"\0", b"\xff" * 1000, bytes(range(256)) * 20):
            (small.path / name).write_bytes(stored)
            try:
                with small.open() as hw:
                    found = [plain(event) for event in hw.read("t")]
                    hw.check()
                assert found == small.events[: len(found)]
            except HeadwaterError:
                pass
            small.restore()

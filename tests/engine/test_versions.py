"""Appends that expect a version of their key: taken once, whoever else appends, in this process or in others."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.directory import admission
from headwater.errors import Conflict, Invalid, NotFound
from headwater.event import Ref
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.log.children import Child, Said
from tests.log.conformance import datas
from tests.log.test_groups import GatedDisk, in_one_group, run_together
from tests.log.unsynced import open_unsynced


@pytest.fixture(autouse=True)
def topics(hw: Store) -> None:
    hw.create("t")


# One writer


def test_the_version_of_a_key_is_the_offset_of_its_last_event(hw: Store) -> None:
    assert hw.version("t", b"k") is None
    hw.append("t", b"", key=b"other")
    hw.append("t", b"", key="k")
    hw.append("t", b"")
    assert (hw.version("t", b"k"), hw.version("t", "other"), hw.version("t", b"")) == (1, 0, None)
    with pytest.raises(NotFound):
        hw.version("nowhere", b"k")


def test_an_expected_version_that_holds_lets_the_append_in(hw: Store) -> None:
    hw.append("t", b"plain")
    first = hw.append("t", b"first", key=b"k", expected_version="none")
    hw.append("t", b"of another", key=b"j")
    second = hw.append("t", b"second", key=b"k", expected_version=first.offset)
    assert (first.offset, second.offset, hw.version("t", b"k")) == (1, 3, 3)


@pytest.mark.parametrize("again", ["at once", "reopened", "sealed"])
def test_another_version_is_a_conflict_that_tells_it(path: Path, again: str) -> None:
    hw = open_unsynced(path)
    hw.append("t", b"a", key=b"k")
    hw.append("t", b"b", key=b"k")
    if again == "sealed":
        hw.seal("t")
    if again != "at once":
        hw.close()
        hw = open_unsynced(path)
    expectations: list[Any] = [0, 2, 77, "none"]
    for expected in expectations:
        with pytest.raises(Conflict) as caught:
            hw.append("t", b"c", key=b"k", expected_version=expected)
        assert (caught.value.code, caught.value.version, caught.value.expected) == ("version_conflict", 1, expected)
        assert caught.value.hint
    with pytest.raises(Conflict) as caught:
        hw.append("t", b"c", key=b"j", expected_version=0)
    assert caught.value.version is None
    assert datas(hw.read("t")) == [b"a", b"b"]
    hw.close()


def test_many_events_with_one_key_take_one_version(hw: Store) -> None:
    refs = hw.append_many("t", [b"a", b"b", b"c"], keys=["k"] * 3, expected_version="none")
    assert [ref.offset for ref in refs] == [0, 1, 2]
    assert hw.append_many("t", [b"d", b"e"], keys=[b"k"] * 2, expected_version=2)[1].offset == 4
    assert hw.append("t", b"f", key=b"k", expected_version=4).offset == 5
    with pytest.raises(Conflict) as caught:
        hw.append_many("t", [b"g", b"h"], keys=[b"k"] * 2, expected_version=4)
    assert (caught.value.version, hw.describe("t").partitions[0].end) == (5, 6)


def test_versions_are_those_of_the_keys_partition(hw: Store) -> None:
    hw.create("many", partitions=4)
    keys = [b"k%d" % number for number in range(20)]
    for key in keys:
        hw.append("many", b"first", key=key, expected_version="none")
    for key in keys:
        version = hw.version("many", key)
        assert version is not None
        refs = hw.append_many("many", [b"second", b"third"], keys=[key] * 2, expected_version=version)
        assert (hw.version("many", key), {ref.partition for ref in refs}) == (refs[1].offset, {refs[0].partition})
        with pytest.raises(Conflict):
            hw.append("many", b"fourth", key=key, expected_version=version)
    at_home = hw.append("many", b"fifth", key=keys[0]).partition
    elsewhere = hw.append("many", b"", key=keys[0], partition=(at_home + 1) % 4, expected_version="none")
    assert elsewhere.partition != at_home


@pytest.mark.parametrize("wrong", [True, False, -1, 1.0, "1", "None", b"none"])
def test_what_is_no_version_is_invalid(hw: Store, wrong: Any) -> None:
    hw.append("t", b"", key=b"k")
    with pytest.raises(Invalid, match="not a version"):
        hw.append("t", b"", key=b"k", expected_version=wrong)
    with pytest.raises(Invalid, match="not a version"):
        hw.append_many("t", [b""], keys=[b"k"], expected_version=wrong)


def test_a_version_is_expected_of_exactly_one_key(hw: Store) -> None:
    with pytest.raises(Invalid, match="needs a key"):
        hw.append("t", b"", expected_version="none")
    with pytest.raises(Invalid, match="needs a key"):
        hw.append_many("t", [b""], expected_version="none")
    with pytest.raises(Invalid, match="needs a key"):
        hw.append_many("t", [b"", b""], keys=[None, None], expected_version="none")
    for keys in ([b"k", b"j"], [b"k", None]):
        with pytest.raises(Invalid, match="have several"):
            hw.append_many("t", [b"", b""], keys=keys, expected_version="none")
    assert hw.describe("t").partitions[0].end == 0


def test_huge_events_may_expect_a_version(path: Path) -> None:
    with open_unsynced(path, limits=Limits(blob_bytes_min=100)) as hw:
        first = hw.append("t", io.BytesIO(b"x" * 1000), key=b"k", expected_version="none")
        with pytest.raises(Conflict):
            hw.append("t", iter([b"y" * 600, b"y" * 600]), key=b"k", expected_version="none")
        hw.append("t", b"z" * 1000, key=b"k", expected_version=first.offset)
        with pytest.raises(Conflict):
            hw.append("t", b"z" * 1000, key=b"k", expected_version=first.offset)
        assert [event.size for event in hw.read("t")] == [1000, 1000]
        assert not hw.check().findings
    assert list((path / "topics/t/0/spool").iterdir()) == []


def test_versions_survive_rolls_and_sealing(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "own") as hw:
        hw.create("t", segment_bytes=4096)
        last: dict[bytes, int] = {}
        for number in range(60):
            key = b"k%d" % (number % 7)
            last[key] = hw.append("t", b"x" * 300, key=key, expected_version=last.get(key, "none")).offset
        assert hw.describe("t").partitions[0].segments > 3
        hw.seal("t")
        assert {key: hw.version("t", key) for key in last} == last
        hw.append("t", b"", key=b"k3", expected_version=last[b"k3"])


@pytest.mark.parametrize("remembers", [True, False])
def test_what_retention_deletes_is_no_version_any_more(path: Path, remembers: bool) -> None:
    with open_unsynced(path) as hw:
        hw.append("t", b"", key=b"old", expected_version="none")
        hw.append("t", b"", key=b"k")
        hw.seal("t")
        hw.append("t", b"", key=b"k")
        assert hw.append("t", b"", key=b"k", expected_version=2).offset == 3
        with pytest.raises(Conflict):  # so that its version is in memory
            hw.append("t", b"", key=b"old", expected_version="none")
        other = hw if remembers else open_unsynced(path)
        assert hw.retain("t", before=2)
        assert (other.version("t", b"old"), other.version("t", b"k")) == (None, 3)
        with pytest.raises(Conflict) as caught:
            other.append("t", b"", key=b"old", expected_version=0)
        assert caught.value.version is None
        assert other.append("t", b"", key=b"old", expected_version="none").offset == 4
        other.close()


def test_more_keys_than_fit_the_memory_keep_their_versions(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "VERSIONS_MAX", 4)
    last: dict[bytes, int] = {}
    for number in range(40):
        key = b"k%d" % (number * 7 % 10)
        last[key] = hw.append("t", b"", key=key, expected_version=last.get(key, "none")).offset
    assert len(hw.directory._topics.get("t").logs[0]._group.writer._admission.versions) <= 4


# Several at once


def take_versions(hw: Store, keys: int, wanted: int) -> list[tuple[bytes, int]]:
    """Count up each key by `wanted`, reading its version again after each conflict; returns the versions taken."""
    taken = []
    for number in range(keys * wanted):
        key = b"k%d" % (number % keys)
        while True:
            version = hw.version("t", key)
            try:
                ref = hw.append("t", b"", key=key, expected_version="none" if version is None else version)
            except Conflict:
                continue
            taken.append((key, -1 if version is None else version))
            assert ref.offset > (version if version is not None else -1)
            break
    return taken


def check_taken(hw: Store, taken: list[tuple[bytes, int]]) -> None:
    assert max(Counter(taken).values()) == 1
    chain: dict[bytes | None, list[int]] = {}
    for event in hw.read("t"):
        chain.setdefault(event.key, [-1]).append(event.offset)
    chain.pop(None, None)
    # Each append stands right behind the version that it took.
    assert sorted(taken) == sorted((key or b"", before) for key in chain for before in chain[key][:-1])


def test_threads_take_each_version_once(hw: Store) -> None:
    taken = run_together([partial(take_versions, hw, 3, 10) for _ in range(6)])
    check_taken(hw, list(itertools.chain(*taken)))
    assert hw.describe("t").partitions[0].end == 6 * 30


def test_processes_take_each_version_once_while_others_append_plainly(path: Path) -> None:
    with open_unsynced(path) as hw:
        hw.create("t", segment_bytes=4096)

    def work(_: Said) -> list[tuple[bytes, int]]:
        with open_unsynced(path) as hw:
            taken: list[tuple[bytes, int]] = []
            for _number in range(12):
                taken += take_versions(hw, 2, 1)
                hw.append("t", b"plain")
                hw.append_many("t", [b"many", b"plain"])
            return taken

    children = [Child(work) for _ in range(3)]
    taken = [each for child in children for each in child.result()]
    with open_unsynced(path) as hw:
        check_taken(hw, taken)
        assert hw.describe("t").partitions[0].end == 3 * 12 * 5


Meanwhile = Callable[[Store], object]


@pytest.mark.parametrize(
    "meanwhile",
    [
        Store.topics,
        lambda hw: hw.append("t", b"", key=b"j"),
        lambda hw: hw.append("t", b"", producer=("p", 1, 1)),
        lambda hw: hw.append_many("t", [b"", b""], keys=[b"j", None]),
        lambda hw: hw.append("t", b"", key=b"j", expected_version="none"),
        lambda hw: commit_one(hw, b"j"),
    ],
    ids=["nothing", "append", "producer", "append_many", "other key", "transaction"],
)
def test_what_another_process_appended_is_not_forgotten_over_what_this_one_does(
    hw: Store, path: Path, meanwhile: Meanwhile
) -> None:
    hw.append("t", b"mine", key=b"k", expected_version="none")
    with open_unsynced(path) as other:  # as good as a process: it shares nothing with the first
        version = other.append("t", b"theirs", key=b"k", expected_version=0).offset
    meanwhile(hw)
    with pytest.raises(Conflict) as caught:
        hw.append("t", b"mine again", key=b"k", expected_version=0)
    assert caught.value.version == version
    hw.append("t", b"mine again", key=b"k", expected_version=version)


def commit_one(hw: Store, key: bytes) -> None:
    with hw.transaction() as tx:
        tx.append("t", b"", key=key)


# Groups


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def gated(tmp_path: Path, disk: GatedDisk) -> Iterator[Store]:
    with open_directory(tmp_path / "gated", disk=disk) as engine:
        engine.create("t")
        yield engine


def test_a_refused_condition_does_not_touch_the_rest_of_its_group(gated: Store, disk: GatedDisk) -> None:
    results = in_one_group(
        gated,
        disk,
        [
            partial(gated.append, "t", b"plain"),
            partial(gated.append, "t", b"refused", key=b"k", expected_version=7),
            partial(gated.append, "t", b"taken", key=b"k", expected_version="none"),
            partial(gated.append_many, "t", [b"many", b"more"], keys=[b"j", None]),
        ],
    )
    assert isinstance(results[1], Conflict)
    assert (results[0].offset, results[2].offset, results[3][1].offset) == (1, 2, 4)
    assert datas(gated.read("t")) == [b"leader", b"plain", b"taken", b"many", b"more"]
    assert [len(batch) for batch in gated.read_batches("t")] == [1, 4]  # they share a batch


def test_a_condition_sees_what_stands_before_it_in_its_group(gated: Store, disk: GatedDisk) -> None:
    results = in_one_group(
        gated,
        disk,
        [
            partial(gated.append, "t", b"plain", key=b"k"),
            partial(gated.append, "t", b"refused", key=b"k", expected_version="none"),
            partial(gated.append, "t", b"taken", key=b"k", expected_version=1),
            partial(gated.append_many, "t", [b"x", b"y"], keys=[None, b"k"]),
            partial(gated.append, "t", b"refused", key=b"k", expected_version=2),
            partial(gated.append, "t", b"taken too", key=b"k", expected_version=4),
        ],
    )
    assert [type(result) for result in results[::2]] == [Ref, Ref, Conflict]
    assert isinstance(results[1], Conflict)
    assert (results[1].version, results[4].version) == (1, 4)
    assert [results[number].offset for number in (0, 2, 5)] == [1, 2, 5]
    assert datas(gated.read("t")) == [b"leader", b"plain", b"taken", b"x", b"y", b"taken too"]


def test_of_many_who_expect_the_same_in_one_group_one_wins(gated: Store, disk: GatedDisk) -> None:
    results = in_one_group(
        gated, disk, [partial(gated.append, "t", b"%d" % n, key=b"k", expected_version="none") for n in range(8)]
    )
    assert [type(result) for result in results] == [Ref] + [Conflict] * 7
    assert {result.version for result in results[1:]} == {1}

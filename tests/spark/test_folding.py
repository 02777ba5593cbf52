"""Shards of a binder's history, folded by document, against folding event after event. No Spark is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headwater.event import Event
from headwater.limits import QUARANTINED_MAX, Limits
from headwater.spark.folding import shard_fold, sharding
from headwater.store import Store
from headwater.views import database, rebuild
from headwater.views.app import App
from headwater.views.document_fold import Halt
from headwater.views.draft import Draft
from headwater.views.encoding import decode, encode
from headwater.views.shards import ProjectionRange
from tests.spark.folded import InThisProcess, both, everything
from tests.views import seen

LIMITS = Limits(segment_bytes=20_000, blob_bytes_min=400)
KEYS = ["a", "b", "c", "d", "ü", "\0", "hot", "hot", "hot", "hot", None]
VALUES: list[Any] = [
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    2**40,
    -(2**31) - 1,
    0.5,
    "x",
    "ü",
    "",
    "y" * 500,
    True,
    None,
    [1],
    {"z": 1},
]
SHARED: dict[str, Any] = {"n": 0}


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, pieces, shards and caches of which a test fills many."""
    monkeypatch.setattr(sharding, "SHARD_EVENTS_MIN", 20)
    monkeypatch.setattr(shard_fold, "CHUNK_EVENTS", 90)
    monkeypatch.setattr(sharding, "PIECE_EVENTS", 7)
    monkeypatch.setattr(shard_fold, "CACHE_BYTES", 3000)


def fill(hw: Store, seed: int, partitions: int, events: int = 400) -> None:
    random = Random(seed)
    hw.create("t", partitions=partitions)
    number = 0
    while number < events:
        count = random.choice([1, 2, 30])
        data = [
            {
                "number": number + i,
                "by": random.choice([1, 2, 3, 4, 5, 6, "x", "ü", None]),
                "field": random.choice(["n", "m", "_id", "ü", "a.b"]),
                "value": random.choice(VALUES),
            }
            for i in range(count)
        ]
        types = [random.choice([*["put"] * 8, "end", "bad"]) for _ in data]
        hw.append_many("t", data, keys=[random.choice(KEYS) for _ in data], types=types, durability="os")
        number += count
        if random.random() < 0.1:
            hw.append("t", b"no JSON", key="a", type="put", durability="os")
        if random.random() < 0.2:
            hw.append("t", {"number": -1, "field": "m", "value": "z" * 600}, key="b", meta={"by": "me"})


def anything(doc: Any, event: Event) -> Any:
    """Does what folds may do: changes in place, keeps what it returned, makes what BSON stores as something else."""
    if event.type == "end":
        return None
    if doc is None and event.offset % 3 == 0:
        return SHARED  # as it is: whoever changes it below must have been given another
    doc = {} if doc is None else doc
    told = event.value if event.content == "json" else {}
    doc["n"] = doc.get("n", 0) + 1
    for name in ("big", "odd"):  # what was there for one event only is found nevertheless
        doc.pop(name, None)
    doc.setdefault("seen", []).append((event.partition, event.offset)) if event.offset % 7 == 0 else None
    doc[told.get("field", "none")] = told.get("value")
    doc["kinds"] = " ".join(type(value).__name__ for value in doc.values()) if event.offset % 5 == 0 else ""
    if event.offset % 11 == 0:
        doc["at"] = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=event.offset)
    if event.offset % 13 == 0:
        doc["big"] = 2**70  # cannot be stored
    if event.offset % 17 == 0:
        doc["odd"] = "\ud800"  # nor this
    if event.type == "bad":
        raise ValueError(event.offset)
    return doc


def total(doc: Any, event: Event) -> Any:
    """The same in any order."""
    doc = doc or {"n": 0, "sum": 0}
    return {"n": doc["n"] + 1, "sum": doc["sum"] + event.value["number"]}


def whose(event: Event) -> Any:
    by = event.value["by"]  # raises for what is no JSON, and for the huge ones
    return by if by != 2 else event.offset % 4


def by_key(app: App) -> None:
    app.binder("b").index("n").index("m")
    app.projection("t", "b", name="p", on_error="quarantine")(anything)


def by_path(app: App) -> None:
    app.projection("t", "b", name="p", key="by", unordered=True, on_error="quarantine")(anything)


def by_function(app: App) -> None:
    app.binder("b").index("sum")
    app.projection("t", "b", name="p", key=whose, unordered=True, on_error="quarantine")(total)


def some(app: App) -> None:
    app.projection("t", "b", name="p", type="put|end", match={"number": {"$gte": 50}}, on_error="quarantine")(anything)


def several(app: App) -> None:
    app.projection("t", "b", name="q", unordered=True, on_error="quarantine")(anything)
    app.projection("t", "b", name="p", key=whose, unordered=True, on_error="quarantine")(total)
    app.projection("missing", "b", name="r", unordered=True)(total)


@pytest.mark.parametrize("declare", [by_key, by_path, by_function, some, several])
@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 3)])
def test_shards_give_what_one_process_gives(
    hw: Store, declare: Callable[[App], None], seed: int, partitions: int
) -> None:
    app = App()
    declare(app)
    fill(hw, seed, partitions)
    hw.seal("t")
    fill(hw, seed + 1, partitions, 100)
    one, other = both(hw, app, "b")
    assert len(one["documents"]) > 3
    assert one["quarantined"]
    assert other == one
    assert SHARED == {"n": 0}


def test_documents_are_those_of_a_plain_fold_of_the_live_projection(hw: Store) -> None:
    def fold(doc: Any, event: Event) -> Any:
        return None if event.type == "end" else {"seen": [*(doc or {"seen": []})["seen"], event.offset]}

    app = App()
    app.projection("t", "b", name="p")(fold)
    fill(hw, 3, 2)
    app.catch_up(hw)
    live = everything(hw, "b")
    rebuild.rebuild(hw, app.of_binder("b"), elsewhere=InThisProcess(hw, app, "b"))
    assert everything(hw, "b") == live
    assert seen.documents(hw, "b") == seen.plain(hw, "t", fold, lambda event: event.key and event.key.decode())


def test_the_first_event_that_fails_stops_it_whichever_shard_finds_another_before(hw: Store) -> None:
    def fold(doc: Any, event: Event) -> Any:
        if event.type == "bad":
            raise ValueError(event.key)
        return doc or {"n": 1}

    app = App()
    app.projection("t", "b", name="p")(fold)
    fill(hw, 4, 3)
    with pytest.raises(Halt) as one:
        rebuild.rebuild(hw, app.of_binder("b"))
    with pytest.raises(Halt) as other:
        rebuild.rebuild(hw, app.of_binder("b"), elsewhere=InThisProcess(hw, app, "b"))
    place = one.value.error.partition, one.value.error.offset
    assert (other.value.error.partition, other.value.error.offset) == place
    assert other.value.error.error == one.value.error.error
    assert other.value.error.trace.splitlines()[-1] == one.value.error.trace.splitlines()[-1]
    assert hw.binders() == []


def test_one_event_too_many_that_fails_stops_it(hw: Store) -> None:
    def fold(_doc: Any, event: Event) -> Any:
        raise ValueError(event.offset)

    app = App()
    app.projection("t", "b", name="p", on_error="quarantine")(fold)
    keys = [str(number % 17) for number in range(QUARANTINED_MAX)]
    hw.create("t", partitions=3)
    hw.append_many("t", [b""] * QUARANTINED_MAX, keys=keys)
    one, other = both(hw, app, "b")
    assert (len(one["quarantined"]), other) == (QUARANTINED_MAX, one)
    hw.append_many("t", [b""] * 50, keys=keys[:50])
    with pytest.raises(Halt) as alone:
        rebuild.rebuild(hw, app.of_binder("b"))
    with pytest.raises(Halt) as shards:
        rebuild.rebuild(hw, app.of_binder("b"), elsewhere=InThisProcess(hw, app, "b"))
    assert shards.value.error.offset == alone.value.error.offset
    assert shards.value.error.partition == alone.value.error.partition


def test_keys_that_are_no_text_fail_and_others_go_on(hw: Store) -> None:
    app = App()
    app.projection("t", "b", name="p", on_error="quarantine")(lambda doc, _: {"n": (doc or {"n": 0})["n"] + 1})
    hw.append_many("t", [b""] * 40, keys=[b"\xff", b"a", b"\xfe\xfd", b"b"] * 10)
    one, other = both(hw, app, "b")
    assert (len(one["quarantined"]), len(one["documents"]), other) == (20, 2, one)


def test_a_key_that_somebody_put_into_several_partitions_is_folded_by_all_of_them_in_order(
    hw: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ATTACHED_MAX", 1)  # so that some is loaded when it is found out
    hw.create("t", partitions=3)
    for partition in (2, 0, 1, 0):
        hw.append_many("t", [{"number": partition}] * 30, keys=["a", "b", "c"] * 10, partition=partition)
    app = App()

    def fold(doc: Any, event: Event) -> Any:
        return {"seen": [*(doc or {"seen": []})["seen"], [event.partition, event.offset]]}

    app.projection("t", "b", name="p")(fold)
    rebuild.rebuild(hw, app.of_binder("b"))
    alone = everything(hw, "b")
    workers = InThisProcess(hw, app, "b")
    rebuild.rebuild(hw, app.of_binder("b"), elsewhere=workers)
    assert everything(hw, "b") == alone
    assert workers.calls == [True, False]


def test_events_that_retention_takes_while_it_reads_are_counted_as_missed(hw: Store) -> None:
    hw.append_many("t", [b"x" * 100] * 300, keys=[str(number % 5) for number in range(300)])
    for _ in range(4):
        hw.append_many("t", [b"x" * 100] * 200, keys=[str(number % 5) for number in range(200)])
    app = App()
    app.projection("t", "b", name="p")(lambda doc, _: {"n": (doc or {"n": 0})["n"] + 1})
    workers = InThisProcess(hw, app, "b", cores=1)
    real = workers.fold

    def fold(*arguments: Any, **named: Any) -> Any:
        hw.retain("t", retention_segments=2)
        return real(*arguments, **named)

    workers.fold = fold  # type: ignore[method-assign]  # retention comes when all is planned
    folded = rebuild.rebuild(hw, app.of_binder("b"), elsewhere=workers)
    oldest = hw.describe("t").partitions[0].start
    assert oldest > 0
    row = seen.row(hw, "b", "p")
    assert (row.missed, row.folded, folded) == (oldest, 1100 - oldest, 1100 - oldest)
    assert seen.cursors(hw, "b", "p") == {0: 1100}
    assert sum(doc["n"] for doc in seen.data(hw, "b").values()) == folded


def test_no_events_need_no_shards(hw: Store) -> None:
    app = App()
    by_key(app)
    workers = InThisProcess(hw, app, "b")
    assert rebuild.rebuild(hw, app.of_binder("b"), elsewhere=workers) == 0
    hw.create("t", partitions=2)
    assert rebuild.rebuild(hw, app.of_binder("b"), elsewhere=workers) == 0
    assert (workers.calls, seen.documents(hw, "b")) == ([], {})


def test_what_comes_while_shards_are_folded_is_folded_behind_them(hw: Store) -> None:
    fill(hw, 5, 2)
    app = App()
    by_key(app)
    workers = InThisProcess(hw, app, "b")
    real = workers.fold

    def fold(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        fill(hw, 6, 2, 150)
        return found

    workers.fold = fold  # type: ignore[method-assign]  # events come meanwhile
    rebuild.rebuild(hw, app.of_binder("b"), indexes=["m", "n"], elsewhere=workers)
    first = everything(hw, "b")
    rebuild.rebuild(hw, app.of_binder("b"), indexes=["m", "n"])
    assert first == everything(hw, "b")


def test_a_shard_with_more_documents_than_its_memory_holds_keeps_them_in_its_file(
    hw: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"k{number % 300}" for number in range(1500)]
    hw.append_many("t", [{"number": number} for number in range(1500)], keys=keys)
    app = App()
    app.projection("t", "b", name="p")(total)
    writes: list[int] = []
    real = Draft.write

    def write(self: Draft) -> None:
        writes.append(1)
        real(self)

    monkeypatch.setattr(Draft, "write", write)
    task = sharding.Task(0, [sharding.FoldRange(0, 0, 0, 1500)], 0, 1)
    shard_fold.fold_shard(hw, app.of_binder("b"), task, [], tmp_path / "shard", lambda _: None)
    assert len(writes) > 3
    monkeypatch.undo()
    one, other = both(hw, app, "b")
    assert (len(one["documents"]), other) == (300, one)


def test_shards_of_a_partition_share_its_keys_evenly_and_each_event_is_of_one(hw: Store) -> None:
    hw.create("t", partitions=4)
    hw.append_many("t", [b""] * 4000, keys=[f"key-{number}" for number in range(4000)])
    hw.append("t", b"", partition=1)
    for partition in range(4):
        batches = list(hw.read_batches("t", partition=partition))
        counts = [
            sum(len(own) for batch in batches if (own := sharding.own(batch, shard, 4)) is not None)
            for shard in range(4)
        ]
        assert sum(counts) == sum(map(len, batches))
        assert min(counts) > 150


def span(ends: tuple[int, ...], **named: Any) -> ProjectionRange:
    app = App()
    app.projection("t", "b", name="p", **named)(total)
    return ProjectionRange(app.projections["p"], (0,) * len(ends), ends)


def test_tasks_keep_all_cores_busy_and_have_enough_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SHARD_EVENTS_MIN", 100)

    def tasks(ends: tuple[int, ...], cores: int, *, by_partition: bool = True) -> list[tuple[list[int], int, int]]:
        found = sharding.plan([span(ends)], {"p": 0}, cores, by_partition=by_partition)
        assert [task.number for task in found] == list(range(len(found)))
        return [([part.partition for part in task.parts], task.shard, task.shards) for task in found]

    assert tasks((50,), 8) == [([0], 0, 1)]
    assert tasks((1000, 1000, 1000, 1000), 2) == [([each], 0, 1) for each in range(4)]
    assert tasks((0, 1000), 2) == [([1], shard, 4) for shard in range(4)]
    assert tasks((100, 900), 2)[0] == ([1], 0, 4)  # a large partition has more shards, and goes first
    assert tasks((1000, 1000), 2, by_partition=False) == [([0, 1], shard, 4) for shard in range(4)]


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_folded_as_if_the_document_had_been_stored_after_each_event(seed: int) -> None:
    random = Random(seed)
    scalars = [value for value in VALUES if not isinstance(value, list | dict)]
    changes = [(random.choice(["a", "b", "_id", "c"]), random.choice(scalars)) for _ in range(12)]
    events = [Event("t", 0, offset, 0, "", b"k", b"", "bytes", 0) for offset in range(len(changes))]

    def fold(doc: Any, event: Event) -> Any:
        field, value = changes[event.offset]
        if value == "":
            return None
        doc = doc or {}
        doc[field] = value
        doc["told"] = " ".join(f"{name}={type(each).__name__}" for name, each in doc.items())
        return doc

    before = encode({"a": 1}) if seed % 2 else None
    stored = before
    for event in events:
        document = fold(None if stored is None else decode(stored), event)
        stored = None if document is None else encode(document)
    assert shard_fold._fold_run(fold, before, events) == stored

"""What every object store does: one suite that all of them pass.

Subclass `StoreConformance` and give it the fixtures `store`, a fresh one, and `contention`, how much of it the server
behind it bears: some let those who lose a race for a key wait for a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from headwater.bucket.object_store import ObjectStore
from headwater.errors import Invalid, TooLarge

RESERVED = ".headwater/locks/00"


class Contention(NamedTuple):
    """How many contend, and how often."""

    threads: int
    races: int
    at_once: int  # of these races, each for a key of its own
    swaps: int


def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [each.key for each in store.list(prefix, after)]


def content(store: ObjectStore, key: str) -> bytes | None:
    found = store.get(key)
    return None if found is None else bytes(found.data)


def piece(store: ObjectStore, key: str, start: int, length: int) -> bytes | None:
    found = store.get_range(key, start, length)
    return None if found is None else bytes(found)


class StoreConformance:
    def test_an_object_is_there_with_its_bytes_and_its_version(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 1000
        version = store.create("a/b", data)
        found = store.get("a/b")
        assert found is not None
        assert bytes(found.data) == data
        assert found.version == version

    def test_an_empty_object_is_not_a_missing_one(self, store: ObjectStore) -> None:
        assert store.create("a", b"") is not None
        assert content(store, "a") == b""
        assert piece(store, "a", 0, 10) == b""
        assert content(store, "b") is None

    def test_nothing_is_found_in_an_empty_store(self, store: ObjectStore) -> None:
        assert store.get("a/b") is None
        assert store.get_range("a/b", 0, 1) is None
        assert keys(store) == keys(store, "a/") == []
        assert list(store.folders("")) == list(store.folders("a/")) == []
        store.delete(["a/b"])
        store.delete([])

    def test_create_leaves_what_is_there(self, store: ObjectStore) -> None:
        store.create("a", b"first")
        assert store.create("a", b"second") is None
        assert content(store, "a") == b"first"

    def test_a_deleted_key_is_free_again(self, store: ObjectStore) -> None:
        store.create("a", b"first")
        store.delete(["a", "never"])
        assert store.get("a") is None
        assert store.create("a", b"second") is not None

    def test_swap_replaces_only_what_was_seen(self, store: ObjectStore) -> None:
        first = store.create("a", b"1")
        assert first is not None
        second = store.swap("a", b"2", first)
        assert second not in (None, first)
        assert store.swap("a", b"3", first) is None
        assert content(store, "a") == b"2"
        found = store.get("a")
        assert found is not None
        assert found.version == second

    def test_swap_makes_nothing(self, store: ObjectStore) -> None:
        version = store.create("a", b"1")
        assert version is not None
        assert store.swap("b", b"2", version) is None
        store.delete(["a"])
        assert store.swap("a", b"2", version) is None
        assert keys(store) == []

    def test_put_replaces_whatever_is_there(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        found = store.get("a")
        assert found is not None
        store.put("a", b"22")
        assert content(store, "a") == b"22"
        assert store.swap("a", b"3", found.version) is None

    def test_one_of_many_who_create_a_key_at_once_wins(self, store: ObjectStore, contention: Contention) -> None:
        def race(number: int) -> None:
            start = threading.Barrier(contention.threads)

            def create(me: int) -> bool:
                start.wait()
                return store.create(f"race/{number}", b"%d" % me) is not None

            with ThreadPoolExecutor(contention.threads) as contenders:
                won = list(contenders.map(create, range(contention.threads)))
            assert won.count(True) == 1
            assert content(store, f"race/{number}") == b"%d" % won.index(True)

        with ThreadPoolExecutor(contention.at_once) as pool:
            list(pool.map(race, range(contention.races)))

    def test_no_swap_is_lost_when_many_count(self, store: ObjectStore, contention: Contention) -> None:
        store.create("counter", b"0")

        def count(_me: int) -> None:
            done = 0
            while done < contention.swaps:
                found = store.get("counter")
                assert found is not None
                done += store.swap("counter", b"%d" % (int(bytes(found.data)) + 1), found.version) is not None

        with ThreadPoolExecutor(contention.threads) as pool:
            list(pool.map(count, range(contention.threads)))
        assert content(store, "counter") == b"%d" % (contention.threads * contention.swaps)

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 10, b"0123456789"), (3, 4, b"3456"), (8, 10, b"89"), (10, 5, b""), (99, 5, b""), (3, 0, b"")],
    )
    def test_a_range_is_given_as_far_as_the_object_goes(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        store.put("a", b"0123456789")
        assert piece(store, "a", start, length) == expected
        assert store.get_range("b", start, length) is None

    def test_a_list_is_of_all_keys_that_begin_so_and_in_order_within_a_folder(self, store: ObjectStore) -> None:
        names = ["b", "a0", "a/10", "a/2", "a/1/x", "a-b", "ü/z", "a/%20 b"]
        for number, name in enumerate(names):
            store.put(name, b"x" * number)
        assert sorted(keys(store)) == sorted(names)
        assert [key for key in keys(store, "a/") if "x" not in key] == ["a/%20 b", "a/10", "a/2"]
        assert sorted(keys(store, "a")) == sorted(each for each in names if each.startswith("a"))
        assert keys(store, "a/1/") == ["a/1/x"]
        assert keys(store, "ü/") == ["ü/z"]
        assert keys(store, "a/2") == ["a/2"]
        assert keys(store, "a/3") == keys(store, "c/") == []
        sizes = {each.key: each.size for each in store.list("")}
        assert sizes == {name: number for number, name in enumerate(names)}

    def test_a_list_begins_behind_a_key_that_need_not_be_there(self, store: ObjectStore) -> None:
        for number in range(1, 6):
            store.put(f"e/{number:020d}", b"")
        store.put("f", b"")
        assert keys(store, "e/", f"e/{3:020d}") == [f"e/{4:020d}", f"e/{5:020d}"]
        store.delete([f"e/{3:020d}"])
        assert keys(store, "e/", f"e/{3:020d}") == [f"e/{4:020d}", f"e/{5:020d}"]
        assert keys(store, "e/", f"e/{5:020d}") == []

    def test_a_listed_object_tells_when_it_was_put(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        (listed,) = store.list("")
        assert abs(listed.modified - datetime.now(UTC)) < timedelta(seconds=10)

    def test_folders_are_the_next_parts_of_keys_that_go_on(self, store: ObjectStore) -> None:
        for key in ("a/b/c", "a/b/d", "a/e", "f/g", "a-b/c", "h"):
            store.put(key, b"")
        assert store.folders("") == ["a", "a-b", "f"]
        assert store.folders("a/") == ["b"]
        assert store.folders("a/b/") == store.folders("none/") == []

    def test_pieces_become_one_object(self, store: ObjectStore) -> None:
        assert store.put_pieces("small", (each for each in (b"ab", b"", b"c"))) == 3
        assert content(store, "small") == b"abc"
        assert store.put_pieces("empty", []) == 0
        assert content(store, "empty") == b""

    def test_many_pieces_become_one_object(self, store: ObjectStore) -> None:
        each = bytes(range(256)) * 4096
        assert store.put_pieces("large", (each for _ in range(19))) == 19 * len(each)
        assert content(store, "large") == each * 19
        assert piece(store, "large", len(each) - 1, 2) == each[-1:] + each[:1]

    @pytest.mark.parametrize("before", [1, 19])
    def test_nothing_is_put_if_a_piece_cannot_be_had(self, store: ObjectStore, before: int) -> None:
        def pieces() -> Iterator[bytes]:
            for _ in range(before):
                yield bytes(1 << 20)
            raise OSError("the source has failed")

        store.put("a", b"is there")
        with pytest.raises(OSError, match="the source has failed"):
            store.put_pieces("a", pieces())
        with pytest.raises(OSError, match="the source has failed"):
            store.put_pieces("b", pieces())
        assert content(store, "a") == b"is there"
        assert keys(store) == ["a"]

    def test_many_are_deleted_at_once(self, store: ObjectStore) -> None:
        names = [f"x/{number}" for number in range(30)]
        for name in names:
            store.put(name, b"")
        store.put("y", b"")
        store.delete(iter(names))
        assert keys(store) == ["y"]

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "..", "../a", "a/../../b", "./a", "a/.", "a\0b", ".headwater/x"]
    )
    def test_a_key_that_leaves_its_place_is_refused(self, store: ObjectStore, key: str) -> None:
        for verb in (store.get, lambda key: store.create(key, b""), lambda key: store.swap(key, b"", "v")):
            with pytest.raises(Invalid):
                verb(key)
        for change in (lambda: store.put(key, b""), lambda: store.put_pieces(key, [b""]), lambda: store.delete([key])):
            with pytest.raises(Invalid):
                change()
        if key and not key.endswith("/"):
            with pytest.raises(Invalid):
                keys(store, key + "/")
        assert keys(store) == []

    def test_a_key_that_is_too_long_is_refused(self, store: ObjectStore) -> None:
        assert store.create("x" * 255, b"") is not None
        for key in ("x" * 256, "ü" * 128, "/".join(["x" * 250] * 5)):
            with pytest.raises(TooLarge):
                store.create(key, b"")

    def test_closing_twice_is_fine(self, store: ObjectStore) -> None:
        store.close()
        store.close()

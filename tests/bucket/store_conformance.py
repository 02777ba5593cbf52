"""What every object store does: one suite that all of them pass.

Subclass `StoreConformance` and give it the fixtures `object_store`, an empty one, and `contention`: how many clients at
once the server behind it can bear, as some servers let those that lose a race for a key wait for a second.
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
    def test_an_object_is_there_with_its_bytes_and_its_version(self, object_store: ObjectStore) -> None:
        data = bytes(range(256)) * 1000
        version = object_store.create("a/b", data)
        found = object_store.get("a/b")
        assert found is not None
        assert bytes(found.data) == data
        assert found.version == version

    def test_an_empty_object_is_not_a_missing_one(self, object_store: ObjectStore) -> None:
        assert object_store.create("a", b"") is not None
        assert content(object_store, "a") == b""
        assert piece(object_store, "a", 0, 10) == b""
        assert content(object_store, "b") is None

    def test_nothing_is_found_in_an_empty_store(self, object_store: ObjectStore) -> None:
        assert object_store.get("a/b") is None
        assert object_store.get_range("a/b", 0, 1) is None
        assert keys(object_store) == keys(object_store, "a/") == []
        assert list(object_store.folders("")) == list(object_store.folders("a/")) == []
        object_store.delete(["a/b"])
        object_store.delete([])

    def test_create_leaves_what_is_there(self, object_store: ObjectStore) -> None:
        object_store.create("a", b"first")
        assert object_store.create("a", b"second") is None
        assert content(object_store, "a") == b"first"

    def test_a_deleted_key_is_free_again(self, object_store: ObjectStore) -> None:
        object_store.create("a", b"first")
        object_store.delete(["a", "never"])
        assert object_store.get("a") is None
        assert object_store.create("a", b"second") is not None

    def test_swap_replaces_only_what_was_seen(self, object_store: ObjectStore) -> None:
        first = object_store.create("a", b"1")
        assert first is not None
        second = object_store.swap("a", b"2", first)
        assert second not in (None, first)
        assert object_store.swap("a", b"3", first) is None
        assert content(object_store, "a") == b"2"
        found = object_store.get("a")
        assert found is not None
        assert found.version == second

    def test_swap_makes_nothing(self, object_store: ObjectStore) -> None:
        version = object_store.create("a", b"1")
        assert version is not None
        assert object_store.swap("b", b"2", version) is None
        object_store.delete(["a"])
        assert object_store.swap("a", b"2", version) is None
        assert keys(object_store) == []

    def test_put_replaces_whatever_is_there(self, object_store: ObjectStore) -> None:
        object_store.put("a", b"1")
        found = object_store.get("a")
        assert found is not None
        object_store.put("a", b"22")
        assert content(object_store, "a") == b"22"
        assert object_store.swap("a", b"3", found.version) is None

    def test_one_of_many_who_create_a_key_at_once_wins(self, object_store: ObjectStore, contention: Contention) -> None:
        def race(number: int) -> None:
            start = threading.Barrier(contention.threads)

            def create(me: int) -> bool:
                start.wait()
                return object_store.create(f"race/{number}", b"%d" % me) is not None

            with ThreadPoolExecutor(contention.threads) as contenders:
                won = list(contenders.map(create, range(contention.threads)))
            assert won.count(True) == 1
            assert content(object_store, f"race/{number}") == b"%d" % won.index(True)

        with ThreadPoolExecutor(contention.at_once) as pool:
            list(pool.map(race, range(contention.races)))

    def test_no_swap_is_lost_when_many_count(self, object_store: ObjectStore, contention: Contention) -> None:
        object_store.create("counter", b"0")

        def count(_me: int) -> None:
            done = 0
            while done < contention.swaps:
                found = object_store.get("counter")
                assert found is not None
                done += object_store.swap("counter", b"%d" % (int(bytes(found.data)) + 1), found.version) is not None

        with ThreadPoolExecutor(contention.threads) as pool:
            list(pool.map(count, range(contention.threads)))
        assert content(object_store, "counter") == b"%d" % (contention.threads * contention.swaps)

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 10, b"0123456789"), (3, 4, b"3456"), (8, 10, b"89"), (10, 5, b""), (99, 5, b""), (3, 0, b"")],
    )
    def test_a_range_is_given_as_far_as_the_object_goes(
        self, object_store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        object_store.put("a", b"0123456789")
        assert piece(object_store, "a", start, length) == expected
        assert object_store.get_range("b", start, length) is None

    def test_a_list_is_of_all_keys_that_begin_so_and_in_order_within_a_folder(self, object_store: ObjectStore) -> None:
        names = ["b", "a0", "a/10", "a/2", "a/1/x", "a-b", "ü/z", "a/%20 b"]
        for number, name in enumerate(names):
            object_store.put(name, b"x" * number)
        assert sorted(keys(object_store)) == sorted(names)
        assert [key for key in keys(object_store, "a/") if "x" not in key] == ["a/%20 b", "a/10", "a/2"]
        assert sorted(keys(object_store, "a")) == sorted(each for each in names if each.startswith("a"))
        assert keys(object_store, "a/1/") == ["a/1/x"]
        assert keys(object_store, "ü/") == ["ü/z"]
        assert keys(object_store, "a/2") == ["a/2"]
        assert keys(object_store, "a/3") == keys(object_store, "c/") == []
        sizes = {each.key: each.size for each in object_store.list("")}
        assert sizes == {name: number for number, name in enumerate(names)}

    def test_a_list_begins_behind_a_key_that_need_not_be_there(self, object_store: ObjectStore) -> None:
        for number in range(1, 6):
            object_store.put(f"e/{number:020d}", b"")
        object_store.put("f", b"")
        assert keys(object_store, "e/", f"e/{3:020d}") == [f"e/{4:020d}", f"e/{5:020d}"]
        object_store.delete([f"e/{3:020d}"])
        assert keys(object_store, "e/", f"e/{3:020d}") == [f"e/{4:020d}", f"e/{5:020d}"]
        assert keys(object_store, "e/", f"e/{5:020d}") == []

    def test_a_listed_object_tells_when_it_was_put(self, object_store: ObjectStore) -> None:
        object_store.put("a", b"1")
        (listed,) = object_store.list("")
        assert abs(listed.modified - datetime.now(UTC)) < timedelta(seconds=10)

    def test_folders_are_the_next_parts_of_keys_that_go_on(self, object_store: ObjectStore) -> None:
        for key in ("a/b/c", "a/b/d", "a/e", "f/g", "a-b/c", "h"):
            object_store.put(key, b"")
        assert object_store.folders("") == ["a", "a-b", "f"]
        assert object_store.folders("a/") == ["b"]
        assert object_store.folders("a/b/") == object_store.folders("none/") == []

    def test_pieces_become_one_object(self, object_store: ObjectStore) -> None:
        assert object_store.put_pieces("small", (each for each in (b"ab", b"", b"c"))) == 3
        assert content(object_store, "small") == b"abc"
        assert object_store.put_pieces("empty", []) == 0
        assert content(object_store, "empty") == b""

    def test_many_pieces_become_one_object(self, object_store: ObjectStore) -> None:
        each = bytes(range(256)) * 4096
        assert object_store.put_pieces("large", (each for _ in range(19))) == 19 * len(each)
        assert content(object_store, "large") == each * 19
        assert piece(object_store, "large", len(each) - 1, 2) == each[-1:] + each[:1]

    @pytest.mark.parametrize("before", [1, 19])
    def test_nothing_is_put_if_a_piece_cannot_be_had(self, object_store: ObjectStore, before: int) -> None:
        def pieces() -> Iterator[bytes]:
            for _ in range(before):
                yield bytes(1 << 20)
            raise OSError("the source has failed")

        object_store.put("a", b"is there")
        with pytest.raises(OSError, match="the source has failed"):
            object_store.put_pieces("a", pieces())
        with pytest.raises(OSError, match="the source has failed"):
            object_store.put_pieces("b", pieces())
        assert content(object_store, "a") == b"is there"
        assert keys(object_store) == ["a"]

    def test_many_are_deleted_at_once(self, object_store: ObjectStore) -> None:
        names = [f"x/{number}" for number in range(30)]
        for name in names:
            object_store.put(name, b"")
        object_store.put("y", b"")
        object_store.delete(iter(names))
        assert keys(object_store) == ["y"]

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "..", "../a", "a/../../b", "./a", "a/.", "a\0b", ".headwater/x"]
    )
    def test_a_key_that_leaves_its_place_is_refused(self, object_store: ObjectStore, key: str) -> None:
        for verb in (
            object_store.get,
            lambda key: object_store.create(key, b""),
            lambda key: object_store.swap(key, b"", "v"),
        ):
            with pytest.raises(Invalid):
                verb(key)
        for change in (
            lambda: object_store.put(key, b""),
            lambda: object_store.put_pieces(key, [b""]),
            lambda: object_store.delete([key]),
        ):
            with pytest.raises(Invalid):
                change()
        if key and not key.endswith("/"):
            with pytest.raises(Invalid):
                keys(object_store, key + "/")
        assert keys(object_store) == []

    def test_a_key_that_is_too_long_is_refused(self, object_store: ObjectStore) -> None:
        assert object_store.create("x" * 255, b"") is not None
        for key in ("x" * 256, "ü" * 128, "/".join(["x" * 250] * 5)):
            with pytest.raises(TooLarge):
                object_store.create(key, b"")

    def test_closing_twice_is_fine(self, object_store: ObjectStore) -> None:
        object_store.close()
        object_store.close()

"""Whatever is done to a store, it holds what a plain dict would; and no key leaves its place."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import RESERVED, ObjectStore, checked_key, checked_prefix
from headwater.bucket.opening import open_store
from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid
from tests.log.unsynced import UnsyncedDisk
from tests.servers import Seaweed

KEYS = ("a", "a-b", "b/1", "b/10", "b/2", "c/d/1", "c/d/2", "c/e")
keys = st.sampled_from(KEYS)
contents = st.binary(max_size=8)
steps = st.one_of(
    st.tuples(st.just("create"), keys, contents),
    st.tuples(st.just("put"), keys, contents),
    st.tuples(st.just("swap"), keys, contents),
    st.tuples(st.just("stale swap"), keys, contents),
    st.tuples(st.just("delete"), st.lists(keys)),
    st.tuples(st.just("range"), keys, st.integers(0, 40), st.integers(0, 10)),
    st.tuples(st.just("list"), st.sampled_from(("", "a", "b/", "b/1", "c/", "c/d/", "none/"))),
    st.tuples(st.just("list after"), st.sampled_from(("b/", "c/d/")), st.sampled_from("0123")),
)
work = st.lists(steps, max_size=25)


class Model:
    """A dict, and the last version of each key that was seen before its present one."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._held: dict[str, bytes] = {}
        self._stale: dict[str, str] = {}

    def take(self, step: tuple[Any, ...]) -> None:
        verb, *given = step
        getattr(self, f"_{verb.replace(' ', '_')}")(*given)

    def _create(self, key: str, data: bytes) -> None:
        data += uuid.uuid4().bytes
        assert (self._store.create(key, data) is not None) == (key not in self._held)
        self._held.setdefault(key, data)

    def _put(self, key: str, data: bytes) -> None:
        self._remember(key)
        self._held[key] = data + uuid.uuid4().bytes
        self._store.put(key, self._held[key])

    def _swap(self, key: str, data: bytes) -> None:
        data += uuid.uuid4().bytes
        found = self._store.get(key)
        assert (None if found is None else bytes(found.data)) == self._held.get(key)
        if found is not None:
            self._remember(key)
            assert self._store.swap(key, data, found.version) is not None
            self._held[key] = data

    def _stale_swap(self, key: str, data: bytes) -> None:
        if key in self._stale:
            assert self._store.swap(key, data, self._stale[key]) is None

    def _delete(self, names: list[str]) -> None:
        for key in names:
            self._remember(key)
            self._held.pop(key, None)
        self._store.delete(names)

    def _range(self, key: str, start: int, length: int) -> None:
        found = self._store.get_range(key, start, length)
        held = self._held.get(key)
        assert (None if found is None else bytes(found)) == (None if held is None else held[start : start + length])

    def _list(self, prefix: str) -> None:
        found = {each.key: each.size for each in self._store.list(prefix)}
        assert found == {key: len(data) for key, data in self._held.items() if key.startswith(prefix)}

    def _list_after(self, prefix: str, after: str) -> None:
        found = [each.key for each in self._store.list(prefix, prefix + after)]
        assert found == sorted(key for key in self._held if key.startswith(prefix) and key > prefix + after)

    def _remember(self, key: str) -> None:
        found = self._store.get(key)
        if found is not None:
            self._stale[key] = found.version


@given(work)
def test_a_directory_holds_what_a_dict_would(done: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as path:
        model = Model(DirectoryStore(Path(path), UnsyncedDisk(), Clock()))
        for step in done:
            model.take(step)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work)
def test_a_bucket_holds_what_a_dict_would(seaweed: Seaweed, done: list[tuple[Any, ...]]) -> None:
    model = Model(open_store(seaweed.url(uuid.uuid4().hex), clock=Clock(), disk=Disk()))
    for step in done:
        model.take(step)


parts = st.one_of(
    st.sampled_from(["", ".", "..", "a", "...", RESERVED, "~", "%2e%2e"]), st.text("ab./%\0ü", max_size=4)
)


@settings(max_examples=200)
@given(st.lists(parts, min_size=1, max_size=5).map("/".join))
def test_a_key_is_refused_or_stays_below_its_place(key: str) -> None:
    root = "/somewhere/deep"
    for check, given_key in ((checked_key, key), (checked_prefix, key)):
        try:
            accepted = check(given_key)
        except Invalid:
            continue
        path = os.path.normpath(f"{root}/{accepted}")
        assert path == f"{root}/{accepted}".rstrip("/")
        assert not path.startswith(f"{root}/{RESERVED}/")
        assert "\0" not in path

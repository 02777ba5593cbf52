"""What an engine remembers of producers and versions, when others append between: it is never out of date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headwater
from headwater.errors import Conflict
from headwater.store import Store


def transact(engine: Store) -> None:
    with engine.transaction() as tx:
        tx.append("t", b"a part")
        tx.append("other", b"another part")


def append_conditionally(engine: Store) -> None:
    engine.append("t", b"x", key=b"k", expected_version=0)


@pytest.mark.parametrize("meanwhile", [transact, append_conditionally])
def test_what_an_engine_commits_does_not_hide_the_requests_of_others(
    meanwhile: Callable[[Store], None], tmp_path: Path
) -> None:
    with headwater.open(tmp_path / "data") as mine, headwater.open(tmp_path / "data") as others:
        mine.append("t", b"x", key=b"k", expected_version="none")
        mine.append("t", b"1", producer=("p", 0, 1))
        first = others.append("t", b"2", producer=("p", 0, 2))
        meanwhile(mine)
        assert mine.append("t", b"2", producer=("p", 0, 2)) == first


@pytest.mark.parametrize("meanwhile", [transact, lambda engine: engine.append("t", b"x")])
def test_what_an_engine_commits_does_not_hide_the_versions_of_others(
    meanwhile: Callable[[Store], object], tmp_path: Path
) -> None:
    with headwater.open(tmp_path / "data") as mine, headwater.open(tmp_path / "data") as others:
        mine.append("t", b"x", key=b"k", expected_version="none")
        others.append("t", b"x", key=b"k")
        meanwhile(mine)
        with pytest.raises(Conflict) as caught:
            mine.append("t", b"lost update", key=b"k", expected_version=0)
        assert caught.value.version == 1
        assert mine.append("t", b"x", key=b"k", expected_version=1).offset == 3

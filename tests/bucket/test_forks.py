"""A forked child: what its parent opened is closed there, at once, and goes on in the parent."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.errors import HeadwaterError
from headwater.store import Store
from tests.log.children import Child, Said


def test_a_child_is_told_and_the_parent_goes_on(bucket: Store) -> None:
    bucket.append("t", b"0")
    waiting = bucket.append_later("t", b"1")
    consumer = bucket.consumer("c", "t")
    assert next(consumer).data == b"0"

    def use(_said: Said) -> list[str]:
        told = []
        calls: list[Any] = [
            lambda: bucket.append("t", b"x"),
            lambda: bucket.append_later("t", b"x"),
            lambda: list(bucket.read("t")),
            bucket.topics,
            bucket.flush,
        ]
        for call in calls:
            with pytest.raises(HeadwaterError) as caught:
                call()
            told.append(f"{caught.value.code}: {caught.value}")
        bucket.close()
        return told

    told = Child(use).result()
    assert all(each.startswith("closed: ") and "forked" in each for each in told)
    assert waiting.result(10).offset == 1
    assert next(consumer).data == b"1"
    consumer.close()
    assert bucket.append("t", b"2").offset == 2
    assert len(list(bucket.read("t"))) == 3

"""A table of DynamoDB as coordinator: its address, what is missing, and answers that get lost on the way."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import headwater
from headwater.consumers.coordinator import CursorRecord
from headwater.consumers.dynamodb import DynamoCoordinator
from headwater.disk.disk import Clock
from headwater.errors import Invalid, NotFound, Unavailable, Unsupported
from headwater.format.settings import TopicRecord
from tests.bucket.chaos import chaotic

TOPIC = TopicRecord(name="t", uuid=str(uuid4()), partitions=1)


def test_a_missing_table_is_told_with_the_command_that_makes_it(dynamodb: str, dynamodb_table: str) -> None:
    url = f"dynamodb://{dynamodb_table}?region=us-east-1&endpoint={dynamodb}"
    with pytest.raises(NotFound, match="aws dynamodb create-table --table-name headwater-") as refused:
        DynamoCoordinator(url, Clock())
    assert refused.value.code == "table_not_found"
    DynamoCoordinator(url + "&create=true", Clock()).close()
    DynamoCoordinator(url, Clock()).close()


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://key:secret@table?region=us-east-1",
        "dynamodb://table/more?region=us-east-1",
        "dynamodb://table?regoin=us-east-1",
        "dynamodb://table?region=a&region=b",
        "dynamodb://table?region=us-east-1&endpoint=localhost:8000",
        "dynamodb://table?region=us-east-1&endpoint=http://dynamodb.example.com",
        "dynamodb://[::1?region=us-east-1",
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(Invalid):
        DynamoCoordinator(url, Clock())


def test_another_kind_of_coordinator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="not a coordinator"):
        headwater.open(f"objects://{tmp_path}/objects", coordinator="zookeeper://host")


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        DynamoCoordinator("dynamodb://table?region=us-east-1&endpoint=http://127.0.0.1:9", Clock())


def test_answers_that_get_lost_lose_no_commit_and_make_none_twice(dynamodb: str, dynamodb_table: str) -> None:
    with chaotic(dynamodb, seed=3, requests=0.0, answers=0.0) as proxy:
        url = f"dynamodb://{dynamodb_table}?region=us-east-1&endpoint={proxy.endpoint}&create=true"
        coordinator = DynamoCoordinator(url, Clock())
        cursors = coordinator.consumer(TOPIC, "c")
        cursors.create(0, CursorRecord(cursor=0))
        proxy.answers = 0.1
        kept = cursors.read(0)
        assert kept is not None
        version, record = kept.version, kept.record
        for number in range(1, 31):
            record = CursorRecord(cursor=number, fence=1, owner="me", lease_ms=1000, beat=number)
            swapped = cursors.swap(0, record, version)
            assert swapped is not None, "its own write was taken for somebody else's"
            assert cursors.swap(0, record, version) is None  # what was seen before is not there any more
            version = swapped
        assert proxy.lost_answers > 0
        proxy.answers = 0.0
        assert cursors.read(0) == (record, version)
        coordinator.close()


def test_under_one_fence_the_offset_only_grows(dynamodb: str, dynamodb_table: str) -> None:
    url = f"dynamodb://{dynamodb_table}?region=us-east-1&endpoint={dynamodb}&create=true"
    coordinator = DynamoCoordinator(url, Clock())
    cursors = coordinator.consumer(TOPIC, "c")
    cursors.create(0, CursorRecord(cursor=5, fence=2))
    cursors.create(0, CursorRecord(cursor=0))  # somebody else was first
    kept = cursors.read(0)
    assert kept is not None
    assert kept.record == CursorRecord(cursor=5, fence=2)
    assert cursors.swap(0, CursorRecord(cursor=4, fence=2), kept.version) is None
    assert cursors.swap(0, CursorRecord(cursor=9, fence=1), kept.version) is None
    assert cursors.swap(0, CursorRecord(cursor=4, fence=3), kept.version) is not None
    coordinator.close()

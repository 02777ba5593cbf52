"""`headwater.open` with the address of a bucket: what it takes, what it refuses, and what it finds there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import Invalid, NotFound, Unsupported
from headwater.store import Store


@pytest.fixture
def bucket_url(tmp_path: Path) -> str:
    return f"objects://{tmp_path}/bucket"


def test_a_bucket_is_opened_with_the_verbs_of_a_log(bucket_url: str) -> None:
    with headwater.open(bucket_url) as hw:
        assert isinstance(hw, Store)
        assert hw.address == bucket_url
        ref = hw.append("orders", {"total": 12}, type="placed", key="o-17")
        uuid = hw.uuid
    with headwater.open(bucket_url, mode="existing", linger_ms=5) as again:
        assert [event.id for event in again.read("orders")] == [ref.id]
        assert again.uuid == uuid


def test_what_is_not_a_log_is_not_found_and_nothing_is_made(bucket_url: str) -> None:
    with pytest.raises(NotFound) as caught:
        headwater.open(bucket_url, mode="existing")
    assert caught.value.code == "not_a_log"
    with headwater.open(bucket_url) as hw:
        assert hw.topics() == []


def test_a_place_that_holds_other_things_is_refused(bucket_url: str, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "holiday.jpg").write_bytes(b"")
    with pytest.raises(Invalid) as caught:
        headwater.open(bucket_url)
    assert caught.value.code == "not_a_log"
    assert "holiday.jpg" in str(caught.value)


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("{bucket}", {"token": "secret"}),
        ("{bucket}", {"timeout": 5.0}),
        ("{directory}", {"coordinator": "dynamodb://table"}),
        ("http://127.0.0.1:1", {"coordinator": "dynamodb://table"}),
        ("objects://relative/path", {}),
        ("s3:///no-bucket", {}),
        ("s3://key:secret@bucket/prefix", {}),
    ],
)
def test_options_that_are_for_another_place_are_invalid(
    address: str, options: dict[str, Any], bucket_url: str, tmp_path: Path
) -> None:
    with pytest.raises(Invalid) as caught:
        headwater.open(address.format(bucket=bucket_url, directory=tmp_path / "data"), **options)
    assert caught.value.hint
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["gs://bucket/prefix", "ftp://host/"])
def test_other_stores_are_unsupported(address: str) -> None:
    with pytest.raises(Unsupported, match="not supported") as caught:
        headwater.open(address)
    assert "s3://" in caught.value.hint


def test_an_unknown_coordinator_is_unsupported(bucket_url: str) -> None:
    with pytest.raises(Unsupported) as caught:
        headwater.open(bucket_url, coordinator="redis://host")
    assert "dynamodb://" in caught.value.hint

"""Addresses of stores, and what is told of those that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headwater.bucket import opening
from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore
from headwater.bucket.opening import open_store
from headwater.disk.disk import Clock, Disk
from headwater.errors import Denied, HeadwaterError, Invalid, NotFound, Unsupported
from headwater.limits import Limits
from tests.servers import Seaweed


def opened(url: str) -> ObjectStore:
    return open_store(url, clock=Clock(), disk=Disk(), limits=Limits(store_retry_s=0.2))


def test_a_directory_is_named_by_its_path_as_it_is(tmp_path: Path) -> None:
    store = opened(f"objects://{tmp_path}/a b?c#d%20")
    assert isinstance(store, DirectoryStore)
    store.put("x", b"")
    assert (tmp_path / "a b?c#d%20" / "x").exists()


@pytest.mark.parametrize(
    ("url", "error", "code"),
    [
        ("objects://relative", Invalid, "invalid"),
        ("s3://", Invalid, "invalid"),
        ("s3:///prefix", Invalid, "invalid"),
        ("s3://host:9000/x", Invalid, "invalid"),
        ("s3://[x", Invalid, "invalid"),
        ("s3://b/x#y", Invalid, "invalid"),
        ("s3://b/a/../c", Invalid, "invalid"),
        ("s3://b?region=a&region=b", Invalid, "invalid"),
        ("s3://b?endpoint=host:9000", Invalid, "invalid"),
        ("s3://b?endpoint=http://[", Invalid, "invalid"),
        ("s3://b?endpoint=http://host:9000", Invalid, "plain_http"),
        ("s3://b?endpoint=http://host:9000&allow_http=1", Invalid, "plain_http"),
        ("gs://bucket", Unsupported, "unknown_store"),
        ("a/directory", Unsupported, "unknown_store"),
    ],
)
def test_an_address_that_is_wrong_is_refused_with_a_hint(url: str, error: type[HeadwaterError], code: str) -> None:
    with pytest.raises(error) as refused:
        opened(url)
    assert refused.value.code == code
    assert refused.value.hint


@pytest.mark.parametrize(
    "url",
    ["s3://me:secret@bucket/x", "s3://b?secret_access_key=secret", "s3://b?endpoint=https://me:secret@host"],
)
def test_credentials_in_an_address_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        opened(url)
    assert "secret" not in str(refused.value).replace("secret_access_key", "")


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://host", "http://host&allow_http=true"],
)
def test_plain_http_is_for_this_machine_or_asked_for(endpoint: str) -> None:
    assert opened(f"s3://bucket/prefix/?endpoint={endpoint}").url.startswith("s3://bucket/prefix?endpoint=http")


def test_an_endpoint_of_the_environment_obeys_the_same_rule(monkeypatch: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://host:1")
    with pytest.raises(Invalid):
        opened("s3://test/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", seaweed.endpoint)
    assert opened("s3://test/x").get("y") is None


def test_without_the_extra_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "headwater.bucket.s3_store", raising=False)
    with pytest.raises(Unsupported, match=r"pip install headwater\[bucket\]"):
        opened("s3://bucket")


def test_a_bucket_that_is_not_there_is_named(seaweed: Seaweed) -> None:
    store = opened(f"s3://no-such-bucket/x?endpoint={seaweed.endpoint}")
    with pytest.raises(NotFound, match="s3://no-such-bucket/x") as missing:
        store.get("key")
    assert missing.value.code == "bucket_not_found"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_told_at_once(monkeypatch: pytest.MonkeyPatch, s3_url: str, name: str) -> None:
    monkeypatch.setenv(name, "wrong")
    store = opened(s3_url)
    for verb in (lambda: store.get("a"), lambda: store.create("a", b""), lambda: list(store.list(""))):
        with pytest.raises(Denied, match=name):
            verb()


@pytest.mark.parametrize(
    ("endpoint", "unsigned"),
    [
        ("", True),
        ("endpoint=https://host:9000", True),
        ("endpoint=http://127.0.0.1:9000", True),
        ("endpoint=http://[::1]:9000", True),
        ("endpoint=http://localhost:9000", True),
        ("endpoint=http://host:9000&allow_http=true", False),
    ],
)
def test_bytes_are_signed_where_somebody_could_change_them(
    endpoint: str, unsigned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in opening.ENDPOINT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    parts = opening._split(f"s3://bucket/prefix?{endpoint}")
    assert opening._options(parts)["unsigned_payload"] is unsigned

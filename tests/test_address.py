"""What an address names, and which options the environment gives for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater import address, environment
from headwater.errors import Invalid, Unsupported


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HEADWATER_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("data", "directory"),
        ("/var/lib/headwater", "directory"),
        ("s3://bucket/prefix", "bucket"),
        ("objects:///mnt/log", "bucket"),
        ("http://host:7450", "server"),
        ("https://host", "server"),
    ],
)
def test_the_scheme_says_what_kind_of_place_it_is(text: str, kind: str) -> None:
    assert address.kind_of(text) == kind
    assert (address.is_directory(text), address.is_bucket(text), address.is_server(text)) == (
        kind == "directory",
        kind == "bucket",
        kind == "server",
    )


@pytest.mark.parametrize("text", ["ftp://host", "headwater://host:7451", "headwaters://host", "gs://bucket"])
def test_another_scheme_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(Unsupported, match=r"http://host:7450|https://host:7450"):
        address.kind_of(text)


def test_only_the_path_of_a_directory_is_made_absolute() -> None:
    assert address.absolute("data") == str(Path.cwd() / "data")
    assert address.absolute("s3://bucket") == "s3://bucket"


def test_a_server_gets_credentials_a_bucket_its_coordinator_a_directory_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWATER_TOKEN", " secret ")
    monkeypatch.setenv("HEADWATER_TLS_CA", "ca.pem")
    monkeypatch.setenv("HEADWATER_COORDINATOR", "dynamodb://leases")
    assert environment.open_options("https://host") == {"token": "secret", "tls_ca": "ca.pem"}
    assert environment.open_options("s3://bucket") == {"coordinator": "dynamodb://leases"}
    assert environment.open_options("data") == {}


def test_what_is_given_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWATER_TOKEN", "of the environment")
    monkeypatch.setenv("HEADWATER_TLS_CA", "ca.pem")
    (tmp_path / "token").write_text("of-the-file\nrest\n")
    given = {"token_file": str(tmp_path / "token"), "tls_ca": "other.pem"}
    assert environment.open_options("https://host", given) == {"token": "of-the-file", "tls_ca": "other.pem"}


def test_a_user_needs_a_password_and_a_token_file_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWATER_USER", "ann:pass:word")
    assert environment.open_options("http://host") == {"user": ("ann", "pass:word")}
    monkeypatch.setenv("HEADWATER_USER", "ann")
    with pytest.raises(Invalid, match="HEADWATER_USER has no password"):
        environment.open_options("http://host")
    (tmp_path / "token").write_text("\n")
    for path in (tmp_path / "token", tmp_path / "none"):
        with pytest.raises(Invalid, match="token"):
            environment.open_options("http://host", {"token_file": str(path)})


def test_workers_find_the_same_options_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "TLS_CA"):
        monkeypatch.setenv(f"HEADWATER_{name}", "")  # so that it is restored after the test
    options = {"user": ("ann", "secret"), "tls_ca": "ca.pem"}
    environment.export_options(options)
    assert environment.open_options("https://host") == options

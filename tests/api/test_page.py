"""What docs/CLIENT.md shows runs against a real server, and docs/BACKENDS.md says what each backend lacks."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.backend import Backend
from headwater.errors import Unsupported
from headwater.store import Store
from tests import backends
from tests.server.serving import Server
from tests.test_docs import ROOT, Block, python_blocks

PAGE = (ROOT / "docs" / "CLIENT.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", python_blocks(PAGE))
def test_block_runs(block: Block, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.code.replace("http://127.0.0.1:7450", server.url), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    assert "40" in capsys.readouterr().out or "payments" in block.code


def test_the_table_of_backends_is_made_from_what_they_lack() -> None:
    page = backends.PAGE.read_text(encoding="utf-8")
    assert backends.written(page) == page, "run python -m tests.backends"


@pytest.fixture(params=["directory", "bucket", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Store]:
    addresses = {"directory": f"{tmp_path}/data", "bucket": f"objects://{tmp_path}/bucket", "server": server.url}
    with headwater.open(addresses[request.param]) as opened:
        yield opened


ARGUMENTS: dict[str, Any] = {"topic": "t", "name": "n", "data": b"", "key": "k"}


def test_open_returns_a_store_whose_missing_verbs_raise_unsupported(opened: Store) -> None:
    assert type(opened) is Store
    lacks = opened.backend.lacks
    assert set(lacks) <= {*backends.verbs()}
    for verb in backends.verbs():
        assert opened.can(verb) == (verb not in lacks)
        if verb in lacks:
            parameters = inspect.signature(getattr(opened, verb)).parameters.values()
            needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            with pytest.raises(Unsupported) as error:
                getattr(opened, verb)(*(ARGUMENTS[name] for name in needed))
            assert (error.value.code, error.value.hint) == ("verb_unsupported", lacks[verb].hint)


def test_a_backend_is_a_small_protocol() -> None:
    methods = [name for name, value in vars(Backend).items() if inspect.isfunction(value) and name[0] != "_"]
    assert len(methods) <= 20


def test_a_store_that_is_no_directory_says_so(opened: Store) -> None:
    if opened.backend.kind == "directory":
        assert opened.path == opened.directory.path
        return
    with pytest.raises(Unsupported) as error:
        opened.directory  # noqa: B018
    assert error.value.code == "verb_unsupported"

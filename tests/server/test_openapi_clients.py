"""The OpenAPI document in the hands of others: a linter finds nothing, and clients that are generated from it work.

The tools are fetched into build/, by npm, pip, Maven and Go; what cannot be fetched is skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headwater.server.http import openapi
from tests.server import people
from tests.server.process import http, served

pytestmark = pytest.mark.torture

TOOLS = Path(__file__).parent.parent.parent / "build" / "openapi"
REDOCLY = "2.77.0"
PYTHON_CLIENT = "0.29.1"
GENERATOR = "7.16.0"
FETCH_S = 600

EXPECTED = {
    "created": True,
    "offsets": [0, 1],
    "data": [{"total": 12}, {"total": 30}],
    "keys": ["o-17", None],
    "types": ["placed", "paid"],
    "committed": 2,
    "version": 2,
}
PYTHON = """
import json, sys
from headwater_api import AuthenticatedClient
from headwater_api.api.default import appending_append, reading_read, topics_create, topics_version, transactions_commit
from headwater_api.models import AppendLine, ReadingReadFormat, TransactionRequest

with AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2]) as client:
    created = topics_create.sync("orders", client=client)
    offsets = [
        appending_append.sync("orders", client=client, body={"total": 12}, key="o-17", type_="placed"),
        appending_append.sync("orders", client=client, body={"total": 30}, type_="paid"),
    ]
    lines = [line.to_dict() for line in reading_read.sync("orders", client=client, format_=ReadingReadFormat.JSON)]
    request = TransactionRequest(appends=[AppendLine(topic="orders", data={"total": 1}, key="o-17")])
    (ref,) = transactions_commit.sync(client=client, body=request).refs
    version = topics_version.sync("orders", client=client, key="o-17")
told = {"created": created, "offsets": offsets, "committed": ref.offset, "version": version}
told |= {name: [line.get(field) for line in lines] for name, field in
         (("data", "data"), ("keys", "key"), ("types", "type"))}
print(json.dumps(told))
"""
GO = """
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	headwater "example.com/headwater"
)

func must[T any](found T, _ any, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

func main() {
	configuration := headwater.NewConfiguration()
	configuration.Servers = headwater.ServerConfigurations{{URL: os.Args[1]}}
	api := headwater.NewAPIClient(configuration).DefaultAPI
	ctx := context.WithValue(context.Background(), headwater.ContextAccessToken, os.Args[2])

	told := map[string]any{"created": must(api.TopicsCreate(ctx, "orders").Execute())}
	first := must(api.AppendingAppend(ctx, "orders").Key("o-17").Type_("placed").
		Body(map[string]any{"total": 12}).Execute())
	second := must(api.AppendingAppend(ctx, "orders").Type_("paid").Body(map[string]any{"total": 30}).Execute())
	told["offsets"] = []any{first, second}
	var data, keys, types []any
	for _, line := range must(api.ReadingRead(ctx, "orders").Execute()) {
		data, keys, types = append(data, line.Data), append(keys, line.Key.Get()), append(types, line.GetType())
	}
	told["data"], told["keys"], told["types"] = data, keys, types
	event := headwater.NewAppendLine()
	event.SetTopic("orders")
	event.SetKey("o-17")
	event.SetData(map[string]any{"total": 1})
	request := headwater.NewTransactionRequest()
	request.SetAppends([]headwater.AppendLine{*event})
	told["committed"] = must(api.TransactionsCommit(ctx).TransactionRequest(*request).Execute()).Refs[0].Offset
	told["version"] = must(api.TopicsVersion(ctx, "orders").Key("o-17").Execute())
	printed, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(printed))
}
"""


class Guarded(NamedTuple):
    """A server with users, the token of one, and the file of its document."""

    url: str
    token: str
    document: Path


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    token = people.add(tmp_path / "users.json", "ann", token=True)
    with served(tmp_path / "data", "--auth", str(tmp_path / "users.json")) as server:
        document = tmp_path / "openapi.json"
        document.write_bytes(http.get(f"{server.url}/openapi.json").raise_for_status().content)
        yield Guarded(server.url, token, document)


def attempt(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [*map(str, command)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=FETCH_S, check=False)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program prints; it must end well."""
    ran = attempt(*command, cwd=cwd)
    assert ran.returncode == 0, f"{command}: {ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def fetch(name: str, *commands: tuple[str | Path, ...]) -> Path:
    """A directory of build/openapi that commands fill, the first time."""
    place = TOOLS / name
    if not (place / ".whole").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for command in commands:
            ran = attempt(*command, cwd=place)
            if ran.returncode:
                pytest.skip(f"{name} cannot be fetched: {ran.stderr[-300:]}")
        (place / ".whole").touch()
    return place


def generator() -> Path:
    """The program openapi-generator, which its package on PyPI carries."""
    needed("java")
    package = f"openapi-generator-cli=={GENERATOR}"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", ".", package)
    return fetch(f"openapi-generator-{GENERATOR}", install) / "openapi_generator_cli" / "openapi-generator.jar"


def generate(document: Path, out: Path, language: str, *options: str) -> None:
    run("java", "-jar", generator(), "generate", "-g", language, "-i", document, "-o", out, *options)


@pytest.mark.parametrize("authenticates", [True, False])
def test_the_linter_of_redocly_finds_nothing(tmp_path: Path, authenticates: bool) -> None:
    needed("npm", "node")
    install = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", f"@redocly/cli@{REDOCLY}")
    program = fetch(f"redocly-{REDOCLY}", install) / "node_modules" / ".bin" / "redocly"
    document = tmp_path / "openapi.json"
    document.write_bytes(openapi.encoded(authenticates))
    found = json.loads(run(program, "lint", "--format=json", document, cwd=tmp_path))
    assert found["problems"] == []
    assert found["totals"] == {"errors": 0, "warnings": 0, "ignored": 0}


def test_a_client_of_openapi_python_client_appends_and_reads(guarded: Guarded, tmp_path: Path) -> None:
    python = Path("bin") / "python"
    make = (sys.executable, "-m", "venv", ".")
    install = (python, "-m", "pip", "install", "--quiet", f"openapi-python-client=={PYTHON_CLIENT}")
    tools = fetch(f"openapi-python-client-{PYTHON_CLIENT}", make, install)
    out = tmp_path / "headwater_api"
    command = (tools / "bin" / "openapi-python-client", "generate", "--path", guarded.document)
    run(*command, "--output-path", out, "--meta", "none")
    told: Any = json.loads(run(tools / python, "-c", PYTHON, guarded.url, guarded.token, cwd=tmp_path))
    assert told == EXPECTED


def test_a_client_in_go_compiles_appends_and_reads(guarded: Guarded, tmp_path: Path) -> None:
    needed("go")
    out = tmp_path / "client"
    named = ("--git-host", "example.com", "--git-user-id", "headwater", "--git-repo-id", "headwater")
    generate(guarded.document, out, "go", "--additional-properties=packageName=headwater,withGoMod=false", *named)
    shutil.rmtree(out / "test")  # what is generated there has the names of the generator's own examples
    (out / "go.mod").write_text("module example.com/headwater\n\ngo 1.21\n", encoding="utf-8")
    (out / "try").mkdir()
    (out / "try" / "main.go").write_text(GO, encoding="utf-8")
    fetched = attempt("go", "mod", "tidy", cwd=out)
    if fetched.returncode:
        pytest.skip(f"the modules cannot be fetched: {fetched.stderr[-300:]}")
    run("go", "vet", "./...", cwd=out)
    told: Any = json.loads(run("go", "run", "./try", guarded.url, guarded.token, cwd=out))
    assert told == EXPECTED


def test_a_client_in_java_compiles(guarded: Guarded, tmp_path: Path) -> None:
    needed("mvn", "javac")
    out = tmp_path / "client"
    generate(guarded.document, out, "java")
    maven = ("mvn", "--batch-mode", "--quiet", f"-Dmaven.repo.local={TOOLS / 'maven'}")
    fetched = attempt(*maven, "dependency:go-offline", "-DincludeScope=compile", cwd=out)
    if fetched.returncode:
        pytest.skip(f"what it needs cannot be fetched: {fetched.stdout[-300:]}")
    run(*maven, "-DskipTests", "-Dmaven.test.skip=true", "compile", cwd=out)
    assert list((out / "target" / "classes").rglob("TransactionRequest.class"))

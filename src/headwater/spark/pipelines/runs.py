"""The state of a pipeline between its runs: its plan, its progress, and its lock. Needs no Spark.

Each has a directory: `lock`, held by the running process; `plan.json`, with which a killed run is resumed; a
`checkpoint-…` of Spark's for streams; and `status.json`, which is for people: nothing depends on it. Beside a log in a
directory they are in `pipelines/`; else wherever the user keeps them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from headwater.address import is_directory
from headwater.disk.disk import Clock, Disk, is_locked, locked
from headwater.errors import Conflict, Corrupt, Invalid, Unavailable
from headwater.format import names
from headwater.views.pipeline import Pipeline

T = TypeVar("T")

TELL_S = 1.0  # between two notes of the progress
PLACE = "pipelines"  # below the directory of a log

Ends = dict[str, dict[int, int]]
"""The next offset of each partition of each topic."""


class RunPlan(msgspec.Struct, frozen=True):
    """What a run does. `declared` is what its pipeline said of itself; `ends` and `events` tell what a batch reads."""

    run: str
    declared: dict[str, Any]
    ends: Ends = {}
    events: int = 0
    done: bool = False


class Status(msgspec.Struct):
    """The state of a pipeline. Counts are those of its last or current run; times are ISO 8601."""

    name: str
    mode: Literal["batch", "stream"]
    topics: list[str]
    to: str
    state: Literal["running", "idle", "failed", "interrupted"] = "idle"
    began: str | None = None
    ended: str | None = None
    seconds: float = 0.0
    events: int = 0
    rows: int = 0
    rate: float = 0.0
    batches: int = 0
    tasks: tuple[int, int] = (0, 0)
    reached: Ends = {}
    error: str | None = None
    pid: int = 0
    lag: int | None = None


class Notebook:
    """The directory of one pipeline. For one thread, but for `tell`, which any may call."""

    def __init__(self, root: Path, pipeline: str, disk: Disk | None = None) -> None:
        self.path = root / names.directory_of(pipeline)
        self._name = pipeline
        self._disk = disk or Disk()
        self._told_s = 0.0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the pipeline's lock; raises Unavailable at once if another process holds it."""
        for directory in (self.path.parent.parent, self.path.parent, self.path):
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(directory)
                self._disk.sync_directory(directory.parent)
        try:
            with locked(self.path / "lock", self._disk, Clock(), 0.0):
                self._sweep()
                yield
        except Unavailable as error:
            if error.code != "locked":
                raise
            raise Unavailable(
                f"pipeline {self._name!r} is already running in another process",
                hint="'headwater pipeline status' shows its progress",
                code="pipeline_running",
            ) from None

    def _sweep(self) -> None:
        """Remove temporary files of killed processes."""
        for name in self._disk.names(self.path):
            if name.endswith(".tmp"):
                self._disk.unlink(self.path / name)

    def is_held(self) -> bool:
        """Return whether a process runs it now."""
        try:
            fd = self._disk.open_write(self.path / "lock")
        except OSError:
            return False
        return is_locked(fd, self._disk)

    def plan(self) -> RunPlan | None:
        """Return the plan of the last run."""
        return self._read("plan.json", RunPlan)

    def keep(self, plan: RunPlan) -> None:
        """Remember what a run does, durably."""
        self._disk.replace(self.path / "plan.json", msgspec.json.encode(plan))

    def checkpoint(self, plan: RunPlan) -> Path:
        """Return where Spark keeps what it knows of a stream; those of other runs are removed."""
        found = f"checkpoint-{plan.run}"
        for name in self._disk.names(self.path):
            if name.startswith("checkpoint-") and name != found:
                self._disk.remove_tree(self.path / name)
        return self.path / found

    def tell(self, status: Status, *, now: bool = True) -> None:
        """Write down how it is; without `now`, only if the last time is a second ago."""
        moment = time.monotonic()
        if now or moment - self._told_s >= TELL_S:
            self._told_s = moment
            self._disk.replace(self.path / "status.json", msgspec.json.encode(status), sync=now)

    def status(self) -> Status | None:
        """Return its last status; `interrupted` if its process is gone. None if it never ran."""
        found = self._read("status.json", Status)
        if found is not None and found.state == "running" and not self.is_held():
            found = self._read("status.json", Status) or found  # it may have ended between the two looks
            if found.state == "running":
                found.state = "interrupted"
        return found

    def _read(self, name: str, type: type[T]) -> T | None:
        path = self.path / name
        try:
            return msgspec.json.decode(self._disk.read_file(path), type=type)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            hint = "delete the directory of this pipeline, and run it with --fresh"
            raise Corrupt(f"{path} cannot be read: {error}", hint=hint, path=str(path)) from error


def new_plan(pipeline: Pipeline, ends: Ends | None = None, events: int = 0) -> RunPlan:
    """Return one with a name that no other has."""
    return RunPlan(Clock.random_bytes(8).hex(), pipeline.declared(), ends or {}, events)


def between(starts: Ends, ends: Ends) -> int:
    """Return how many offsets there are; all of what one of them does not have."""
    return sum(
        max(0, end - starts.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


def check_same(plan: RunPlan, pipeline: Pipeline) -> None:
    """Raise Conflict if a stream that was begun would go on as another one."""
    now = pipeline.declared()
    changed = [name for name in now if now[name] != plan.declared.get(name)]
    if changed:
        raise Conflict(
            f"pipeline {pipeline.name!r} ran before with another {', '.join(changed)}",
            hint="start over with --fresh, or give it another name",
            code="pipeline_changed",
        )


def root_of(address: str, checkpoints: str | os.PathLike[str] | None) -> Path:
    """Return where what is known of the pipelines of a log is kept. Raises Invalid if that must be said."""
    if checkpoints is not None:
        return Path(checkpoints).absolute()
    if not is_directory(address):
        raise Invalid(
            f"{address} is not a directory, so checkpoints need a directory of their own",
            hint="--checkpoints DIRECTORY",
            code="no_checkpoints",
        )
    return Path(address).absolute() / PLACE


def statuses(root: Path) -> list[Status]:
    """Return how all pipelines are that have run, by name; empty if there are none."""
    found = []
    for name in Disk().names(root):
        notebook = Notebook(root, "")
        notebook.path = root / name
        status = notebook.status()
        if status is not None:
            found.append(status)
    return sorted(found, key=lambda each: each.name)


def moment() -> str:
    """Now, as it is written in a status."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

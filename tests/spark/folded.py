"""What a rebuilt binder is compared by, and folding as workers do it, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headwater.event import Event
from headwater.spark.folding.shard_fold import fold_shard
from headwater.spark.folding.sharding import plan
from headwater.store import Store
from headwater.views import database, rebuild
from headwater.views.app import App
from headwater.views.files import Files
from headwater.views.shards import ProjectionRange, Shard

OF_A_MOMENT = ("changed_ms", "rate")


def everything(hw: Store, binder: str) -> dict[str, Any]:
    """All that the file of a binder holds, but when it was made and in which order."""
    with contextlib.closing(database.connect(Files.of(hw).current(binder))) as connection:
        found: dict[str, Any] = {"indexes": database.indexes(connection)}
        columns = ", ".join(("id", "version", "data", *map(database.column, found["indexes"])))
        found["documents"] = connection.execute(f"SELECT {columns} FROM documents ORDER BY id").fetchall()
        found["cursors"] = connection.execute("SELECT * FROM cursors ORDER BY 1, 2").fetchall()
        rows = connection.execute("SELECT * FROM quarantined ORDER BY 1, 2, 3").fetchall()
        found["quarantined"] = [(*row[:3], _lasting(row[3])) for row in rows]
        cursor = connection.execute("SELECT * FROM projections ORDER BY name")
        names = [each[0] for each in cursor.description]
        found["projections"] = [
            {name: value for name, value in zip(names, row, strict=True) if name not in OF_A_MOMENT} for row in cursor
        ]
    for row in found["projections"]:
        row["error"] = row["error"] and _lasting(row["error"])
    return found


def _lasting(error: str) -> dict[str, Any]:
    """An error without the time when it was raised."""
    told: dict[str, Any] = msgspec.json.decode(error)
    del told["time"]
    return told


class InThisProcess:
    """Folds as Spark's workers do, one shard after the other."""

    def __init__(self, hw: Store, app: App, binder: str, cores: int = 3) -> None:
        self.hw = hw
        self.projections = app.of_binder(binder)
        self.cores = cores
        self.calls: list[bool] = []

    def fold(
        self,
        spans: Sequence[ProjectionRange],
        fields: Sequence[str],
        beside: Path,
        progress: rebuild.Progress,
        *,
        by_partition: bool,
    ) -> list[Shard]:
        self.calls.append(by_partition)
        places = {each.name: place for place, each in enumerate(self.projections)}
        tasks = plan(spans, places, self.cores, by_partition=by_partition)
        found = []
        for task in tasks:
            file = beside.with_name(f"{beside.stem}.{len(self.calls)}-{task.number}.tmp")
            found.append(fold_shard(self.hw, self.projections, task, fields, file, lambda _: None))
            progress(task.number + 1, len(tasks))
        return found


def both(hw: Store, app: App, binder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A binder as it is rebuilt event after event, and by shards."""
    fields = app.binders[binder].indexes
    one = rebuild.rebuild(hw, app.of_binder(binder), indexes=fields)
    first = everything(hw, binder)
    other = rebuild.rebuild(hw, app.of_binder(binder), indexes=fields, elsewhere=InThisProcess(hw, app, binder))
    assert one == other
    return first, everything(hw, binder)


def nothing(_doc: Any, _event: Event) -> None:
    """A fold that deletes."""

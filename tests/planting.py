"""Events as they were stored before their content was checked: planted below the check, as no verb stores them now."""

from __future__ import annotations

from typing import Any

from headwater.event import Content
from headwater.format.batch import DATA, TYPE
from headwater.format.column import Column
from headwater.requests import Append, AppendMany


def plant(
    hw: Any, topic: str, *data: bytes, content: Content = "json", type: str = "", partition: int | None = None
) -> None:
    """Append data to a directory or a bucket, whatever its content says; several as one batch."""
    if len(data) == 1:
        hw.backend.append(Append(topic, data[0], content, type.encode(), partition=partition))
    else:
        columns = {TYPE: Column(len(data), type.encode()) if type else None, DATA: Column.of(data)}
        hw.backend.append_many(AppendMany(topic, content, columns, len(data), partition=partition))

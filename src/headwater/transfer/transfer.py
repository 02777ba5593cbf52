"""Importing and exporting as verbs (docs/TRANSFER.md): of a directory, and of a server, which has the same others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headwater.disk.disk import Disk
from headwater.event import Content
from headwater.format import given
from headwater.format.events import EventBatch
from headwater.format.puro_blocks import PuroVariant
from headwater.info import TopicInfo
from headwater.limits import Limits
from headwater.transfer import exporting, importing
from headwater.transfer.chunks import ImportOptions
from headwater.transfer.exporting import Progress
from headwater.transfer.files import Target
from headwater.transfer.puro import Report


class TransferLog(Protocol):
    """The verbs that a transfer needs."""

    def describe(self, topic: str) -> TopicInfo: ...
    def sync(self, topic: str) -> None: ...
    @property
    def read_batches(self) -> Callable[..., Iterator[EventBatch]]: ...
    @property
    def append(self) -> Callable[..., object]: ...
    @property
    def backend(self) -> Any: ...
    @property
    def append_many(self) -> Callable[..., object]: ...
    @property
    def append_arrow(self) -> Callable[..., object]: ...


class Transfer:
    """The transfers between a log and files. Safe from any thread."""

    def __init__(self, log: TransferLog, limits: Limits, disk: Disk | None = None) -> None:
        self._log = log
        self._limits = limits
        self._disk = disk or Disk()

    def export(
        self,
        topic: str | Sequence[str],
        target: Target,
        format: str | None,
        puro_variant: PuroVariant | None,
        progress: Progress | None,
        filters: dict[str, Any],
    ) -> int:
        topics = [topic] if isinstance(topic, str) else list(topic)
        return exporting.export(self._log, self._disk, topics, target, format, puro_variant, progress, filters)

    def import_(
        self,
        topic: str | None,
        source: Target,
        format: str | None,
        *,
        only: str | None,
        content: Content | None,
        partition: int | None,
        skip: int,
        keep_times: bool,
        columns: tuple[str | None, str | None, str | None],
        progress: Progress | None,
        report: Report | None,
    ) -> int:
        given.check_content(content)
        wanted = ImportOptions(content, keep_times, topic is None or only is not None, *columns)
        sink = importing.ImportSink(self._log, self._limits, topic, only, partition, skip)
        return importing.import_file(self._disk, self._limits, source, format, wanted, sink, progress, report)

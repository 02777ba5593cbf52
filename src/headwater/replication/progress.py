"""How a replica is: one log's copying as it goes on, and the small file that tells other processes (never truth)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headwater.directory.catalog import REPLICA_STATUS
from headwater.directory.local_log import LocalLog
from headwater.disk.disk import Clock, Disk
from headwater.errors import NotFound
from headwater.event import time_of
from headwater.format.losses import total
from headwater.format.replication import LogRequest, LogShare
from headwater.info import ReplicaInfo, ReplicaLog
from headwater.replication.marker import Marker

TICKS_PER_S = 10_000_000

_decode = msgspec.json.Decoder(ReplicaInfo).decode


class Copy:
    """One log that is being copied. Belongs to the replicator's thread."""

    def __init__(self, log: LocalLog, uuid: str) -> None:
        self.log = log
        self.uuid = uuid  # of its topic
        self.trouble = ""  # why it is not copied any more
        self.failures = 0  # in a row, to have the data of a huge event
        self.source_end = 0
        self.bytes_left = 0
        self.lag_s = 0.0
        # What was copied before may have come from packed batches, which tell nothing of producers: those of the source
        # are asked for once all that may be packed is here.
        self.producers_due = True
        self.stamped_from = 0  # from this offset on, batches have their producers' stamps
        self.begin()

    def begin(self) -> None:
        """Go on from what is here, and have the source say whether it has the same."""
        self.next = self.log.end()
        self.unsure = True
        self.source_end = max(self.source_end, self.next)

    def wanted(self) -> LogRequest:
        """Return what to ask for next."""
        ticks = (self.log.state().last_ticks or None) if self.unsure else None
        return LogRequest(self.log.topic, self.uuid, self.log.partition, self.next, ticks)

    def told(self, share: LogShare) -> None:
        """Note what the source tells of itself."""
        self.unsure = False
        self.source_end = max(share.end, self.next)
        if self.next < share.segment:
            self.producers_due = True
            self.stamped_from = share.segment

    def info(self) -> ReplicaLog:
        end = self.log.end()
        lag = max(0, self.source_end - end)
        lag_bytes, lag_s = (self.bytes_left, self.lag_s) if lag else (0, 0.0)
        place = self.log.topic, self.log.partition
        return ReplicaLog(
            *place,
            end,
            max(self.source_end, end),
            lag,
            lag_bytes,
            round(lag_s, 3),
            self.trouble,
            total(self.log.known_lost()),
        )


def write(path: Path, disk: Disk, info: ReplicaInfo) -> None:
    """Tell other processes how the replica is. A crash may leave what was told before, or nothing."""
    disk.replace(path / REPLICA_STATUS, msgspec.json.encode(info) + b"\n", sync=False)


def read(path: Path, disk: Disk, clock: Clock) -> ReplicaInfo:
    """Return how the replica in a directory is, by its marker and what was last told; raises NotFound if it is none."""
    marker = Marker(path, disk, clock)
    found = marker.read()
    if found is None:
        raise NotFound(
            f"{path} is not a replica", hint="create one: headwater replicate SOURCE DATA", code="not_a_replica"
        )
    try:
        told = _decode(disk.read_file(path / REPLICA_STATUS))
    except (OSError, msgspec.MsgspecError):
        told = ReplicaInfo(found.source, found.source_uuid, found.since, "stopped", None, None, "", [])
    state = "promoted" if found.promoted is not None else told.state if marker.busy() else "stopped"
    return msgspec.structs.replace(told, source=found.source, since=found.since, promoted=found.promoted, state=state)


def now(clock: Clock) -> str:
    return time_of(clock.ticks()).isoformat()

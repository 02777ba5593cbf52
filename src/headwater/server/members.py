"""All remote members of a server: joining, finding them by their secrets, and ending them. Safe from any thread."""

from __future__ import annotations

import secrets
import threading
from typing import Any

from headwater.consumers.log_consumer import LogConsumer
from headwater.consumers.log_consumers import LogConsumers
from headwater.directory.directory import Directory
from headwater.errors import Closed, Fenced, Unavailable
from headwater.event import Event
from headwater.limits import ServerLimits
from headwater.requests import Consume, Read
from headwater.server.member import Formats, MemberOwner, RemoteMember, member_gone


class Members:
    """All remote members of a server. Safe from any thread."""

    def __init__(self, backend: Directory, consumers: LogConsumers, limits: ServerLimits, heartbeat_s: float) -> None:
        self._backend = backend
        self._consumers = consumers
        self._limits = limits
        self._heartbeat_s = heartbeat_s
        self._mutex = threading.Lock()  # protects the two below
        self._members: dict[str, RemoteMember] = {}
        self._joining = 0

    def __len__(self) -> int:
        with self._mutex:
            return len(self._members)

    def join(
        self,
        user: str,
        name: str,
        topic: str,
        formats: Formats,
        *,
        instead: str | None = None,
        timeout: float | None = None,
        bound: MemberOwner | None = None,
        **options: Any,
    ) -> RemoteMember:
        """Join a consumer; `instead` of a member of this client that need not be waited for.

        `bound` is for one whose client is known to live as long as its connection.
        `options` are those of `Store.consumer`. Raises Unavailable if there are too many, and what that raises.
        """
        if instead is not None:
            self._dismiss(instead, user, name, topic)
        self._reserve()
        try:
            consumer = self._consumer(name, topic, options)
            member = RemoteMember(
                secrets.token_urlsafe(24),
                user,
                consumer,
                formats,
                options["lease_ms"] / 1000,
                self._heartbeat_s,
                timeout,
                self._limits,
                self._backend.limits.blob_bytes_in_memory,
                self._event_at,
                self._remove,
                bound,
            )
            with self._mutex:
                self._members[member.token] = member
            member.start()
            return member
        finally:
            with self._mutex:
                self._joining -= 1

    def _reserve(self) -> None:
        """Count one more that is joining; raises Unavailable if there are too many."""
        with self._mutex:
            if len(self._members) + self._joining >= self._limits.members_max:
                raise Unavailable(
                    f"{self._limits.members_max} members have joined consumers here",
                    hint="a member is one connection: let each handle more, or raise members_max",
                    code="too_many_members",
                )
            self._joining += 1

    def _consumer(self, name: str, topic: str, options: dict[str, Any]) -> LogConsumer:
        """Join a consumer of the log, with a lease of at most `lease_ms_max`, which is noted in the options."""
        lease_ms = options.get("lease_ms") or self._backend.limits.lease_ms
        options["lease_ms"] = min(lease_ms, self._limits.lease_ms_max)
        consumer = self._consumers.join(Consume.of(name, topic, self._backend.limits, **options))
        consumer.loads = False
        return consumer

    def get(self, token: str, user: str, name: str | None = None, topic: str | None = None) -> RemoteMember:
        """Return the member that this user has joined; raises Fenced if it has left, or was never there."""
        with self._mutex:
            member = self._members.get(token)
        if member is None or member.user != user:
            raise member_gone()
        if name is not None and (member.consumer.name, member.consumer.topic) != (name, topic):
            raise member_gone()
        return member

    def find(self, token: str, user: str) -> RemoteMember | None:
        """Return the member that this user has joined, or None if it has left."""
        try:
            return self.get(token, user)
        except Fenced:
            return None

    def leave(self) -> None:
        """Have all members leave, soon: the server stops."""
        with self._mutex:
            members = list(self._members.values())
        for member in members:
            member.leave()

    def close(self) -> None:
        """Have all members leave, and wait for it."""
        with self._mutex:
            members = list(self._members.values())
        self.leave()
        for member in members:
            member.join()

    def _dismiss(self, token: str, user: str, name: str, topic: str) -> None:
        try:
            member = self.get(token, user, name, topic)
        except Fenced:
            return
        member.leave()
        member.join()

    def _remove(self, member: RemoteMember) -> None:
        with self._mutex:
            self._members.pop(member.token, None)

    def _event_at(self, topic: str, partition: int, offset: int) -> Event:
        """Read an event again that was handed out: a window has only sizes. Without the data of a huge one."""
        for batch in self._backend.read_batches(Read(topic, offset, offset + 1, partition)):
            return batch.events(load=False)[0]
        raise Closed("the event cannot be read")

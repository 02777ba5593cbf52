"""The verbs of consumers on a server. Safe from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from headwater import position
from headwater.consumers.remote_consumer import RemoteConsumer
from headwater.consumers.remote_draining import drain
from headwater.errors import Unsupported
from headwater.event import Event
from headwater.info import ConsumerInfo, DrainResult
from headwater.position import Position
from headwater.remote.remote import Remote, delete
from headwater.requests import Consume

_decode_consumers = msgspec.json.Decoder(list[ConsumerInfo]).decode


class RemoteConsumers:
    """The consumers of a server."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._transport = remote.transport

    def join(self, request: Consume) -> RemoteConsumer:
        member = RemoteConsumer(self._transport, request, self._remote.limits)
        self._remote.members.add(member)
        return member

    def drain(
        self,
        request: Consume,
        handler: Callable[[Event], object],
        seconds: float | None,
        partitions: Iterable[int] | None,
    ) -> DrainResult:
        """Drain all partitions; it waits for those that other members hold, up to `seconds`."""
        if partitions is not None:
            raise Unsupported("a server drains all partitions of a topic", hint="leave out partitions=")
        handled = drain(self.join(request), handler, seconds)
        behind = any(info.lag for info in self.infos(request.topic) if info.name == request.consumer)
        return DrainResult(handled, behind)

    def infos(self, topic: str | None) -> list[ConsumerInfo]:
        return _decode_consumers(self._transport.call("GET", ("consumers",), {"topic": topic}, repeat=True).body)

    def seek(self, consumer: str, topic: str, at: Position, partition: int | None) -> dict[int, int]:
        asked = {"at": position.format(at), "partition": partition}
        told = self._transport.json("POST", ("consumer", consumer, topic, "seek"), value=asked, repeat=True)
        return {int(number): cursor for number, cursor in told.items()}

    def forget(self, consumer: str, topic: str) -> None:
        delete(self._transport, ("consumer", consumer, topic))

    def replay(self, topic: str, consumer: str | None) -> int:
        done: int = self._transport.json("POST", ("topic", topic, "replay"), {"consumer": consumer}, repeat=False)
        return done

"""The documents of a server, as the verbs of a store. Safe from any thread."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.format import documents
from headwater.info import BinderInfo, ViewInfo
from headwater.remote.remote import Remote
from headwater.views.remote_binder import RemoteBinder

_decode_binders = msgspec.json.Decoder(list[BinderInfo]).decode
_decode_views = msgspec.json.Decoder(list[ViewInfo]).decode


class RemoteViews:
    """The documents of a server."""

    def __init__(self, remote: Remote) -> None:
        self._transport = remote.transport

    def binder(self, name: str) -> RemoteBinder:
        self._transport.check_open()
        return RemoteBinder(self._transport, name)

    def binders(self) -> list[str]:
        found = _decode_binders(self._transport.call("GET", ("binders",), repeat=True).body)
        return [each.name for each in found]

    def views(self) -> list[ViewInfo]:
        return _decode_views(self._transport.call("GET", ("views",), repeat=True).body)

    def query(self, name: str, arguments: dict[str, Any]) -> Any:
        body, headers = documents.encode(arguments), {"Content-Type": "application/json"}
        answer = self._transport.call("POST", ("query", name), body=body, headers=headers, repeat=True)
        return documents.decode(answer.body)

    def close(self) -> None:
        """Do nothing: the connections are those of the backend."""

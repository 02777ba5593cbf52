"""The verbs on a server: what `headwater.open` returns for http:// and headwater://.

Knows docs/HTTP.md and docs/PROTOCOL.md, and nothing of the storage.
"""

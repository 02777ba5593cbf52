"""The verbs on a server: what `headwater.open` returns for http:// and https://.

Knows docs/HTTP.md, and nothing of the storage.
"""

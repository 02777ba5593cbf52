"""HTTP/1.1: a protocol on httptools, an ASGI application, and the handlers that both share (docs/HTTP.md)."""

"""HTTP/1.1: a protocol of its own on httptools, an ASGI application, and the handlers that both share (docs/HTTP.md)."""

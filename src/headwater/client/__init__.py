"""The verbs over HTTP: what `headwater.open("http://…")` returns. Knows the protocol (docs/HTTP.md), never the storage."""

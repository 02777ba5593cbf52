"""The verbs over HTTP: what `headwater.open("http://…")` returns. Knows docs/HTTP.md, and nothing of the storage."""

"""The HTTP client: a log behind a server."""

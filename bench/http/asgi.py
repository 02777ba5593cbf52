"""The ASGI application that uvicorn runs for the benchmarks; the directory is in the environment."""

from __future__ import annotations

import os

import headwater

app = headwater.asgi(os.environ["HEADWATER_BENCH"])

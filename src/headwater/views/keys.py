"""What documents are sorted and found by: the value under a path as SQLite orders it (docs/VIEWS.md, "Binders").

Numbers are SQLite's numbers and text its text, so that its own order is ours. Everything else is a blob that begins
with the letter of its kind, behind all numbers and text. What cannot be told from its neighbours by such a key, as
decimals that no float holds, has the same one: whoever finds by it compares the documents themselves.
"""

from __future__ import annotations

from typing import Any

Key = int | float | str | bytes | None


def index_key(document: dict[str, Any], path: str) -> Key:
    """The key of a document under a path; None if there is nothing, or null."""
    raise NotImplementedError

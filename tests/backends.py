"""The table of docs/BACKENDS.md, from what the backends say that they lack. `python -m tests.backends` writes it."""

from __future__ import annotations

import inspect

from headwater.bucket.bucket import Bucket
from headwater.directory.directory import Directory
from headwater.remote.remote import Remote
from headwater.store import Store
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "BACKENDS.md"
BEGIN = "<!-- Made from Backend.lacks by: python -m tests.backends -->\n"
END = "<!-- end -->\n"


def verbs() -> list[str]:
    """The verbs of a store, in the order in which they are declared."""
    own = (name for name, value in vars(Store).items() if inspect.isfunction(value))
    return [name for name in own if not name.startswith("_") and name not in ("can", "close")]


def table() -> str:
    backends = Directory, Remote, Bucket
    everywhere = [verb for verb in verbs() if not any(verb in each.lacks for each in backends)]
    rows = ["", "These work everywhere: " + ", ".join(f"`{verb}`" for verb in everywhere) + ".", ""]
    rows += ["| verb | directory | server | bucket |", "|---|---|---|---|"]
    for verb in verbs():
        if verb not in everywhere:
            cells = [f"no: {each.lacks[verb].hint}" if verb in each.lacks else "yes" for each in backends]
            rows.append(f"| `{verb}` | {' | '.join(cells)} |")
    return "\n".join([*rows, "", ""])


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

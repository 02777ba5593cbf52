"""The command line: the same verbs as the library, one file per command.

`app` finds the commands and turns errors into exit codes, `arguments` reads what users type, `show` writes what they
see. Commands import the rest of Headwater, rich and Arrow where they use them, so that help and completion are quick.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("click", "rich")


def main() -> None:
    """The program `headwater`. Exits with 0, 1 (error), 2 (wrong use), 130 (Ctrl-C) or 141 (closed pipe)."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"error: the command line needs {' and '.join(missing)} — pip install 'headwater[cli]'", file=sys.stderr)
        sys.exit(2)
    try:
        from headwater.cli.app import cli

        cli(prog_name="headwater")
    except KeyboardInterrupt:
        sys.exit(130)

"""Opening the store that a job works on, in the driver and in every worker; credentials come from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater import opening
from headwater.environment import open_options

if TYPE_CHECKING:
    from headwater.store import Store


def open_place(address: str, **options: Any) -> Store:
    """Open a store that must exist, with the credentials of the environment."""
    options.setdefault("mode", "existing")
    return opening.open(address, **options, **open_options(address))

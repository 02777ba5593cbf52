"""Opening the store that a job works on, in the driver and in every worker; credentials come from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater import api
from headwater.environment import open_options

if TYPE_CHECKING:
    from headwater.api import Log


def open_place(address: str, **options: Any) -> Log:
    """Open a store that must exist, with the credentials of the environment."""
    options.setdefault("mode", "existing")
    return api.open(address, **options, **open_options(address))

"""Idle scopes: those that cannot be told from unused ones are forgotten while new ones come."""

from __future__ import annotations

from typing import Final

GRACE_US: Final = 60_000_000
"""How long a scope has been idle when it is forgotten."""
LOOKS_PER_NEWCOMER: Final = 2
"""How many scopes are looked at for each that is new, so that there are never many that are idle."""

"""The calls of the demo to the gateway, and their expected results."""

from __future__ import annotations

from typing import Final

__all__ = ["CALLS", "MAX_TOKENS", "PROMPT", "REGIONS", "TENANTS", "USED"]

CALLS: Final = 15
"""Number of calls of each tenant."""
PROMPT: Final = "one two ten six our few old new big red?"
"""Ten words, and forty letters: about ten tokens."""
MAX_TOKENS: Final = 20
USED: Final = 20
"""Tokens that a call uses; the estimate is 30."""

TENANTS: Final = {"acme": (100, 4), "zenith": (100, 4), "giant": (1000, 10)}
"""The tokens of each tenant, and the number of its allowed calls; the last one exhausts the regions."""
REGIONS: Final = {"east": (200, 180), "west": (200, 180)}
"""The tokens of each region, and their usage."""

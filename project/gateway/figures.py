"""What the demo asks of the gateway, and what has to come of it."""

from __future__ import annotations

from typing import Final

__all__ = ["CALLS", "MAX_TOKENS", "PROMPT", "REGIONS", "TENANTS", "USED"]

CALLS: Final = 15
"""How often each tenant asks."""
PROMPT: Final = "one two ten six our few old new big red?"
"""Ten words, and forty letters: about ten tokens."""
MAX_TOKENS: Final = 20
USED: Final = 20
"""Tokens that a call takes in the end; 30 were to be expected."""

TENANTS: Final = {"acme": (100, 4), "zenith": (100, 4), "giant": (1000, 10)}
"""What each tenant has, and how many of its calls are answered; the last one finds the regions nearly empty."""
REGIONS: Final = {"east": (200, 180), "west": (200, 180)}
"""What each region has, and what is used of it."""

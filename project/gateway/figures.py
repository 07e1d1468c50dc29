"""The calls of the demo to the gateway, and their expected results."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

__all__ = ["BUDGETS", "CALLS", "MAX_TOKENS", "PRICE", "PROMPT", "REGIONS", "SPEND", "TEAM", "TENANTS", "USED"]

CALLS: Final = 15
"""Number of calls of each tenant."""
PROMPT: Final = "one two ten six our few old new big red?"
"""Ten words, and forty letters: about ten tokens."""
MAX_TOKENS: Final = 20
USED: Final = 20
"""Tokens that a call uses; the estimate is 30."""

PRICE: Final = Decimal(1)
"""The price of 1,000 tokens in US dollars: a call costs 0.02, and the estimate 0.03."""
TEAM: Final = ("team:red", "0.10")
"""A team, and its budget in US dollars."""
BUDGETS: Final = {"key:red-1": ("0.05", 2), "key:red-2": ("1.00", 2)}
"""The budget of each key of the team, and the number of its allowed calls; the last one exhausts that of the team."""
TENANTS: Final = {"tenant:acme": (100, 4), "tenant:zenith": (100, 4), "tenant:giant": (1000, 6)}
"""The tokens of each tenant, and the number of its allowed calls; the last one exhausts the regions."""
SPEND: Final = {
    "key:red-1": Decimal("0.04"),
    "key:red-2": Decimal("0.04"),
    "tenant:acme": Decimal("0.08"),
    "tenant:zenith": Decimal("0.08"),
    "tenant:giant": Decimal("0.12"),
}
"""What the tokens of each client cost in US dollars."""
REGIONS: Final = {"east": (200, 180), "west": (200, 180)}
"""The tokens of each region, and their usage."""

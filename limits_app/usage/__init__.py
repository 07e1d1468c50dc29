"""Usage: what the stores have counted, rolled into snapshots, and what was refused.

The way of a count: a store counts in the step that admits, `rolling` collects it into hours and days, and `reading`
sums up.
"""

from __future__ import annotations

from limits_app.usage.rolling import roll_up

__all__ = ["roll_up"]

"""Usage snapshots, rolled up from the counts of the stores, and denials.

The way of a count: a store counts in the step that admits, `rolling` collects it into hours and days, and `reading`
sums up. Refusals are counted by `noting` and read by `denied`, and `pruning` lets go of what is old.
"""

from __future__ import annotations

from limits_app.usage.denial_counter import denials
from limits_app.usage.reading import By, DenialCount, Use, Uses, denied, is_counted, read, used_by
from limits_app.usage.rollup import roll_up

__all__ = ["By", "DenialCount", "Use", "Uses", "denials", "denied", "is_counted", "read", "roll_up", "used_by"]

"""Usage snapshots, rolled up from the counts of the stores, and denials.

A store counts usage in the same step that allows a request. `rollup` adds the counts to hourly and daily snapshots,
and `reading` sums them up. `denial_counter` counts rejections, `denied` reads them, and `pruning` deletes old rows.
`evaluations` counts the decisions of candidates and of policies in shadow mode, and `totals` reads them.
"""

from __future__ import annotations

from limits_app.usage.denial_counter import denials
from limits_app.usage.evaluation_counter import evaluations, totals
from limits_app.usage.reading import By, DenialCount, Use, Uses, denied, most_rejected, never_used, read
from limits_app.usage.rollup import roll_up

__all__ = [
    "By",
    "DenialCount",
    "Use",
    "Uses",
    "denials",
    "denied",
    "evaluations",
    "most_rejected",
    "never_used",
    "read",
    "roll_up",
    "totals",
]

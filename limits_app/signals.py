"""Signals that the app sends; `test_began` is for the app itself."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

__all__ = [
    "candidate_reverted",
    "emergency_switched",
    "lease_lost",
    "limit_exceeded",
    "limit_near",
    "limit_shadowed",
    "limits_changed",
    "store_degraded",
    "store_restored",
]

limits_changed: Final = Signal()
"""Configuration changed and was committed. Arguments: `using`, the alias of the database, `changes` and `namespace`."""

limit_exceeded: Final = Signal()
"""A request was rejected. Arguments: `outcome`."""

limit_near: Final = Signal()
"""More of a limit is in use than one of NEAR_THRESHOLDS.

Arguments: its `status`, the `threshold`, and `window`, a text that is the same in all processes until the window ends.
Sent once for each threshold and window, by the process that noticed it; in asyncio from a thread.
"""

limit_shadowed: Final = Signal()
"""A policy in shadow mode would have rejected a request that was allowed. Arguments: `outcome` of that policy."""

lease_lost: Final = Signal()
"""A holder outlived its lease, so its permit may belong to another holder. Arguments: `claim`, the acquisition."""

store_degraded: Final = Signal()
"""A store is unavailable to this process: policies decide without it.

Arguments: `alias` of the store, and `error`, the last one. Sent once for each outage.
"""

store_restored: Final = Signal()
"""A store is available again. Arguments: `alias` of the store. Sent once for each outage."""

emergency_switched: Final = Signal()
"""The emergency switch was set and committed. Arguments: `emergency`, the switch as it is in force now."""

candidate_reverted: Final = Signal()
"""A promoted candidate was reverted automatically. Arguments: `policy`, its name, and `reason`."""

test_began: Final = Signal()
"""Another test of a project runs: stores are empty again, and so is what processes remember beside them."""

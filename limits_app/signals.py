"""Signals that the app sends."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

__all__ = [
    "lease_lost",
    "limit_exceeded",
    "limit_near",
    "limit_shadowed",
    "limits_changed",
    "store_degraded",
    "store_restored",
]

limits_changed: Final = Signal()
"""Configuration changed and was committed. Arguments: `using`, the alias of the database."""

limit_exceeded: Final = Signal()
"""A request was refused. Arguments: `outcome`."""

limit_near: Final = Signal()
"""Of a limit more is in use than one of NEAR_THRESHOLDS. Arguments: its `status`, and the `threshold`.

Sent once for each threshold and window, by whichever process found out; in asyncio from a thread.
"""

limit_shadowed: Final = Signal()
"""A policy in the shadow would have refused a request, which went through. Arguments: `outcome` of the shadow."""

lease_lost: Final = Signal()
"""A holder outlived its lease, so its permit may belong to somebody else. Arguments: `claim`, the acquisition."""

store_degraded: Final = Signal()
"""A store is down, as far as this process can see: policies decide without it.

Arguments: `alias` of the store, and `error`, the last one. Sent once, by whichever thread found out.
"""

store_restored: Final = Signal()
"""A store is back and decides again. Arguments: `alias` of the store. Sent once, by whichever thread found out."""

"""Blocked: nothing passes, and no waiting helps before the configuration changes."""

from __future__ import annotations

from typing import Final

from limits_app.core.algorithms.rule import Rule
from limits_app.core.limits import Blocked

__all__ = ["compile_blocked"]

_NEVER_US: Final = 2**53


def compile_blocked(limit: Blocked) -> Rule:
    """Compile a refusal; its state is empty."""
    return Rule(
        limit=limit,
        start=(),
        parts_per_unit=1,
        ceiling_parts=1,
        take=lambda state, now, amount: None,
        wait=lambda state, now, amount: _NEVER_US,
        settle=lambda state, now, change: state,
        credit=lambda state, now, parts: state,
        used=lambda state, now: 0,
        restored_at=lambda state: 0,
        carry=lambda old, state, now: (),
        twin=("blocked",),
    )

"""What callers ask for: amounts by key, or a function that says them once it is known which limits hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet

__all__ = ["Asked", "Requested", "Resources", "amounts_for"]

Requested = Mapping[str, Amount] | None
Asked = Requested | Callable[[LimitSet], Requested]
"""Amounts by key, or a function that says them once it is known which limits hold."""

Resources = str | Mapping[str, Asked]
"""A resource, or several with what is asked of each."""


def amounts_for(found: LimitSet, asked: Asked) -> Requested:
    """The amounts of a request for the limits that hold."""
    return asked(found) if callable(asked) else asked

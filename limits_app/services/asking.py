"""What callers ask for: amounts by key, or a function that says them once it is known which limits hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from limits_app.core.amounts import Amount, Requested
from limits_app.core.errors import InvalidRequest
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked, CallLimit
from limits_app.core.notation import CALLS

__all__ = ["Asked", "Requested", "Resources", "amounts_for", "known_amounts"]

Asked = Requested | Callable[[LimitSet], Requested]
"""Amounts by key, or a function that says them once it is known which limits hold."""

Resources = str | Mapping[str, Asked]
"""A resource, or several with what is asked of each."""


def amounts_for(found: LimitSet, asked: Asked) -> Requested:
    """The amounts of a request for the limits that hold."""
    return asked(found) if callable(asked) else asked


def known_amounts(found: LimitSet, asked: Mapping[str, Amount]) -> dict[str, Amount]:
    """The amounts that somebody asks about, by the keys that there are; `calls` may be said for the key of call limits.

    InvalidRequest for a key that is not limited: to code it may be meant for other limits, to people it is a mistake.
    """
    shadow: LimitSet | None = getattr(found, "shadow", None)
    keys = {*found.keys, *(() if shadow is None else shadow.keys)}
    renamed = {_known(key, keys): amount for key, amount in asked.items()}
    if len(renamed) < len(asked):
        raise InvalidRequest(f"{CALLS} and {CallLimit.key} are the same: say it once")
    unknown = sorted(renamed.keys() - keys)
    if unknown and keys and Blocked.key not in keys:
        raise not_limited(unknown, keys)
    return renamed


def not_limited(unknown: Iterable[str], keys: Iterable[str]) -> InvalidRequest:
    """What is wrong with keys for which there is no limit, beside those for which there is one."""
    listed = ", ".join(sorted(keys)) or "none"
    return InvalidRequest(f"{', '.join(unknown)} is not limited there; limited are: {listed}")


def _known(key: str, keys: Collection[str]) -> str:
    return CallLimit.key if key == CALLS and CALLS not in keys else key

"""Priorities: the classes of requests, and the share of a limit that requests of a class leave free for higher ones.

The classes are named and ordered in `LIMITS["PRIORITIES"]`, the highest first. A class that a limit does not name
leaves as much free as the next higher class that it names, so that a lower class never has more than a higher one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Protocol

from limits_app.engine.amounts import MILLI, Amount, GivenAmount, OfClass, Requested, from_milli, shown, to_milli
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.runtime import present

NORMAL: Final = "normal"
"""The class of requests that have no other."""

Keep = tuple[tuple[str, Amount], ...]
"""Which percentage of a limit requests of a class leave free, by class."""

GivenKeep = Mapping[str, Amount] | Iterable[tuple[str, Amount]]


class LimitWithKeep(Protocol):
    """A limit, as far as it is about shares that are kept free."""

    @property
    def key(self) -> str:
        """The key of the limit."""

    @property
    def keep(self) -> Keep:
        """The shares."""


_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_SHARE: Final = re.compile(r"\s*([^\s:%]+)\s*:\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%\s*", re.ASCII)
_ALL_PERCENT: Final = 100


def is_priority_name(name: object) -> bool:
    """Return whether a class may have a name: lowercase letters, digits, `_` and `-`, at most 32."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def checked_priority(priority: object) -> str:
    """Return the class that a request names; InvalidRequest unless it is one of `LIMITS["PRIORITIES"]`."""
    names = present().priorities()
    if isinstance(priority, str) and priority in names:
        return priority
    raise InvalidRequest(f"priority must be one of {', '.join(names)}, not {shown(priority)}")


def of_class(requested: Requested, priority: str | None) -> Requested:
    """Return a request as one that names its class; None leaves it as it is.

    InvalidRequest for a class that is not one of `LIMITS["PRIORITIES"]`, and for amounts that are not a mapping.
    """
    if priority is None:
        return requested
    if requested is None:
        named = OfClass()
        named.is_default, named.priority = True, checked_priority(priority)
        return named
    return of_its_class(requested, priority)


def of_its_class(requested: Mapping[str, GivenAmount], priority: str | None) -> Mapping[str, GivenAmount]:
    """`of_class` of amounts."""
    if priority is None:
        return requested
    if not isinstance(requested, Mapping):
        raise InvalidRequest(f"requested must map keys to amounts, not {shown(requested)}")
    named = type(requested)(requested) if isinstance(requested, OfClass) else OfClass(requested)
    is_empty = type(requested) is dict and not requested
    named.priority, named.is_default = checked_priority(priority), getattr(requested, "is_default", is_empty)
    return named


def lower_of(priority: str, other: str) -> str:
    """Return the lower one of two classes, of which each may be empty or removed."""
    return max(priority, other, key=lambda name: rank_of(known_priority(name)))


def known_priority(priority: str) -> str:
    """Return the class of a request that configuration has set; `normal` for none, and for one that was removed."""
    return priority if priority in present().priorities() else NORMAL


def rank_of(priority: str) -> int:
    """Return the place of a class among the others: 0 is the highest."""
    names = present().priorities()
    return names.index(priority) if priority in names else names.index(NORMAL)


def higher_than(priority: str) -> Sequence[str]:
    """Return the classes above one."""
    return present().priorities()[: rank_of(priority)]


def kept_percent(keep: Keep, priority: str) -> Amount:
    """Return which percentage of a limit requests of a class leave free: the largest of its own and higher classes."""
    rank, names = rank_of(priority), present().priorities()
    return max([percent for name, percent in keep if name in names and names.index(name) <= rank], default=0)


def kept_parts(keep: Keep, priority: str, ceiling_parts: int) -> int:
    """Return the parts of a limit that a request of a class leaves free, rounded up."""
    milli = to_milli(kept_percent(keep, priority), decimals=True)
    return -(-ceiling_parts * milli // (_ALL_PERCENT * MILLI))


def parse_keep(text: str) -> Keep:
    """Read what `keep_text` writes, such as `low:60%,normal:20%`; InvalidLimit for invalid text."""
    shares = [_SHARE.fullmatch(share) for share in text.split(",")]
    if None in shares:
        raise InvalidLimit(f"keep {shown(text)} must look like low:60%,normal:20%")
    return tuple([(share[1], from_milli(to_milli(float(share[2]), decimals=True))) for share in shares if share])


def keep_text(keep: Keep) -> str:
    """Write the shares of classes so that `parse_keep` reads the same ones."""
    return ",".join([f"{name}:{percent}%" for name, percent in keep])


def checked_keep(key: str, keep: object, *, soft: bool) -> Keep:
    """Return the shares of classes as a limit has them, the largest first; InvalidLimit for invalid ones.

    Classes are not looked up here: a class that is removed from the setting must not make a limit invalid.
    """
    try:
        shares = [(name, percent) for name, percent in (keep.items() if isinstance(keep, Mapping) else keep)]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InvalidLimit(f"limit {key!r}: keep must map priorities to percentages, not {shown(keep)}") from None
    checked = [(_checked_name(key, name), _checked_percent(key, percent)) for name, percent in shares]
    names = [name for name, _ in checked]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidLimit(f"limit {key!r}: keep has {twice!r} more than once")
    if checked and soft:
        raise InvalidLimit(f"limit {key!r}: a soft limit rejects nothing, so it keeps no share free; leave keep out")
    return tuple(sorted(checked, key=lambda share: (-share[1], share[0])))


def keep_problems(keep: Keep, priorities: Sequence[str]) -> list[str]:
    """Return the problems of the shares of a limit for these classes, which are ordered from the highest on."""
    problems = [
        f"{name!r} is not one of LIMITS['PRIORITIES']; must be one of: {', '.join(priorities)}"
        for name, _ in keep
        if name not in priorities
    ]
    ranked = sorted([(priorities.index(name), name, percent) for name, percent in keep if name in priorities])
    problems += [
        f"{name!r} is the highest priority, so that no request could use the share that it leaves free"
        for rank, name, _ in ranked
        if rank == 0
    ]
    for (_, higher, more), (_, lower, less) in pairwise(ranked):
        if less < more:
            problems.append(f"{lower!r} must leave at least as much free as {higher!r}: {more}%, not {less}%")
    return problems


def _checked_name(key: str, name: object) -> str:
    if not is_priority_name(name):
        raise InvalidLimit(
            f"limit {key!r}: {shown(name)} is not the name of a priority, which has at most 32 lowercase letters, "
            "digits, '_' and '-'"
        )
    return str(name)


def _checked_percent(key: str, percent: object) -> Amount:
    try:
        milli = to_milli(percent, decimals=True)
    except ValueError as error:
        raise InvalidLimit(f"limit {key!r}: a percentage of keep {error}, not {shown(percent)}") from None
    if not 0 < milli < _ALL_PERCENT * MILLI:
        raise InvalidLimit(f"limit {key!r}: a percentage of keep must be above 0 and below 100, not {shown(percent)}")
    return from_milli(milli)


def check_keep(limit: LimitWithKeep) -> None:
    """Raise InvalidLimit where a limit that is written keeps shares that `keep_problems` objects to."""
    if limit.keep and (problems := keep_problems(limit.keep, present().priorities())):
        raise InvalidLimit(f"limit {limit.key!r}: keep is invalid: {'; '.join(problems)}")

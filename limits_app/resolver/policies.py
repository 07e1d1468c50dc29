"""Policy resolution: which policies apply to an entity at a time, and the limits that follow from them.

The most specific level applies, as a whole: an entity that is itself blocked or unlimited, entity on this resource,
entity on all resources, resource, system, and then the limits that code sets.
Within a level, a policy with dates precedes one with weekly hours, and that precedes the one that always applies.
A policy that extends is added to the next one instead of replacing it, and its keys take precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from limits_app.conf import OnUnavailable
from limits_app.core.limits import AnyLimit, Blocked
from limits_app.models import ENTITY_FLAGS, Candidate, Enforcement, EntityPolicies, PolicyEffect, PolicyScope

__all__ = ["CODE", "PRECEDENCE", "Choice", "Held", "Standing", "Verdict", "changes_at", "choose", "rollout_position"]

CODE: Final = "code"
"""The level of limits that code sets: `default_limits`, throttles and `@ratelimit`."""

PRECEDENCE: Final = (ENTITY_FLAGS, *PolicyScope.values, CODE)


class Standing(StrEnum):
    """The status of one policy; an EXTENDED policy is one to which another adds."""

    COUNTS = "counts"
    EXTENDED = "extended"
    REPLACED = "replaced"
    NOT_NOW = "not now"
    NOT_ROLLED_OUT = "not rolled out"
    SHADOW = "shadow"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A policy and its status."""

    candidate: Candidate
    standing: Standing


@dataclass(frozen=True, slots=True)
class Held:
    """An effective limit, and the policy that it comes from; a `shared` one is one bucket for all entities."""

    limit: AnyLimit
    candidate: Candidate
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The policies of one entity of a chain in order of precedence, and the effective limits."""

    entity: str | None
    verdicts: tuple[Verdict, ...]
    limits: tuple[Held, ...]
    on_unavailable: OnUnavailable | None

    @property
    def uses_code(self) -> bool:
        """Whether the limits that code sets are in force, which come last."""
        last = self.verdicts[-1]
        return last.candidate.level == CODE and last.standing in {Standing.COUNTS, Standing.EXTENDED}


def choose(link: EntityPolicies, now: datetime, *, shadow: bool = False) -> Choice:
    """Choose the policies that apply to an entity now; with `shadow`, as if policies in shadow mode were enforced."""
    position = rollout_position(link.entity)
    verdicts: list[Verdict] = []
    counting: list[Candidate] = []
    is_open = True
    for candidate in sorted(link.candidates, key=_precedence):
        standing = _out(candidate, now, position, shadow=shadow)
        if standing is None:
            standing = Standing.REPLACED
            if is_open:
                standing = Standing.EXTENDED if counting else Standing.COUNTS
                counting.append(candidate)
                is_open = candidate.extends
        verdicts.append(Verdict(candidate, standing))
    on_unavailable = next((one.on_unavailable for one in counting if one.on_unavailable), None)
    return Choice(link.entity, tuple(verdicts), _together(counting), on_unavailable)


def changes_at(link: EntityPolicies, now: datetime) -> datetime | None:
    """The next time at which a date or an hour may change the effective limits; None for never."""
    moments = [moment for one in link.candidates for moment in (one.valid_from, one.valid_until, _next(one, now))]
    return min((moment for moment in moments if moment is not None and moment > now), default=None)


def rollout_position(entity: str | None) -> int:
    """The position of an entity from 0 to 99, the same in every process; a rollout includes the positions below it."""
    return int.from_bytes(blake2b((entity or "").encode("utf-8", "surrogatepass"), digest_size=8).digest()) % 100


def _precedence(candidate: Candidate) -> tuple[int, bool, bool, int]:
    return (
        PRECEDENCE.index(candidate.level),
        candidate.valid_from is None,
        candidate.hours is None,
        candidate.policy_id or 0,
    )


def _out(candidate: Candidate, now: datetime, position: int, *, shadow: bool) -> Standing | None:
    """Why a policy does not apply; None where it does."""
    if candidate.enforcement == Enforcement.OFF:
        return Standing.OFF
    if not _is_in_force(candidate, now):
        return Standing.NOT_NOW
    if position >= candidate.rollout_percent:
        return Standing.NOT_ROLLED_OUT
    return Standing.SHADOW if candidate.enforcement == Enforcement.SHADOW and not shadow else None


def _is_in_force(candidate: Candidate, now: datetime) -> bool:
    begins, ends = candidate.valid_from, candidate.valid_until
    if (begins is not None and now < begins) or (ends is not None and now >= ends):
        return False
    return candidate.hours is None or candidate.hours.holds(now)


def _next(candidate: Candidate, now: datetime) -> datetime | None:
    return None if candidate.hours is None else candidate.hours.next_change(now)


def _together(counting: list[Candidate]) -> tuple[Held, ...]:
    """The limits of several policies by key, where each policy but the last extends the next one."""
    held: dict[str, Held] = {}
    for candidate in reversed(counting):
        if candidate.effect == PolicyEffect.BLOCKED:
            return (Held(Blocked(), candidate),)
        if candidate.effect == PolicyEffect.LIMITS:
            held |= {limit.key: Held(limit, candidate, limit.key in candidate.shared) for limit in candidate.limits}
    return tuple(held[key] for key in sorted(held))

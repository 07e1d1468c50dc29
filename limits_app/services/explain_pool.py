"""Explanations of pools: the member that would serve a request, and why others would not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import cast

from limits_app.acquiring import Acquisition, Foreseen
from limits_app.engine import Requested
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.models.pool import MemberDefinition
from limits_app.policies import MemberSet, PooledSet


class MemberStanding(StrEnum):
    """The state of one member for a request; a member that stands by would serve if those before it did not."""

    SERVES = "would serve"
    STANDS_BY = "standby"
    REFUSES = "rejects"
    NEVER = "request exceeds the maximum"
    UNABLE = "lacks the requested limits"
    COOLING_DOWN = "cooling down"
    DISABLED = "off"


@dataclass(frozen=True, slots=True)
class ExplainedMember:
    """One member, and the state of its limits for the request.

    `load` is the largest share in use of any limit of the request.
    `retry_after` is after how many seconds it would admit the request at the earliest; None where that is unknown.
    """

    name: str
    weight: int
    standing: MemberStanding
    limits: tuple[LimitStatus, ...] = ()
    load: float | None = None
    retry_after: float | None = None
    cooling_seconds: float = 0

    def as_dict(self) -> dict[str, object]:
        """The member as plain data, for JSON."""
        limits = [status.as_dict() for status in self.limits]
        return asdict(self) | {"standing": str(self.standing), "limits": limits}


@dataclass(frozen=True, slots=True)
class ExplainedPool:
    """The pool that serves a resource, with its members in order."""

    name: str
    load_balancing: str
    failover: bool
    members: tuple[ExplainedMember, ...]

    @property
    def chosen(self) -> ExplainedMember | None:
        """The member that would serve the request; of a random choice, one of those that would."""
        return next((member for member in self.members if member.standing is MemberStanding.SERVES), None)

    def as_dict(self) -> dict[str, object]:
        """The pool as plain data, for JSON."""
        return {
            "name": self.name,
            "load_balancing": self.load_balancing,
            "failover": self.failover,
            "chosen": None if self.chosen is None else self.chosen.name,
            "members": [member.as_dict() for member in self.members],
        }


def explained_pool(limits: PooledSet, requested: Requested, *, whole: bool) -> tuple[Outcome, ExplainedPool]:
    """The outcome of a request, and the state of each member; `whole` shows all limits of each member."""
    foreseen = limits.pool.foresee(requested)
    definition = limits.members.definition
    cooling = {name: limits.pool.cooling_seconds(index) for index, name in enumerate(limits.members.scoped)}
    members = tuple(
        _member(member, foreseen, cooling.get(member.name, 0), whole=whole) for member in definition.members
    )
    return foreseen.outcome, ExplainedPool(definition.name, definition.load_balancing, definition.failover, members)


def _member(member: MemberDefinition, foreseen: Foreseen, cooling_seconds: float, *, whole: bool) -> ExplainedMember:
    if not member.enabled:
        return ExplainedMember(member.name, member.weight, MemberStanding.DISABLED)
    served_by_it = (
        resolved for resolved in foreseen.eligible if cast("MemberSet", resolved.limit_set).member == member.name
    )
    claim = next(served_by_it, None)
    if claim is None:
        return ExplainedMember(member.name, member.weight, MemberStanding.UNABLE, cooling_seconds=cooling_seconds)
    outcome = claim.outcome
    shown = outcome
    if whole and len(claim.limit_set.rates) > len(claim.must_report):  # with rates that no other member has
        shown = cast("MemberSet", claim.limit_set).peek(dict.fromkeys(claim.limit_set.rates, 0))
    return ExplainedMember(
        member.name,
        member.weight,
        _standing(claim, outcome, foreseen, cooling_seconds),
        tuple(status for status in (*shown.violations, *shown.passed) if status.member == member.name),
        round(claim.load(), 3),
        outcome.retry_after,
        cooling_seconds,
    )


def _standing(claim: Acquisition, outcome: Outcome, foreseen: Foreseen, cooling_seconds: float) -> MemberStanding:
    if claim is foreseen.chosen:
        return MemberStanding.SERVES
    if cooling_seconds and claim not in foreseen.tried:
        return MemberStanding.COOLING_DOWN
    if outcome.never:
        return MemberStanding.NEVER
    return MemberStanding.STANDS_BY if outcome.allowed else MemberStanding.REFUSES

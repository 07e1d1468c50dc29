"""Explaining: what holds, where it comes from, what it replaced, and what it would decide now."""

from __future__ import annotations

from dataclasses import dataclass

from limits_app.core.errors import NeverAdmissible, StaleConfiguration
from limits_app.core.outcome import LimitStatus, Outcome
from limits_app.models import OWN, Candidate, PolicyEffect, PolicyScope
from limits_app.resolver import CALL, Resolution, resolve
from limits_app.services.acquiring import Limits, Requested

__all__ = ["Explanation", "explain"]

_WORDS = {
    OWN: "the entity itself",
    PolicyScope.ENTITY_ON_RESOURCE: "the policy of the entity on this resource",
    PolicyScope.ENTITY: "the policy of the entity on all resources",
    PolicyScope.RESOURCE: "the policy of the resource",
    PolicyScope.SYSTEM: "the policy of the system",
    CALL: "the limits that the call brings",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request would be admitted or refused now.

    `considered` are the policies that are about it, the one that counts first: the others it replaces.
    `dropped` are the keys that these limit and the one that counts does not.
    """

    resource: str
    entity: str | None
    considered: tuple[Candidate, ...]
    outcome: Outcome
    dropped: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """The explanation as plain data, for JSON."""
        return {
            "resource": self.resource,
            "entity": self.entity,
            "outcome": self.outcome.as_dict(),
            "dropped": list(self.dropped),
            "considered": [
                {
                    "level": str(candidate.level),
                    "policy": candidate.policy_id,
                    "effect": str(candidate.effect),
                    "counts": position == 0,
                    "limits": [limit.key for limit in candidate.limits],
                }
                for position, candidate in enumerate(self.considered)
            ],
        }

    def text(self) -> str:
        """The explanation in sentences, a line each."""
        who = "the site itself" if self.entity is None else self.entity
        lines = [f"{who} on {self.resource}: {'admitted' if self.outcome.allowed else 'refused'} now."]
        if not self.considered:
            return "\n".join([*lines, "Nothing is set for it, at no level, so everything is admitted."])
        first, *replaced = self.considered
        lines.append(f"What counts is {_WORDS[first.level]} ({first.effect}).")
        lines += [f"It replaces {_WORDS[other.level]} ({other.effect})." for other in replaced]
        if self.dropped:
            lines.append(f"Limited by what is replaced, and free here: {', '.join(self.dropped)}.")
        binding = self.outcome.binding
        for status in (*self.outcome.violations, *self.outcome.passed):
            lines.append(_line(status, binds=status is binding))
        return "\n".join(lines)

    __str__ = text


def explain(
    resource: str, *, entity: str | None = None, requested: Requested = None, default_limits: Limits = ()
) -> Explanation:
    """Explain what `try_acquire` would decide now, from the database and the state; consumes nothing.

    Nothing requested explains every limit with the amount that it takes by default, 0 for rates.
    """
    while True:
        resolution = resolve(resource, entity, default_limits)
        try:
            return _explained(resolution, requested)
        except StaleConfiguration:
            continue


def _explained(resolution: Resolution, requested: Requested) -> Explanation:
    limit_set = resolution.limit_set
    try:
        outcome = limit_set.peek(dict.fromkeys(limit_set.rates, 0) if requested is None else requested)
    except NeverAdmissible as error:
        outcome = error.outcome
    return Explanation(
        resolution.resource, resolution.entity, resolution.considered, outcome, _dropped(resolution.considered)
    )


def _dropped(considered: tuple[Candidate, ...]) -> tuple[str, ...]:
    if not considered or considered[0].effect != PolicyEffect.LIMITS:
        return ()
    kept = {limit.key for limit in considered[0].limits}
    replaced = dict.fromkeys(limit.key for candidate in considered[1:] for limit in candidate.limits)
    return tuple(key for key in replaced if key not in kept)


def _line(status: LimitStatus, *, binds: bool) -> str:
    used = f"{status.key}: {status.remaining} of {status.capacity} left, {status.requested} requested"
    if status.never:
        return f"{used}; it can never admit as much."
    if status.overdrawn:
        return f"{used}; it is soft, and overdrawn by {status.overdrawn}."
    if not binds:
        return f"{used}."
    when = "when a permit is given back" if status.retry_after is None else f"in {status.retry_after:g} s"
    return f"{used}; it binds, and admits {when}."

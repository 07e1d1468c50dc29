"""Candidates of policies: setting, listing, promoting, discarding and reverting them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from django.utils import timezone

from limits_app import audit, signals
from limits_app.engine import Noted, limit_text
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import LimitDefinition
from limits_app.models import Candidate, CandidateState, EvaluationKind, Policy, PolicyEffect, noted_limits, write_alias
from limits_app.services import definitions
from limits_app.services.limit_sentences import rule_of
from limits_app.services.writing import LimitsInput
from limits_app.usage.evaluation_counter import entities, totals

logger = logging.getLogger("limits_app")

_FEWEST: Final = 20
"""How many entities a promoted candidate is judged by at least, before the time for that is over."""
_FEWEST_REJECTED: Final = 2
"""How many entities it must have rejected at least, so that one alone cannot have it reverted."""


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """A candidate, and how many requests it evaluated and would have rejected (once promoted: rejected).

    `by_key` has both numbers of each limit, and `trial_evaluated` and `trial_rejected` are those of the time before a
    promotion, which stay. Processes write their counts every second.
    """

    policy_id: int
    policy: str
    limits: str
    state: str
    percent: int
    evaluated: int
    rejected: int
    by_key: Mapping[str, tuple[int, int]]
    previous_limits: str
    trial_evaluated: int = 0
    trial_rejected: int = 0

    @property
    def rejected_percent(self) -> float:
        """The rejected requests in percent of those that were evaluated."""
        return round(100 * self.rejected / self.evaluated, 2) if self.evaluated else 0.0

    def as_dict(self) -> dict[str, object]:
        """The report as plain data, for JSON."""
        by_key = {key: {"evaluated": seen, "rejected": rejected} for key, (seen, rejected) in self.by_key.items()}
        return {**asdict(self), "by_key": by_key, "rejected_percent": self.rejected_percent}


def set_candidate(
    policy: Policy,
    limits: LimitsInput,
    *,
    percent: int = 100,
    revert_percent: int | None = None,
    revert_minutes: int = 10,
    reason: str = "",
    actor: str = "",
) -> Candidate:
    """Evaluate other limits beside those of a policy, for `percent` of the entities; replaces a former candidate.

    `limits` are limits or text, as for `set_resource_limits`. Once promoted, they are reverted when requests of more
    than `revert_percent` of the entities of the first `revert_minutes` are rejected (None: never).
    Raises InvalidLimit (a ValueError) with everything that is wrong.
    """
    text = limits if isinstance(limits, str) else " ".join(map(_text, limits))
    with audit.acting(actor=actor, source="service", reason=reason, using=write_alias()):
        stored = Candidate.objects.using(write_alias()).filter(policy=policy)
        stored.delete()
        candidate = Candidate(policy=policy, limits=text, percent=percent, reason=reason)
        candidate.revert_percent, candidate.revert_minutes = revert_percent, revert_minutes
        definitions.check(candidate)
        candidate.save(using=write_alias())
    return candidate


def candidates() -> list[CandidateReport]:
    """All candidates with what was counted of them, as far as processes have written it."""
    rows = Candidate.objects.using(write_alias()).select_related("policy__resource", "policy__entity", "policy__plan")
    return reports(rows)


def reports(rows: Iterable[Candidate]) -> list[CandidateReport]:
    """The reports of candidates, in their order."""
    candidates = list(rows)
    counted = totals([row.pk for row in candidates])
    return [_report(row, counted) for row in candidates]


def policy_of_id(policy_id: int) -> Policy:
    """The policy with this id; raises InvalidLimit if it does not exist."""
    policy = Policy.objects.using(write_alias()).filter(pk=policy_id).first()
    if policy is None:
        raise definitions.InvalidDefinition(
            {("policy",): [f"No policy has the id {policy_id}: the list of candidates has ids."]}
        )
    return policy


def promote_candidate(policy: Policy, *, reason: str = "", actor: str = "") -> Policy:
    """Give a policy the limits of its candidate; those before are kept, so that the promotion can be reverted.

    Raises InvalidLimit if the policy has no candidate that is tested.
    """
    return _changed(policy, CandidateState.TESTING, _promoted, reason=reason, actor=actor)


def revert_candidate(policy: Policy, *, reason: str = "", actor: str = "", source: str = "service") -> Policy:
    """Give a policy the limits from before the promotion of its candidate.

    Raises InvalidLimit if the policy has no promoted candidate, or its limits were changed after the promotion.
    """
    return _changed(policy, CandidateState.PROMOTED, _reverted, reason=reason, actor=actor, source=source)


def discard_candidate(policy: Policy, *, reason: str = "", actor: str = "") -> bool:
    """Delete the candidate of a policy, whose limits stay as they are; returns False if it has none."""
    with audit.acting(actor=actor, source="service", reason=reason, using=write_alias()):
        deleted, _by_model = Candidate.objects.using(write_alias()).filter(policy=policy).delete()
    return deleted > 0


def revert_candidates() -> list[Policy]:
    """Revert promoted candidates that rejected requests of more than their `revert_percent` of the entities.

    Returns their policies. It takes at least 2 rejected entities, so that one client cannot have its limits reverted,
    and before the time for that is over at least 20 entities. `limits.roll_up` calls it.
    """
    promoted = Candidate.objects.using(write_alias()).filter(state=CandidateState.PROMOTED).exclude(watched_until=None)
    reverted = []
    rows = list(promoted.select_related("policy"))
    counted = entities([row.pk for row in rows])
    for row in rows:
        evaluated, rejected = counted.get(row.pk, (0, 0))
        if not _is_too_strict(row, evaluated, rejected):
            continue
        share = f"requests of {rejected} of {evaluated} entities were rejected"
        try:
            policy = revert_candidate(row.policy, reason=share, source="auto-revert")
        except InvalidLimit as error:  # another process was first, or the policy was changed since
            logger.info("the candidate of policy %s is not reverted: %s", row.policy_id, error)
            continue
        logger.warning("the candidate of %s was reverted: %s", policy, share)
        signals.candidate_reverted.send_robust(sender=None, policy=str(policy), reason=share)
        reverted.append(policy)
    return reverted


def _is_too_strict(row: Candidate, evaluated: int, rejected: int) -> bool:
    """Whether a candidate that has evaluated so many entities, and rejected so many, is reverted."""
    is_over = row.watched_until is not None and row.watched_until <= timezone.now()
    is_enough = rejected >= _FEWEST_REJECTED and (is_over or evaluated >= _FEWEST)
    return is_enough and 100 * rejected > (row.revert_percent or 100) * evaluated


def _changed(
    policy: Policy,
    state: CandidateState,
    change: Callable[[Policy, Candidate], None],
    *,
    reason: str,
    actor: str,
    source: str = "service",
) -> Policy:
    """Change a policy and its candidate together; InvalidLimit unless it has one in that state."""
    using = write_alias()
    with audit.acting(actor=actor, source=source, reason=reason, using=using):
        current = Policy.objects.using(using).prefetch_related("limits").get(pk=policy.pk)
        candidate = Candidate.objects.using(using).filter(policy=current, state=state).first()
        if candidate is None:
            raise InvalidLimit(f"the policy {current} has no candidate that is {state.label}: set one first")
        change(current, candidate)
        candidate.save(using=using)
    return current


def _promoted(policy: Policy, candidate: Candidate) -> None:
    candidate.previous_effect, candidate.previous_limits = policy.effect, _limits_of(policy)
    candidate.state = CandidateState.PROMOTED
    if candidate.revert_percent is not None:
        candidate.watched_until = timezone.now() + timedelta(minutes=candidate.revert_minutes)
    _set(policy, PolicyEffect.LIMITS, candidate.limits)


def is_replaced(candidate: Candidate) -> bool:
    """Whether its limits were in force, and its policy has others since: reverting it would undo a later change."""
    return candidate.state == CandidateState.PROMOTED and not _has_limits(candidate.policy, candidate.limits)


def _has_limits(policy: Policy, limits: str) -> bool:
    is_limited = policy.effect == PolicyEffect.LIMITS
    return is_limited and {*_limits_of(policy).split()} == {*map(_text, noted_limits(limits))}


def _reverted(policy: Policy, candidate: Candidate) -> None:
    if not _has_limits(policy, candidate.limits):
        raise InvalidLimit(f"the limits of {policy} were changed since the candidate was enforced: set them again")
    candidate.state, candidate.watched_until = CandidateState.REVERTED, None
    _set(policy, candidate.previous_effect, candidate.previous_limits)


def _set(policy: Policy, effect: str, limits: str) -> None:
    """Give a policy an effect and limits; those of a policy that was made for a URL rule are the limits of the rule."""
    if (rule := rule_of(policy)) is not None:
        definitions.save(definitions.read(rule, {"limits": limits}, partial=True))
        return
    noted = noted_limits(limits) if limits else ()
    values: dict[str, Any] = {"effect": effect, "limits": list(noted)}
    if effect != PolicyEffect.LIMITS:
        values["extends"] = False
    definitions.save(definitions.read(policy, values, partial=True))


def _report(row: Candidate, counted: Mapping[tuple[int, str], Mapping[str, tuple[int, int]]]) -> CandidateReport:
    kind = EvaluationKind.CANDIDATE if row.state == CandidateState.TESTING else EvaluationKind.PROMOTED
    by_key = {**counted.get((row.pk, kind), {})}
    evaluated, rejected = by_key.pop("", (0, 0))
    trial = counted.get((row.pk, EvaluationKind.CANDIDATE), {}).get("", (0, 0))
    return CandidateReport(
        policy_id=row.policy_id,
        policy=str(row.policy),
        limits=row.limits,
        state=row.state,
        percent=row.percent,
        evaluated=evaluated,
        rejected=rejected,
        by_key=by_key,
        previous_limits=row.previous_limits,
        trial_evaluated=trial[0],
        trial_rejected=trial[1],
    )


def _limits_of(policy: Policy) -> str:
    return " ".join(row.notation() for row in policy.limits.all())


def _text(limit: LimitDefinition | Noted | str) -> str:
    match limit:
        case str():
            return limit
        case Noted():
            return limit_text(limit.limit, shared=limit.shared)
        case _:
            return limit_text(limit)

"""Explanations in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from limits_app.engine import BLOCK_LEVEL, NORMAL, UPSTREAM_LEVEL, limit_text
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit
from limits_app.engine.outcome import LimitStatus, plain_text
from limits_app.models import TOTALS, CandidateValue, Emergency, Enforcement, PolicyScope
from limits_app.policies import CODE, ENTITY_FLAGS, Access, AccessVerdict, PolicyStatus, PolicyValue
from limits_app.services.explain_pool import ExplainedMember, ExplainedPool, MemberStanding
from limits_app.services.limit_words import limit_name, period_in_words

if TYPE_CHECKING:
    from limits_app.services.explain import ExplainedLimit, ExplainedLink, Explanation

_WORDS: Final[Mapping[str, str]] = {
    ENTITY_FLAGS: "the entity itself",
    PolicyScope.ENTITY_ON_RESOURCE: "the policy of the entity on this resource",
    PolicyScope.ENTITY: "the policy of the entity on all resources",
    PolicyScope.PLAN_ON_RESOURCE: "the policy of the plan {subject} on this resource",
    PolicyScope.PLAN: "the policy of the plan {subject} on all resources",
    PolicyScope.PATTERN_ON_RESOURCE: "the policy of {subject} on this resource",
    PolicyScope.PATTERN: "the policy of {subject} on all resources",
    PolicyScope.RESOURCE: "the policy of the resource",
    PolicyScope.SYSTEM: "the policy of the system",
    PolicyScope.ENTITY_TOTAL: "the total of the entity over all resources",
    PolicyScope.PLAN_TOTAL: "the total of the plan {subject} over all resources",
    PolicyScope.PATTERN_TOTAL: "the total of {subject} over all resources",
    PolicyScope.SYSTEM_TOTAL: "the total of the system over all resources",
    CODE: "the limits that code sets",
}

_SENTENCES: Final[Mapping[PolicyStatus, str]] = {
    PolicyStatus.COUNTS: "In effect: {}.",
    PolicyStatus.EXTENDED: "It extends {}.",
    PolicyStatus.REPLACED: "Replaced: {}.",
    PolicyStatus.NOT_NOW: "Not in force now: {}.",
    PolicyStatus.NOT_ROLLED_OUT: "Not rolled out to this entity: {}.",
    PolicyStatus.SHADOW: "In shadow mode: {}.",
    PolicyStatus.OFF: "Disabled: {}.",
}
_SWITCH: Final[Mapping[Enforcement, str]] = {
    Enforcement.ENFORCE: "The emergency switch enforces limits",
    Enforcement.SHADOW: "The emergency switch has all limits in shadow mode: they never reject",
    Enforcement.OFF: "The emergency switch is off: nothing is limited",
}
_ACCESS: Final[Mapping[Access, str]] = {
    Access.BLOCKED: "blocked on all URLs",
    Access.EXEMPT: "exempt: its requests are charged nothing",
}
_ORDER: Final = tuple(_SENTENCES)


def sentences(explanation: Explanation) -> Iterator[str]:
    """An explanation as lines of text."""
    first, *above = explanation.chain
    yield from _head(explanation)
    yield from _access(explanation.access)
    yield from _about(first)
    if explanation.dropped:
        yield f"Unlimited here, but limited by a replaced policy: {', '.join(map(limit_name, explanation.dropped))}."
    yield from _limits(first.limits)
    for link in above:
        yield f"It cascades to {link.entity}, which is charged too."
        yield from _about(link)
        yield from (f"{link.entity}, {text}" for text in _limits(link.limits))
    if explanation.pool is not None:
        yield from _pool(explanation.pool, blocked=explanation.outcome.blocked)
    yield from _most_per_window(first.limits)
    yield from (unit.text() for unit in explanation.units)
    for currency in explanation.unpriced:
        yield f"{explanation.resource} has no price in {currency}, in which it is limited."
    for status in explanation.outcome.shadowed:
        yield f"In shadow mode, {_status(status)}; it would reject the request."
    if explanation.changes_at is not None:
        yield f"The limits may change at {explanation.changes_at:%Y-%m-%d %H:%M:%S} UTC."


def _access(verdict: AccessVerdict) -> Iterator[str]:
    if verdict.reason is not None:
        subject = verdict.reason.subject or "The system"
        words = _WORDS[verdict.reason.policy.level].format(subject=verdict.reason.policy.subject)
        yield f"{subject} is {_ACCESS[verdict.access]}, by {words}."


def _head(explanation: Explanation) -> Iterator[str]:
    who = "the site itself" if explanation.entity is None else explanation.entity
    yield f"{who} on {explanation.resource}: {'allowed' if explanation.outcome.allowed else 'rejected'} now."
    if explanation.emergency.mode != Enforcement.ENFORCE:
        yield emergency_text(explanation.emergency)
    if not explanation.known:
        yield "The resource has no row: only limits in code and policies for all resources apply."
    for status in explanation.outcome.violations:
        if status.level == UPSTREAM_LEVEL:
            yield f"Its upstream cools down for {status.retry_after:g} s."
        if status.level == BLOCK_LEVEL:
            yield f"A URL rule blocks it for {status.retry_after:g} s, since its limit was exceeded."
    yield from (f"Code also sets other limits here: {text}." for text in explanation.other_code_limits)
    if explanation.priority != NORMAL:
        yield f"Its requests have the priority {explanation.priority}."
    if explanation.store is not None:
        yield f"It is counted in the store {explanation.store!r}."


def emergency_text(emergency: Emergency) -> str:
    """The emergency switch in a sentence."""
    until = "" if emergency.until is None else f" until {emergency.until:%Y-%m-%d %H:%M:%S} UTC"
    why = f": {emergency.reason}" if emergency.reason else ""
    return f"{_SWITCH[emergency.mode]}{until}{why}."


def _pool(pool: ExplainedPool, *, blocked: bool) -> Iterator[str]:
    how = pool.load_balancing.replace("_", " ") + ("" if pool.failover else ", no failover")
    chosen = pool.chosen
    serves = "none of its members would serve" if chosen is None else f"{chosen.name} would serve"
    yield f"It is served by the pool {pool.name} ({how}): {serves}."
    for member in pool.members:
        limits = "".join(f"; {_status(status)}" for status in member.limits)
        yield f"{member.name}: {_standing(member, blocked=blocked)}{limits}."


def _standing(member: ExplainedMember, *, blocked: bool) -> str:
    if member.standing is MemberStanding.COOLING_DOWN:
        return f"{member.standing} for {member.cooling_seconds:g} s"
    if member.standing is MemberStanding.REFUSES and blocked:
        return f"{member.standing}, since everything is blocked"
    if member.standing is MemberStanding.REFUSES:
        return f"{member.standing}: retry {_when(member.retry_after)}"
    return str(member.standing)


def _about(link: ExplainedLink) -> Iterator[str]:
    if not link.verdicts:
        yield "No policy applies, so everything is allowed."
        return
    # What counts first, then what it does to others, then what is out of the question.
    for verdict in sorted(
        link.verdicts, key=lambda verdict: (verdict.policy.level in TOTALS, _ORDER.index(verdict.status))
    ):
        yield _SENTENCES[verdict.status].format(_named(verdict.policy))
    if not any(verdict.status is PolicyStatus.COUNTS for verdict in link.verdicts):
        yield "No other policy applies, so everything is allowed."


def _named(policy: PolicyValue) -> str:
    details = [str(policy.effect)]
    if policy.valid_from is not None:
        details.append(f"from {policy.valid_from:%Y-%m-%d %H:%M} UTC")
    if policy.valid_until is not None:
        details.append(f"until {policy.valid_until:%Y-%m-%d %H:%M} UTC")
    if policy.hours is not None:
        details.append("at weekly hours")
    if policy.rollout_percent < 100:
        details.append(f"for {policy.rollout_percent} % of the entities")
    if policy.candidate is not None:
        details.append(_candidate(policy.candidate))
    return f"{_WORDS[policy.level].format(subject=policy.subject)} ({', '.join(details)})"


def _candidate(candidate: CandidateValue) -> str:
    limits = " ".join(map(limit_text, candidate.limits))
    if candidate.watched_until is None:
        return f"with the candidate {limits}"
    return f"with the enforced candidate {limits}, watched until {candidate.watched_until:%Y-%m-%d %H:%M} UTC"


def _name(limit: ExplainedLimit) -> str:
    key = limit_name(limit.effective.limit.key)
    if limit.effective.policy.level in TOTALS:
        key = f"{key}, over all resources"
    return f"{key}, shared by all" if limit.effective.shared else key


def _limits(limits: Iterable[ExplainedLimit]) -> Iterator[str]:
    for limit in limits:
        yield _limit(limit)
        quota = limit.effective.limit
        if isinstance(quota, QuotaLimit) and quota.starts:
            yield f"{_name(limit)}: it counts {period_in_words(quota)}, {quota.time_zone}."
        for priority, percent in quota.keep:
            yield f"{_name(limit)}: requests of priority {priority} leave {percent} % free."


def _limit(limit: ExplainedLimit) -> str:
    key = _name(limit)
    if limit.status is None:
        if limit.idle is None or _is_blocked(limit.idle):
            return f"{key}: nothing requested."
        used = f"{plain_text(limit.idle.used)} of {plain_text(limit.idle.capacity)} used"
        return f"{key}: {used}, nothing requested."
    text = _status(limit.status, key)
    if limit.in_slices:
        text = f"{text}, {limit.in_slices} in slices of this process"
    if _is_blocked(limit.status):
        return f"{text} until {_block_ends(limit)}."
    if limit.status.never:
        return f"{text}; the request exceeds its maximum."
    if limit.status.overdrawn:
        return f"{text}; it is soft, and overdrawn by {limit.status.overdrawn}."
    if not limit.binds:
        return f"{text}."
    return f"{text}; it rejects: retry {_when(limit.status.retry_after)}."


def _most_per_window(limits: Iterable[ExplainedLimit]) -> Iterator[str]:
    """The most that each rate can admit in one window, where that is more than its capacity."""
    for explained in limits:
        limit = explained.effective.limit
        if isinstance(limit, RateLimit | CallLimit):
            most = limit.algorithm.most_per_window(limit.capacity, limit.burst)
            if most > limit.capacity:
                how = str(limit.algorithm).replace("_", " ")
                yield f"{_name(explained)}: a {how}, up to {most} can pass within {limit.window_seconds} s."


def _block_ends(limit: ExplainedLimit) -> str:
    policy = limit.effective.policy
    ends = policy.valid_until is not None or policy.hours is not None
    return "its policy ends" if ends else "its policy is changed"


def _is_blocked(status: LimitStatus) -> bool:
    return not (status.capacity or status.never)  # as no other limit has it


def _when(seconds: float | None) -> str:
    return "when a permit is released" if seconds is None else f"in {seconds:g} s"


def _status(status: LimitStatus, key: str | None = None) -> str:
    if _is_blocked(status):
        return f"{limit_name(status.key)}: all requests are rejected"
    left = f"{plain_text(status.remaining)} of {plain_text(status.capacity)} left"
    if status.priority:
        left = f"{left} for priority {status.priority}"
    return f"{key or limit_name(status.key)}: {left}, {plain_text(status.requested)} requested"

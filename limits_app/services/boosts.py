"""Granting boosts: higher limits for one entity until a time, which never lower a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from django.utils import timezone

from limits_app import audit, conf
from limits_app.engine import HOUR, Account, QuotaPeriod, check_entity, check_resource, limit_text
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import Blocked, EnforcedLimit, QuotaLimit, ResourceLimit
from limits_app.models import CodeLimits, Entity, Policy, Resource, write_alias
from limits_app.policies import PolicyChoice, choose_each, latest_code_limits_of_each
from limits_app.services.adjust import check_plan_known
from limits_app.services.amounts import one_client
from limits_app.services.writing import LimitsInput, checked_datetime, set_entity_limits

_DAYLIGHT_SAVING_SECONDS: Final = HOUR
"""By how much a day may be shorter or longer."""
_MOST_BOOSTS: Final = 100
"""How many boosts are compared with a limit."""


def grant_boost(  # noqa: PLR0917 - who gets what, until when and why: a sentence
    entity: str | Account,
    resource: str | None,
    limits: LimitsInput,
    until: datetime,
    reason: str,
    *,
    plan: str | None = None,
    actor: str = "",
) -> Policy:
    """Raise limits of an entity on a resource (None: on all) from now until a time; the others stay as they are.

    `plan` is as for `top_up`. A boost is for one entity, ends within `LIMITS["MAX_BOOST_DAYS"]`, and never lowers a
    limit, also none of a resource on which the entity has higher limits than on others.
    Raises InvalidLimit (a ValueError) if it would, or if it overlaps another boost; then nothing has changed.
    """
    name = check_entity(one_client(entity))
    check_boost_end(until)
    check_plan_known(name, plan)
    with audit.acting(actor=actor, source="service", reason=reason):
        return add_boost(name, resource, limits, BoostTime(timezone.now(), until, reason), plan=plan)


class BoostTime(NamedTuple):
    """When a boost begins and ends, and why: the policies that it makes have this in common."""

    valid_from: datetime
    valid_until: datetime
    reason: str


def add_boost(entity: str, resource: str | None, limits: LimitsInput, time: BoostTime, *, plan: str | None) -> Policy:
    """Make the policy of a boost, or of a part of one; raises InvalidLimit if that lowers a limit."""
    before = current_choices(entity, resource, plan)
    policy = set_entity_limits(entity, limits, resource=resource, extends=True, **time._asdict())
    after = current_choices(entity, resource, plan)
    for name, choice in before.items():
        if problem := next(_lowered(choice, after[name]), ""):
            where = "" if name is None else f" on {name}"
            raise InvalidLimit(f"a boost only raises limits{problem}{where}: set a policy instead")
    return policy


def boosted_together(policies: Iterable[Policy]) -> list[list[Policy]]:
    """Policies in their order, with those that one boost of a client made together, and each other by itself."""
    parts: dict[object, list[Policy]] = {}
    for policy in policies:
        time = (policy.valid_from, policy.valid_until, policy.reason)
        is_of_client = policy.entity_id is not None and None not in time
        parts.setdefault((policy.entity_id, time) if is_of_client else policy.pk, []).append(policy)
    return [
        group
        for part in parts.values()
        for group in ([part] if any(map(is_boost, part)) else [[policy] for policy in part])
    ]


def is_boost(policy: Policy) -> bool:
    """Whether a policy was made by a boost: it raises limits for a time."""
    return policy.extends and policy.valid_until is not None


def boosts_below(resource: str | None, limits: Iterable[EnforcedLimit]) -> list[Policy]:
    """The boosts of clients on a resource (None: on each) that now hold a client below one of these limits.

    Only the boosts that end first are looked at.
    A boost has the numbers of the time when it was granted: limits that are raised later may be higher.
    """
    now, by_key = timezone.now(), {limit.key: limit for limit in limits}
    boosts = Policy.objects.using(write_alias()).filter(extends=True, entity__isnull=False, valid_until__gt=now)
    boosts = boosts.filter(resource__name=resource) if resource else boosts.filter(resource=None)
    begun = boosts.filter(valid_from__lte=now, limits__key__in=by_key).distinct().order_by("valid_until", "pk")
    return [
        policy
        for policy in begun.select_related("entity").prefetch_related("limits")[:_MOST_BOOSTS]
        if any(
            _is_lower(boosted.definition(), by_key[boosted.key])
            for boosted in policy.limits.all()
            if boosted.key in by_key
        )
    ]


def check_boost_end(until: object) -> None:
    """Raise InvalidLimit unless a boost may end then: in the future, and within `LIMITS["MAX_BOOST_DAYS"]`."""
    end, now, most = checked_datetime("until", until), timezone.now(), conf.get(conf.MAX_BOOST_DAYS)
    if end <= now:
        raise InvalidLimit(f"a boost until {until} has ended already: pass a time in the future")
    if most is not None and end > now + timedelta(days=most):
        raise InvalidLimit(
            f"a boost until {until} is too long: LIMITS['MAX_BOOST_DAYS'] allows {most} days; set a policy instead"
        )


def current_choices(entity: str, resource: str | None, plan: str | None) -> dict[str | None, PolicyChoice]:
    """The effective policies of an entity on a resource, or on each resource, and by None on all others.

    The limits that code used last are among them.
    """
    names: list[str] = [] if resource is None else [check_resource(resource)]
    if resource is None:
        of_rows = Resource.objects.using(write_alias()).values_list("name", flat=True)
        names = sorted({*of_rows, *CodeLimits.objects.using(write_alias()).values_list("resource", flat=True)})
    of_code = latest_code_limits_of_each(names)
    places: list[str | None] = [None, *names] if resource is None else [*names]
    pairs = [(None if name is None else Resource(name=name), Entity(identifier=entity)) for name in places]
    choices = [choice for choice, _store in choose_each(pairs, timezone.now(), plan, of_code=of_code)]
    return dict(zip(places, choices, strict=True))


def _lowered(before: PolicyChoice, after: PolicyChoice) -> Iterator[str]:
    """What a boost lowers, as the rest of a sentence."""
    old = {scoped.limit.key: scoped.limit for scoped in before.limits}
    if Blocked.key in old:
        return
    for scoped in after.limits:
        key, new = scoped.limit.key, scoped.limit
        if key not in old:
            yield f", and {before.entity} has no limit {key}"
        elif _is_lower(new, old[key]):
            yield f", and {before.entity} has {_text(old[key])}, which {_text(new)} would lower"


def _is_lower(new: EnforcedLimit, old: EnforcedLimit) -> bool:
    """Whether a limit may reject what another one would allow: at one time or in the long run."""
    if new.soft or old.soft:
        return not new.soft
    if isinstance(new, ResourceLimit) or isinstance(old, ResourceLimit):
        return not _holds_as_much(new, old)
    if new.ceiling < old.ceiling:
        return True
    if isinstance(new, QuotaLimit) and isinstance(old, QuotaLimit) and new.period == old.period is not None:
        return False  # periods of the same length, and the ceiling is the capacity
    return _decimal(new.capacity) * _seconds(old)[0] < _decimal(old.capacity) * _seconds(new)[1]


def _holds_as_much(new: EnforcedLimit, old: EnforcedLimit) -> bool:
    if not (isinstance(new, ResourceLimit) and isinstance(old, ResourceLimit)) or new.capacity < old.capacity:
        return False
    longest, needed = new.max_hold_seconds, old.max_hold_seconds
    return longest is None or (needed is not None and longest >= needed)


def _seconds(limit: EnforcedLimit) -> tuple[Decimal, Decimal]:
    """The least and the most seconds in which the capacity becomes available again."""
    if isinstance(limit, QuotaLimit) and limit.period is not None:
        period = QuotaPeriod(limit.period)
        shift = 0 if period is QuotaPeriod.HOUR else _DAYLIGHT_SAVING_SECONDS
        return Decimal(period.shortest_seconds - shift), Decimal(period.longest_seconds + shift)
    seconds = _decimal(getattr(limit, "session_seconds", None) or limit.window_seconds)  # type: ignore[union-attr]
    return seconds, seconds


def _decimal(number: float) -> Decimal:
    return Decimal(str(number))


def _text(limit: EnforcedLimit) -> str:
    return limit.key if isinstance(limit, Blocked) else limit_text(limit)

"""Boosts by a factor: for an entity, or for all to whom a policy applies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from typing import Final

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext

from limits_app import audit
from limits_app.engine import (
    MAX_AMOUNT,
    Account,
    Amount,
    Noted,
    check_entity,
    counts_money,
    from_micro,
    shown,
    to_micro,
)
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.limits import Blocked, CallLimit, LimitDefinition, RateLimit
from limits_app.models import (
    Counted,
    Enforcement,
    Policy,
    PolicyEffect,
    write_alias,
)
from limits_app.models.policy_rules import not_ended
from limits_app.policies import PolicyChoice
from limits_app.services import definitions
from limits_app.services.adjust import check_plan_known
from limits_app.services.amounts import one_client
from limits_app.services.boosts import BoostTime, add_boost, check_boost_end, current_choices
from limits_app.services.writing import set_entity_limits

_THOUSANDTH: Final = Decimal("0.001")
_MOST_BOOSTED: Final = 100


def boost(  # noqa: PLR0917 - who gets how much more, until when and why: a sentence
    entity: str | Account,
    resource: str | None,
    factor: Decimal | float,
    until: datetime,
    reason: str,
    *,
    plan: str | None = None,
    actor: str = "",
) -> Policy:
    """Multiply each effective limit of an entity on a resource (None: on all) until a time.

    `plan` is as for `top_up`. Shared limits stay as they are.
    See `grant_boost`; raises InvalidRequest where no limit can be multiplied.
    """
    name, times = check_entity(one_client(entity)), _times_as_much(factor)
    check_plan_known(name, plan)
    check_boost_end(until)
    with audit.acting(actor=actor, source="service", reason=reason):
        return _boosted_by(times, name, resource, BoostTime(timezone.now(), until, reason), plan=plan)


def _boosted_by(times: Decimal, entity: str, resource: str | None, time: BoostTime, *, plan: str | None) -> Policy:
    """The policy of a boost of an entity on a resource (None: on all)."""
    before = _own(current_choices(entity, resource, plan)[resource])
    limits = [_multiplied(limit, times) for limit in before]
    on = "all resources" if resource is None else resource
    if not limits:
        raise InvalidRequest(f"nothing limits {entity} on {on} that could be boosted")
    if limits == before:
        raise InvalidRequest(f"a boost by {times} changes no limit of {entity} on {on}: amounts are rounded down")
    return add_boost(entity, resource, limits, time, plan=plan)


def boost_each(
    entity: str | Account,
    factor: Decimal | float,
    until: datetime,
    reason: str,
    *,
    plan: str | None = None,
    actor: str = "",
) -> list[Policy]:
    """`boost` of an entity on each resource that limits it, also by policies for all resources; all of them, or none.

    A resource without limits stays unlimited, also by a new policy where that of all resources would limit it.
    Raises InvalidRequest where nothing limits the entity, or where more than 100 resources have their own limits.
    """
    name, times = check_entity(one_client(entity)), _times_as_much(factor)
    check_boost_end(until)
    with audit.acting(actor=actor, source="service", reason=reason):
        resources, unlimited = _limiting(name, plan)
        if not resources:
            raise InvalidRequest(f"nothing limits {name} that could be boosted")
        if (count := len(resources) + len(unlimited)) > _MOST_BOOSTED:
            raise InvalidRequest(
                f"{count} resources have their own limits for {name}, and at most {_MOST_BOOSTED} can be boosted "
                "together: name a resource"
            )
        time = BoostTime(timezone.now(), until, reason)
        kept = [
            set_entity_limits(name, [], resource=unlimited_resource, effect="unlimited", **time._asdict())
            for unlimited_resource in unlimited
        ]
        return [*kept, *(_boosted_by(times, name, resource, time, plan=plan) for resource in resources)]


def boost_to(  # noqa: PLR0917 - which limit of whom becomes how much, until when and why: a sentence
    entity: str | Account,
    resource: str,
    key: str,
    capacity: Amount,
    until: datetime,
    reason: str,
    *,
    plan: str | None = None,
    actor: str = "",
) -> Policy:
    """Raise one limit of an entity on a resource to a capacity until a time; the others stay as they are.

    `key` is the key of the limit, and `plan` is as for `top_up`. See `grant_boost`; raises InvalidRequest where the
    entity has no such limit of its own.
    """
    name = check_entity(one_client(entity))
    check_plan_known(name, plan)
    check_boost_end(until)
    with audit.acting(actor=actor, source="service", reason=reason):
        own = _own(current_choices(name, resource, plan)[resource])
        limit = next((limit for limit in own if limit.key == key), None)
        if limit is None:
            raise InvalidRequest(f"{name} has no limit {shown(key)} of its own on {resource} that could be boosted")
        raised = replace(limit, capacity=capacity)  # type: ignore[arg-type]  # checked by the limit itself
        return add_boost(name, resource, [raised], BoostTime(timezone.now(), until, reason), plan=plan)


def _limiting(entity: str, plan: str | None) -> tuple[list[str | None], list[str]]:
    """The resources on which other limits apply to an entity than on all others, and None for those last.

    The second list are the resources without limits where there are some on all others.
    """
    check_plan_known(entity, plan)
    choices = current_choices(entity, None, plan)
    on_others = choices.pop(None)
    resources: list[str | None] = [
        resource
        for resource, choice in choices.items()
        if _own(choice) and (_own(choice) != _own(on_others) or choice.uses_code)
    ]
    if not _own(on_others):
        return resources, []
    return [*resources, None], [resource for resource, choice in choices.items() if resource and not choice.limits]


def _own(choice: PolicyChoice) -> list[LimitDefinition]:
    """The limits that count for the entity alone, and can be boosted."""
    return [
        effective.limit for effective in choice.limits if not (effective.shared or isinstance(effective.limit, Blocked))
    ]


@dataclass(frozen=True, slots=True)
class PlannedBoost:
    """A permanent policy, its limits before and during a boost, and why it cannot be boosted (empty: it can)."""

    policy: Policy
    before: tuple[Noted, ...] = ()
    after: tuple[Noted, ...] = ()
    problem: str = ""


def planned_boosts(policies: Iterable[Policy], factor: Decimal | float, until: datetime) -> list[PlannedBoost]:
    """Say for each policy what a boost would change, or why it is impossible; changes nothing."""
    times = _times_as_much(factor)
    return [_planned(policy, times, until) for policy in policies]


def boost_policies(
    policies: Sequence[Policy], factor: Decimal | float, until: datetime, reason: str, *, actor: str = ""
) -> list[Policy]:
    """Multiply the limits of permanent policies until a time, for all to whom they apply; all of them, or none.

    Each boost is a temporary policy of the same scope. Raises InvalidRequest with everything that is impossible.
    """
    check_boost_end(until)
    plans = planned_boosts(policies, factor, until)
    if problems := [f"{planned.policy}: {planned.problem}" for planned in plans if planned.problem]:
        raise InvalidRequest("; ".join(problems))
    now = timezone.now()
    with audit.acting(actor=actor, reason=reason):
        return [_boosted(planned, now, until, reason) for planned in plans]


def _planned(policy: Policy, times: Decimal, until: datetime) -> PlannedBoost:
    if policy.effect != PolicyEffect.LIMITS:
        return PlannedBoost(policy, problem=gettext("it has no limits"))
    if policy.enforcement != Enforcement.ENFORCE:
        return PlannedBoost(policy, problem=gettext("it is not enforced"))
    if policy.valid_from is not None or policy.weekly_hours:
        return PlannedBoost(policy, problem=gettext("it is not permanent"))
    same = Q(resource=policy.resource_id, entity=policy.entity_id, plan=policy.plan_id, counted=policy.counted)
    if Policy.objects.using(write_alias()).filter(same, not_ended(timezone.now()), valid_from__lt=until).exists():
        return PlannedBoost(policy, problem=gettext("a temporary policy applies in this time already"))
    try:
        before = tuple(limit.noted() for limit in policy.limits.all())
        after = tuple(Noted(_multiplied(noted.limit, times), noted.shared) for noted in before)
    except InvalidLimit as error:  # too large, or written past the validation of the model
        return PlannedBoost(policy, problem=str(error))
    if before == after:
        return PlannedBoost(policy, problem=gettext("this factor changes no limit: amounts are rounded down"))
    return PlannedBoost(policy, before, after)


def _boosted(planned: PlannedBoost, now: datetime, until: datetime, reason: str) -> Policy:
    policy = planned.policy
    row = Policy(resource=policy.resource, entity=policy.entity, plan=policy.plan)
    fields = {
        "counted": policy.counted,
        "extends": policy.counted != Counted.TOTAL,
        "valid_from": now,
        "valid_until": until,
        "reason": reason,
        "limits": list(planned.after),
    }
    definition = definitions.read(row, fields, partial=True)
    definitions.save(definition)
    return row


def _times_as_much(factor: object) -> Decimal:
    if isinstance(factor, Decimal | float | int) and not isinstance(factor, bool):
        exact = Decimal(str(factor))
        if exact.is_finite() and 1 < exact <= MAX_AMOUNT:
            return exact
    raise InvalidRequest(f"boost factor must be a finite number greater than 1, such as 2; got {shown(factor)}")


def _multiplied(limit: LimitDefinition, factor: Decimal) -> LimitDefinition:
    times = _times_money if counts_money(limit) else _times
    if isinstance(limit, RateLimit | CallLimit) and limit.burst is not None:
        return replace(limit, capacity=times(limit.capacity, factor), burst=times(limit.burst, factor))
    return replace(limit, capacity=times(limit.capacity, factor))  # type: ignore[arg-type]  # whole numbers stay whole


def _times(amount: Amount, factor: Decimal) -> Amount:
    """A product, rounded down: to whole numbers where the amount is one."""
    product = Decimal(str(amount)) * factor
    return int(product) if isinstance(amount, int) else float(product.quantize(_THOUSANDTH, ROUND_DOWN))


def _times_money(amount: Amount, factor: Decimal) -> Amount:
    """A product, rounded down to millionths."""
    return from_micro(int(to_micro(amount) * factor))

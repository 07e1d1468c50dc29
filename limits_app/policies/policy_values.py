"""Policies as values: what the fields of a policy, and the flags of an entity, mean."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from limits_app.conf import OnUnavailable
from limits_app.engine import Noted
from limits_app.engine.errors import UnknownTimeZone
from limits_app.engine.limits import LimitDefinition
from limits_app.models.candidate import CandidateValue
from limits_app.models.patterns import is_pattern, specificity
from limits_app.models.policy import scope_by_names
from limits_app.models.policy_rules import Enforcement, PolicyEffect
from limits_app.models.weekly_hours import WeeklyHours

logger = logging.getLogger("limits_app")

ENTITY_FLAGS: Final = "entity_row"
"""The level of the flags `blocked` and `unlimited` of an entity."""


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """A policy as a value: level, effect, limits, and when it is enforced.

    `policy_id` is None for the flags of an entity and for limits passed by a call. `on_unavailable` is None if the
    policy does not set it. `shared` contains the keys of shared limits. `subject` is the plan or the pattern that the
    policy is for, and of several patterns the one with the highest `specificity` applies. `candidate` is one that is
    tested, or whose rejections are counted after its promotion.
    """

    level: str
    effect: PolicyEffect
    limits: tuple[LimitDefinition, ...]
    policy_id: int | None
    on_unavailable: OnUnavailable | None = None
    extends: bool = False
    shared: frozenset[str] = frozenset()
    enforcement: Enforcement = Enforcement.ENFORCE
    rollout_percent: int = 100
    slice_seconds: int = 0
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    hours: WeeklyHours | None = None
    subject: str = ""
    specificity: int = 0
    candidate: CandidateValue | None = None


@dataclass(frozen=True, slots=True)
class EntityPolicies:
    """An entity (None: the site itself), and the policies that may apply to it, in no particular order.

    `billing_from` is its billing date, or that of the nearest entity above it that has one (None: none has one).
    `plan` is the plan that applies to it, empty for none.
    """

    entity: str | None
    policies: tuple[PolicyValue, ...]
    billing_from: datetime | None = None
    plan: str = ""


def policy_of_flags(*, blocked: bool | None, unlimited: bool | None) -> tuple[PolicyValue, ...]:
    """A policy in place of the `blocked` and `unlimited` fields of an entity; none where both are unset."""
    if not (blocked or unlimited):
        return ()
    return (PolicyValue(ENTITY_FLAGS, PolicyEffect.BLOCKED if blocked else PolicyEffect.UNLIMITED, (), None),)


_NOT_SHARED: Final = frozenset[str]()
"""One object for most policies, since many may be in memory."""


def policy_value(
    fields: Mapping[str, Any],
    limits: Iterable[Noted],
    *,
    policy_id: int,
    identifier: str | None,
    plan: str | None,
    has_resource: bool,
    candidate: CandidateValue | None = None,
) -> PolicyValue:
    """What a policy with the values of its fields means, for an entity with an identifier, for a plan, or for all."""
    level = scope_by_names(
        identifier, has_plan=plan is not None, has_resource=has_resource, counted=fields["counted"]
    ).value
    # Always in the same order, because every process must compile the same layout.
    noted = sorted(limits, key=lambda definition: definition.limit.key)
    shared = [definition.limit.key for definition in noted if definition.shared]
    pattern = identifier if identifier is not None and is_pattern(identifier) else None
    unavailable, hours = fields["on_unavailable"], fields["weekly_hours"]
    return PolicyValue(
        level=level,
        effect=PolicyEffect(fields["effect"]),
        limits=tuple(definition.limit for definition in noted),
        policy_id=policy_id,
        on_unavailable=OnUnavailable(unavailable) if unavailable else None,
        extends=bool(fields["extends"]),
        shared=frozenset(shared) if shared else _NOT_SHARED,
        enforcement=Enforcement(fields["enforcement"]),
        rollout_percent=fields["rollout_percent"],
        slice_seconds=fields["slice_seconds"],
        valid_from=fields["valid_from"],
        valid_until=fields["valid_until"],
        hours=_hours(hours, fields["time_zone"], policy_id) if hours else None,
        subject=plan or pattern or "",
        specificity=specificity(pattern) if pattern else 0,
        candidate=candidate,
    )


def _hours(text: str, zone: str, policy_id: int) -> WeeklyHours:
    try:
        return WeeklyHours.parse(text, zone)
    except UnknownTimeZone:
        raise
    except ValueError as error:  # written past the validation of the model
        logger.warning("policy %s never applies, because its hours are invalid: %s", policy_id, error)
        return WeeklyHours.NEVER

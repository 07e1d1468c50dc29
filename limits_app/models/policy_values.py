"""Policies as values: what is read of them, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from limits_app.conf import OnUnavailable
from limits_app.core.limits import Limit as Definition
from limits_app.models.candidate import CandidateValue
from limits_app.models.emergency import ENFORCED, Emergency
from limits_app.models.policy_rules import Enforcement, PolicyEffect
from limits_app.models.weekly_hours import WeeklyHours

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
    limits: tuple[Definition, ...]
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
    """An entity (None: the site itself), and the policies that may apply to it, in no particular order."""

    entity: str | None
    policies: tuple[PolicyValue, ...]


@dataclass(frozen=True, slots=True)
class PolicyChain:
    """The entities that are charged, the entity itself first, the name of the pool that serves the resource (None: no
    pool), and the alias of the store in which the resource is counted (None: the default one); `known` says whether
    the resource has a row. `emergency` is the emergency switch, as it is in force. `cooling_until` is the end of a
    cool-down of the resource, in microseconds since 1970; 0 for none.
    """

    links: list[EntityPolicies]
    pool: str | None
    store: str | None = None
    known: bool = True
    emergency: Emergency = ENFORCED
    cooling_until: int = 0


class Subject(NamedTuple):
    """What policies are read for: a resource (None: all resources), and an entity (None: the site itself).

    `plan` is the name of the plan of the request; the plan of the entity, or of one above it, precedes it.
    """

    resource: str | None
    entity: str | None
    plan: str | None = None

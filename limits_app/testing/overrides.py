"""Other limits than those of the database, for the time of a test; nothing is asked of a database, or written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.test.utils import TestContextDecorator

from limits_app.core.keys import EntityName, check_entity, check_resource, entity_name
from limits_app.core.limits import Limit
from limits_app.core.notation import checked_limits
from limits_app.core.record import schema_of
from limits_app.integrations.endpoints import endpoints
from limits_app.models import CodeLimits, Endpoint, EntityPolicies, PolicyEffect, PolicyValue, code_limits
from limits_app.models.policy_values import PolicyChain, Subject
from limits_app.resolver.policies import CODE
from limits_app.resolver.resolution import policy_source
from limits_app.testing.isolation import BLOCKS, forget, read_endpoints

_IN_FORCE: Final[list[_Override]] = []


@dataclass(frozen=True, slots=True)
class _Override:
    """An override in effect; `resource` and `entity` are None for all of them."""

    resource: str | None
    entity: str | None
    effect: PolicyEffect
    limits: tuple[Limit, ...] = ()

    def is_about(self, resource: str, entity: str | None) -> bool:
        return self.resource in {None, resource} and self.entity in {None, entity}

    def chain(self, entity: str | None) -> PolicyChain:
        return PolicyChain([EntityPolicies(entity, (PolicyValue(CODE, self.effect, self.limits, None),))], None)


class _Overriding(TestContextDecorator):
    """Has an override hold, in all threads; of several that are about the same, the latest."""

    def __init__(self, override: _Override) -> None:
        super().__init__()
        self._override = override

    def enable(self) -> None:
        """Begin."""
        _IN_FORCE.append(self._override)
        BLOCKS.append(self)
        policy_source.read, policy_source.code_limits = _read, _code_limits
        endpoints.read = _read_endpoints
        forget()

    def disable(self) -> None:
        """Restore the former limits."""
        _IN_FORCE.reverse()
        _IN_FORCE.remove(self._override)
        _IN_FORCE.reverse()
        BLOCKS.remove(self)
        forget()


class override_limits(_Overriding):  # noqa: N801 - used like a function
    """Replace the limits of a resource, for one entity or by default for all.

    They may be text such as `"100/min tokens=1M/day"`. Without limits everything is allowed, with `blocked` nothing.
    Recorded use is kept, as when an administrator changes limits.
    A context manager, and a decorator of functions, of coroutines and of test cases.
    Raises InvalidLimit for names and invalid limits.
    """

    def __init__(self, resource: str, *limits: Limit | str, entity: EntityName = None, blocked: bool = False) -> None:
        check_resource(resource)
        entity = None if entity is None else check_entity(entity_name(entity))
        checked = checked_limits(limits)
        schema_of(checked)  # which says what cannot be together
        effect = PolicyEffect.LIMITS if checked else PolicyEffect.UNLIMITED
        super().__init__(_Override(resource, entity, PolicyEffect.BLOCKED if blocked else effect, checked))


class disable_limits(_Overriding):  # noqa: N801 - used like a function
    """Have nothing limited, or nothing on one resource; where nothing is, no endpoints are asked for either."""

    def __init__(self, resource: str | None = None) -> None:
        if resource is not None:
            check_resource(resource)
        super().__init__(_Override(resource, None, PolicyEffect.UNLIMITED))


_in_database: Final = policy_source.read


def _code_limits(resource: str) -> Sequence[CodeLimits]:
    """The limits that code sets, as far as no override takes their place."""
    overridden = any(override.resource in {None, resource} for override in _IN_FORCE)
    return () if overridden else code_limits(resource)


def _read(subject: Subject, database: str, now: datetime) -> PolicyChain:
    for override in reversed(_IN_FORCE):
        if override.is_about(str(subject.resource), subject.entity):
            return override.chain(subject.entity)
    return _in_database(subject, database, now)


def _read_endpoints(database: str) -> Iterable[Endpoint]:
    disabled = any(override.resource is None for override in _IN_FORCE)
    return () if disabled else read_endpoints(database)

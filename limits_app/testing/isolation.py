"""Unused limits, and other limits than those of the database, for the duration of a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from time import time, time_ns
from typing import Any, Final

from django.test.utils import TestContextDecorator

from limits_app.acquiring import Store
from limits_app.alerts import recorder
from limits_app.engine import SECOND_US, EntityName, check_entity, check_resource, checked_limits, schema_of
from limits_app.engine.limits import LimitDefinition
from limits_app.forgetting import forget_compiled, forget_use
from limits_app.models import CodeLimits, Endpoint, PolicyEffect, code_limits
from limits_app.models.in_tests import is_forbidden
from limits_app.models.users import entity_name
from limits_app.policies import (
    AccessTable,
    PolicyChain,
    Subject,
    balancers,
    chain_in_code,
    policy_source,
    read_in_background,
    resolver,
)
from limits_app.services.url_matching import endpoints
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing.clock import FakeClock
from limits_app.usage.writer import write_in_background

_endpoints_in_database: Final = endpoints.read
_access_in_database: Final = endpoints.read_access
_policies_in_database: Final = policy_source.read

_BLOCKS: Final[list[object]] = []
"""The blocks of this module that are in effect."""
_IN_FORCE: Final[list[_Override]] = []
"""The overrides in effect; of several that are about the same, the latest applies."""


def _code_limits(*resources: str) -> Sequence[CodeLimits]:
    """Return the limits that code sets, unless they are overridden."""
    overridden = {override.resource for override in _IN_FORCE}
    return (
        () if None in overridden else code_limits(*[resource for resource in resources if resource not in overridden])
    )


def _read_policies(subject: Subject, database: str, now: datetime) -> PolicyChain:
    for override in reversed(_IN_FORCE):
        if override.is_about(subject.resource, subject.entity):
            return override.chain(subject.entity)
    try:
        return _policies_in_database(subject, database, now)
    except Exception as error:
        if subject.resource is not None or not is_forbidden(error):
            raise
        return chain_in_code(subject.entity)  # no entity is blocked or exempt


def _read_endpoints(database: str) -> Iterable[Endpoint]:
    """Return the endpoints in a database; none while all limits are disabled, or where the test may not use it.

    Without a database there are none, and the middleware reads them for every request, also for a page without limits.
    """
    if any(override.resource is None for override in _IN_FORCE):
        return ()
    try:
        return list(_endpoints_in_database(database))
    except Exception as error:
        if not (_BLOCKS and is_forbidden(error)):
            raise
        return ()


def _read_access(database: str) -> AccessTable:
    """Return who is blocked or exempt; empty while all limits are disabled, or where the database may not be used."""
    if any(override.resource is None for override in _IN_FORCE):
        return AccessTable()
    try:
        return _access_in_database(database)
    except Exception as error:
        if not (_BLOCKS and is_forbidden(error)):
            raise
        return AccessTable()


class fresh_limits(TestContextDecorator):  # noqa: N801 - used like a function
    """Replace each store of the site by an empty memory store, and compile all limits again.

    What the process remembers of suspended members of pools, unavailable stores and limits near their end is forgotten,
    at the beginning and at the end. Where the database may not be used there are no endpoints.
    A context manager, and a decorator of functions, coroutines and test cases; each test of a case starts with unused
    limits.
    """

    def __init__(self, *, attr_name: str | None = None, kwarg_name: str | None = None) -> None:
        super().__init__(attr_name, kwarg_name)
        self._blocks: list[ExitStack] = []

    def enable(self) -> Any:
        """Begin."""
        write_in_background(False)
        read_in_background(False)
        with ExitStack() as block:
            block.callback(forget_use)
            _BLOCKS.append(self)
            block.callback(_BLOCKS.remove, self)
            endpoints.read, endpoints.read_access = _read_endpoints, _read_access
            block.enter_context(balancers.sharing(shares_cool_downs=False))
            clock = self._replace(block)
            forget_use()
            self._blocks.append(block.pop_all())
        return clock

    def disable(self) -> None:
        """Go on with the stores that were there before."""
        self._blocks.pop().close()

    def _replace(self, block: ExitStack) -> FakeClock | None:
        block.enter_context(registry.instead(_Memory().store))
        return None


class freeze_limits(fresh_limits):  # noqa: N801 - used like a function
    """`fresh_limits` whose time stands still, and is moved by the FakeClock that the block gets.

    As a decorator it hands the clock to a function as the argument `kwarg_name`, to a test case as its `attr_name`.
    It starts at `at`, in seconds since 1970, by default now. Dates and weekly hours of policies, and
    the times of alerts, come as it is moved.
    """

    def __init__(self, *, at: float | None = None, attr_name: str | None = None, kwarg_name: str | None = None) -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)
        self._at = at

    def __enter__(self) -> FakeClock:  # type: ignore[override]  # which says that it gives settings
        clock: FakeClock = self.enable()
        return clock

    def _replace(self, block: ExitStack) -> FakeClock:
        now = time_ns() // 1_000
        clock = FakeClock(now if self._at is None else round(self._at * SECOND_US))
        block.enter_context(registry.instead(_Memory(clock).store))
        block.callback(setattr, resolver, "clock", resolver.clock)
        # Not the time of the clock itself: what a test writes begins now, which would be later than that.
        resolver.clock = lambda: time() + (clock.now_us - now) / SECOND_US
        block.callback(setattr, recorder, "now", recorder.now)
        recorder.now = resolver.clock
        return clock


class _Memory:
    """Memory stores by alias, opened when they are first asked for."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self._clock = clock
        self._stores: dict[str, Store] = {}

    def store(self, alias: str) -> Store:
        store = self._stores.get(alias)
        if store is None:
            opened = MemoryStore() if self._clock is None else MemoryStore(clock=self._clock)
            store = self._stores.setdefault(alias, opened)
        return store


@dataclass(frozen=True, slots=True)
class _Override:
    """An override in effect; `resource` and `entity` are None for all of them."""

    resource: str | None
    entity: str | None
    effect: PolicyEffect
    limits: tuple[LimitDefinition, ...] = ()

    def is_about(self, resource: str | None, entity: str | None) -> bool:
        return self.resource in {None, resource} and self.entity in {None, entity}

    def chain(self, entity: str | None) -> PolicyChain:
        return chain_in_code(entity, self.effect, self.limits)


class _Overriding(TestContextDecorator):
    """Has an override hold, in all threads; of several that are about the same, the latest."""

    def __init__(self, override: _Override) -> None:
        super().__init__()
        self._override = override

    def enable(self) -> None:
        """Begin."""
        _IN_FORCE.append(self._override)
        _BLOCKS.append(self)
        policy_source.read, policy_source.code_limits = _read_policies, _code_limits
        endpoints.read, endpoints.read_access = _read_endpoints, _read_access
        forget_compiled()

    def disable(self) -> None:
        """Restore the former limits."""
        _IN_FORCE.reverse()
        _IN_FORCE.remove(self._override)
        _IN_FORCE.reverse()
        _BLOCKS.remove(self)
        if not _IN_FORCE:  # clients without rows share what is compiled again
            policy_source.read, policy_source.code_limits = _policies_in_database, code_limits
        forget_compiled()


class override_limits(_Overriding):  # noqa: N801 - used like a function
    """Replace the limits of a resource, for one entity or by default for all.

    They may be text such as `"100/min tokens=1M/day"`. Without limits everything is allowed, with `blocked` nothing.
    Recorded use is kept, as when an administrator changes limits.
    A context manager, and a decorator of functions, of coroutines and of test cases.
    Raises InvalidLimit for names and invalid limits.
    """

    def __init__(
        self, resource: str, *limits: LimitDefinition | str, entity: EntityName = None, blocked: bool = False
    ) -> None:
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

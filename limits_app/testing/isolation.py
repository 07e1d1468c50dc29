"""Unused limits for the duration of a test."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from time import time, time_ns
from typing import Any, Final

from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]  # it is there since 4.2
from django.test.utils import TestContextDecorator

from limits_app.alerts import recorder
from limits_app.core.planning import forget_warnings
from limits_app.core.store import Store
from limits_app.integrations.endpoints import endpoints
from limits_app.models import Endpoint
from limits_app.resolver.balancers import balancers
from limits_app.resolver.cache import resolver
from limits_app.services.notify import thresholds
from limits_app.services.shadow import forget_shadow_refusals
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing.clock import FakeClock
from limits_app.usage.denial_counter import denials
from limits_app.usage.evaluation_counter import evaluations
from limits_app.usage.writer import write_in_background

_SECOND = 1_000_000
_FORBIDDEN: Final = "Database access not allowed"
"""What pytest-django says where a test may not ask the database."""

_endpoints_in_database: Final = endpoints.read


BLOCKS: Final[list[object]] = []
"""What of this package is in force."""


def read_endpoints(database: str) -> Iterable[Endpoint]:
    """The endpoints in a database; inside of a block, none where the test may not ask it.

    It could have none there, and the middleware asks for every request, also for one of a page without limits.
    """
    try:
        return list(_endpoints_in_database(database))
    except (DatabaseOperationForbidden, RuntimeError) as error:
        forbids = isinstance(error, DatabaseOperationForbidden) or str(error).startswith(_FORBIDDEN)
        if not (BLOCKS and forbids):
            raise
        return ()


def forget() -> None:
    """Drop what this process keeps of limits: rows that it was compiled from, or stores, may be others now."""
    registry.forget_stores()
    resolver.clear()
    endpoints.clear()
    denials.clear()
    evaluations.clear()
    recorder.clear()


def forget_use() -> None:
    """Drop what this process remembers beside the stores of how limits were used."""
    forget()
    balancers.clear()
    thresholds.clear()
    forget_shadow_refusals()
    forget_warnings()


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
        with ExitStack() as block:
            block.callback(forget_use)
            BLOCKS.append(self)
            block.callback(BLOCKS.remove, self)
            if endpoints.read is _endpoints_in_database:
                endpoints.read = read_endpoints
            block.callback(setattr, balancers, "shares_cool_downs", balancers.shares_cool_downs)
            balancers.shares_cool_downs = False
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
    It starts at `at`, in seconds since 1970, by default now. Dates and weekly hours of policies come as it is moved.
    """

    def __init__(self, *, at: float | None = None, attr_name: str | None = None, kwarg_name: str | None = None) -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)
        self._at = at

    def __enter__(self) -> FakeClock:  # type: ignore[override]  # which says that it gives settings
        clock: FakeClock = self.enable()
        return clock

    def _replace(self, block: ExitStack) -> FakeClock:
        now = time_ns() // 1_000
        clock = FakeClock(now if self._at is None else round(self._at * _SECOND))
        block.enter_context(registry.instead(_Memory(clock).store))
        block.callback(setattr, resolver, "clock", resolver.clock)
        # Not the time of the clock itself: what a test writes begins now, which would be later than that.
        resolver.clock = lambda: time() + (clock.now_us - now) / _SECOND
        return clock


class _Memory:
    """Memory stores by alias, opened when they are first asked for."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self._clock = clock
        self._stores: dict[str, Store] = {}

    def store(self, alias: str) -> Store:
        found = self._stores.get(alias)
        if found is None:
            opened = MemoryStore() if self._clock is None else MemoryStore(clock=self._clock)
            found = self._stores.setdefault(alias, opened)
        return found

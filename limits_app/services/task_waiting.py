"""When a rejected task is tried again.

If all tasks came back at the time that a rejection names, a thousand waiting tasks would be tried for each one that is
admitted, and the last one might be the first. So they wait in the line of the limit; see `task_lines`. Of a limit that
keeps a share free for higher priorities, each priority has its line, and waits for the lines of higher ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from limits_app.acquiring import Acquisition, Store, delay, jittered
from limits_app.engine import SECOND_US, PlannedLimit, Scope, ScopedLimits, higher_than
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit
from limits_app.services.task_lines import Line, LinePlace, line_of, read_lines

_LINE_SPEED: Final = 0.99
"""The time in which places move by what the limit admits in 1."""
_QUOTA_TASK_US: Final = 10_000
"""How far apart tasks come when a quota starts again."""
_LONGEST_PAUSE_SECONDS: Final = 0.5
_LEAST_PAUSE_SECONDS: Final = 0.01
_FIRST_POLL_SECONDS: Final = 0.25
_LONGEST_POLL_SECONDS: Final = 4.0


class Waiting:
    """The places of a task in the lines of its limits, by the key of the line; they travel in a header of its message.

    Each object is for one attempt.
    """

    def __init__(self, places: Mapping[str, LinePlace]) -> None:
        self.places = dict(places)
        self._patience_seconds = _LONGEST_PAUSE_SECONDS if places else 0.0
        self._lines: dict[str, Line] = {}

    def pauses(self, seconds: float) -> bool:
        """Whether a task that is tried after so many seconds waits for that in its process, without being sent again.

        That is for tasks which were sent again and come a little too early. Behind all others in the broker, they would
        be too late the next time. A new task never waits here, so that a long queue holds up no others.
        """
        self._patience_seconds -= max(seconds, _LEAST_PAUSE_SECONDS)
        return self._patience_seconds >= 0

    def seconds_to_turn(self, prepared: Acquisition) -> float:
        """Return in how many seconds it is the turn of a task; 0 where it is to be tried now.

        A task that has no place joins the line where others wait. A store that is unavailable has no lines.
        Raises StaleConfiguration for limits that have changed.
        """
        waits_us = [0]
        with suppress(StoreUnavailable):
            # Members of a pool replace each other, so that none is waited for.
            demands = [demand for demand in _demands(prepared) if demand.scope.member is None]
            if not demands or not prepared.can_fit:
                return 0
            limits = prepared.limit_set
            lines = [line for demand in demands for line in (demand.line, *demand.higher_lines(limits.store))]
            self._lines = read_lines(lines, limits.store, version=limits.version)
            for demand in demands:
                key = demand.line.key
                line, place = self._lines[key], self.places.get(key)
                higher_lines = [self._lines[higher.key] for higher in demand.higher_lines(limits.store)]
                until_higher_us = [higher.end - higher.now for higher in higher_lines if higher.is_contended]
                if place is None and (line.is_contended or until_higher_us):
                    self.places[key], wait_us = line.join(demand.service_us)
                    waits_us.append(wait_us)
                elif place is not None and line.must_wait(place):
                    waits_us.append(line.turn(place))
                waits_us += until_higher_us
        return max(waits_us) / SECOND_US

    def seconds_to_retry(self, refused: Acquisition, tries: int) -> float:
        """Return after how many seconds a rejected task is tried again; `tries` counts earlier attempts.

        Nothing predicts when another task returns a permit: those are polled, at growing intervals.
        """
        binding = refused.outcome.binding
        if binding is None or binding.retry_after is None:
            return a_little_later(delay(tries + 1, first=_FIRST_POLL_SECONDS, cap=_LONGEST_POLL_SECONDS))
        for demand in _demands(refused):
            scope, key = demand.scope, demand.limit.rule.key
            if (key, scope.resource, scope.entity) == (binding.key, binding.resource, binding.entity):
                return self._us_in_line(demand, refused, round(binding.retry_after * SECOND_US)) / SECOND_US
        return a_little_later(binding.retry_after)

    def _us_in_line(self, demand: _Demand, refused: Acquisition, retry_us: int) -> int:
        """Return in how many microseconds a task is tried again that a limit with a line has rejected."""
        key = demand.line.key
        line, place = self._lines.get(key), self.places.get(key)
        if line is None:
            line = read_lines([demand.line], refused.limit_set.store)[key]
        if place is not None:
            return line.come_again(place, retry_us)
        self.places[key], wait_us = line.join(demand.service_us, retry_us)
        return wait_us


def a_little_later(seconds: float) -> float:
    """Return the seconds with a random addition of about a tenth, at most one."""
    return jittered(seconds, above=min(0.1 * seconds + 0.01, 1.0))


class _Demand(NamedTuple):
    """The amount of a task, in parts, of a limit that has a line."""

    limit: PlannedLimit
    scope: Scope
    amount: int
    line: ScopedLimits

    def higher_lines(self, store: Store) -> list[ScopedLimits]:
        """The lines of tasks of higher priorities, which come first."""
        if not self.limit.priority:
            return []
        return [line_of(self.scope, self.limit, store, name) for name in higher_than(self.limit.priority)]

    @property
    def service_us(self) -> int:
        """How far its place is from the one before."""
        definition = self.limit.rule.limit
        if not isinstance(definition, RateLimit | CallLimit):
            return _QUOTA_TASK_US
        units = self.amount / self.limit.rule.parts_per_amount
        return round(units / definition.capacity * definition.window_seconds * _LINE_SPEED * SECOND_US)


def _demands(acquisition: Acquisition) -> Iterator[_Demand]:
    """Return what a task needs of limits that have lines: rates and quotas, which say when they admit it."""
    for limit in acquisition.shape.limits:
        amount, definition = acquisition.amounts[limit.position], limit.rule.limit
        if amount and not definition.soft and isinstance(definition, RateLimit | CallLimit | QuotaLimit):
            scope = acquisition.plan.scopes[limit.scope_index]
            store = acquisition.limit_set.store
            yield _Demand(limit, scope, amount, line_of(scope, limit, store, limit.priority))

"""Circuit breakers of upstreams: `acquiring.breaker`, with seconds, events and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from limits_app.acquiring import BreakerPolicy, BreakerState, CircuitBreaker
from limits_app.engine import SECOND_US, Clock
from limits_app.engine.errors import LimitsError
from limits_app.outbound.client import ResourceClient, WrappingClient
from limits_app.outbound.errors import CircuitOpen, UpstreamFailed, check_counts, check_durations, check_periods
from limits_app.outbound.events import BreakerChanged, Observer, silent
from limits_app.outbound.messages import Request, Response

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_SECONDS: Final = 1e9
"""Used for longer times, and for infinity."""


def loop_us() -> int:
    """Return microseconds of the clock of the running event loop."""
    return round(asyncio.get_running_loop().time() * SECOND_US)


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """Opens when `failure_ratio` of at least `min_calls` within `interval_seconds` have failed.

    It stays open for `cool_down_seconds`, twice as long each time that a probe fails, at most `most_cool_down_seconds`.
    Then `probes` requests may pass at a time; as many successes close it.
    Raises ValueError for a ratio outside 0 to 1, counts below 1, and negative times.
    """

    failure_ratio: float = 0.5
    min_calls: int = 10
    interval_seconds: float = 30.0
    cool_down_seconds: float = 5.0
    most_cool_down_seconds: float = 300.0
    probes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.failure_ratio <= 1:
            raise ValueError(f"failure_ratio must be between 0 and 1, not {self.failure_ratio}")
        check_counts(min_calls=self.min_calls, probes=self.probes)
        check_periods(interval_seconds=self.interval_seconds)
        check_durations(cool_down_seconds=self.cool_down_seconds, most_cool_down_seconds=self.most_cool_down_seconds)

    def policy(self) -> BreakerPolicy:
        """Return the rules in microseconds."""
        return BreakerPolicy(
            failure_ratio=self.failure_ratio,
            min_calls=self.min_calls,
            interval_us=max(_microseconds(self.interval_seconds), 1),
            open_us=_microseconds(self.cool_down_seconds),
            max_open_us=_microseconds(self.most_cool_down_seconds),
            probes=self.probes,
            successes=self.probes,
        )


def _microseconds(seconds: float) -> int:
    return round(min(seconds, _LONGEST_SECONDS) * SECOND_US)


class Breaker:
    """The circuit breaker of one upstream, on the clock of the running event loop."""

    def __init__(
        self, rules: BreakerRules | None = None, *, name: str = "upstream", observer: Observer = silent
    ) -> None:
        self.name = name
        self._circuit = CircuitBreaker(
            (rules or BreakerRules()).policy(),
            clock=Clock(loop_us),
            on_change=lambda _, state: observer.note(BreakerChanged(name, state)),
        )

    @property
    def state(self) -> BreakerState:
        """The current state."""
        return self._circuit.state

    async def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call any coroutine function; raises CircuitOpen instead while the circuit breaker is open.

        Failures are exceptions, and responses with a status of 500 or more. A cancelled call, and an error of this
        package that says nothing about the upstream, such as LimitExceeded or Unavailable, is not counted.
        """
        entry = self._circuit.enter()
        if entry is None:
            raise CircuitOpen(self.name, self._circuit.retry_after_us() / SECOND_US)
        failed: bool | None = None
        try:
            result = await function(*args, **kwargs)
            failed = isinstance(result, Response) and result.failed
        except Exception as error:
            failed = True if isinstance(error, UpstreamFailed) or not isinstance(error, LimitsError) else None
            raise
        finally:
            self._circuit.leave(entry, failed=failed)
        return result

    def wrap(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Return a coroutine function that calls `function` through this circuit breaker."""

        @wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.call(function, *args, **kwargs)

        return guarded


class BreakerClient(WrappingClient):
    """Sends requests through a circuit breaker."""

    def __init__(self, client: ResourceClient, breaker: Breaker) -> None:
        super().__init__(client)
        self.breaker = breaker

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; raises CircuitOpen while the circuit breaker is open."""
        return await self.breaker.call(self._client.send, request)

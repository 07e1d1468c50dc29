"""Circuit breaker of an upstream: one that fails is not called for a while, and then called carefully.

The state machine is `limits_app.core.breaker.CircuitBreaker`; this module gives it seconds, events and errors.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from limits_app.core.breaker import BreakerPolicy, BreakerState, CircuitBreaker, Entry
from limits_app.core.clock import Clock
from limits_app.outbound.bounds import check_counts, check_durations, check_periods
from limits_app.outbound.client import ResourceClient
from limits_app.outbound.errors import CircuitOpen, UpstreamFailed
from limits_app.outbound.events import BreakerTurned, Observer, silent
from limits_app.outbound.messages import Request, Response

__all__ = ["Breaker", "BreakerClient", "BreakerRules", "BreakerState"]

_SECOND: Final = 1_000_000
_LONGEST_SECONDS: Final = 1e9
"""Stands for longer times, and for infinity."""


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
        """The same for the state machine, in microseconds."""
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
    return round(min(seconds, _LONGEST_SECONDS) * _SECOND)


class Breaker:
    """The circuit breaker of one upstream. The clock is by default that of the running event loop."""

    def __init__(
        self,
        rules: BreakerRules | None = None,
        *,
        name: str = "upstream",
        observer: Observer = silent,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        loop_clock = Clock(lambda: round(asyncio.get_running_loop().time() * _SECOND))
        self._circuit = CircuitBreaker(
            (rules or BreakerRules()).policy(),
            clock=loop_clock if clock is None else clock,
            on_change=lambda _, state: observer.note(BreakerTurned(name, state)),
        )

    @property
    def state(self) -> BreakerState:
        """The current state."""
        return self._circuit.state

    def enter(self) -> Entry:
        """Let a request pass; returns what `leave` needs. Raises CircuitOpen when it must not pass."""
        entry = self._circuit.enter()
        if entry is None:
            raise CircuitOpen(self.name, self._circuit.retry_after_us() / _SECOND)
        return entry

    def leave(self, entry: Entry, *, failed: bool | None) -> None:
        """Count a request that has ended; None for one that says nothing, for example because it was cancelled."""
        self._circuit.leave(entry, failed=failed)


class BreakerClient:
    """Sends a request if the breaker lets it pass; no answer, and a status of 500 or more, are failures."""

    def __init__(self, client: ResourceClient, breaker: Breaker) -> None:
        self.breaker = breaker
        self._client = client

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; raises CircuitOpen while the circuit breaker is open."""
        entry = self.breaker.enter()
        failed: bool | None = None
        try:
            response = await self._client.send(request)
            failed = response.failed
        except UpstreamFailed:
            failed = True
            raise
        finally:
            self.breaker.leave(entry, failed=failed)
        return response

    async def aclose(self) -> None:
        """Close the client behind it."""
        await self._client.aclose()

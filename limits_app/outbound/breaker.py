"""The circuit breaker: an upstream that fails is left alone for a while, and then asked carefully."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from limits_app.core.breaking import SLICES, BreakerState, RecentCalls
from limits_app.outbound.bounds import check_counts, check_durations, check_periods
from limits_app.outbound.client import ResourceClient
from limits_app.outbound.errors import CircuitOpen, UpstreamFailed
from limits_app.outbound.events import BreakerTurned, Observer, silent
from limits_app.outbound.messages import Request, Response

__all__ = ["Breaker", "BreakerClient", "BreakerRules", "BreakerState"]


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """Opens when `failure_ratio` of at least `min_calls` within `interval_seconds` have failed.

    It stays open for `cool_down_seconds`, twice as long each time that a probe fails, at most `most_cool_down_seconds`.
    Then `probes` requests may pass at a time; as many successes close it.
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


class Breaker:
    """Decides for one upstream; time is an argument, in seconds of a clock that does not go back."""

    def __init__(
        self, rules: BreakerRules | None = None, *, name: str = "upstream", observer: Observer = silent
    ) -> None:
        self.name = name
        self.state = BreakerState.CLOSED
        self._rules = rules or BreakerRules()
        self._observer = observer
        self._recent = RecentCalls(self._rules.failure_ratio, self._rules.min_calls)
        self._round = 0
        self._opened_in_vain = 0
        self._opens_at = 0.0
        self._probing = 0
        self._successes = 0

    def enter(self, now: float) -> int:
        """A request wants to pass: returns the round it belongs to, for `leave`. CircuitOpen when it must not."""
        if self.state is BreakerState.OPEN and now >= self._opens_at:
            self._turn_to(BreakerState.HALF_OPEN)
        if self.state is BreakerState.OPEN:
            raise CircuitOpen(self.name, self._opens_at - now)
        if self.state is BreakerState.HALF_OPEN:
            if self._probing >= self._rules.probes:
                raise CircuitOpen(self.name, self._rules.cool_down_seconds)
            self._probing += 1
        return self._round

    def leave(self, turn: int, now: float, *, failed: bool | None) -> None:
        """A request is done; `failed` is None when it said nothing about the upstream, as when it was cancelled."""
        if turn != self._round:
            return  # it began before the breaker turned, and says nothing about now
        if self.state is BreakerState.HALF_OPEN:
            self._probed(now, failed)
        elif failed is not None:
            self._count(now, failed=failed)

    def _probed(self, now: float, failed: bool | None) -> None:
        self._probing -= 1
        if failed:
            self._open(now)
        elif failed is False:
            self._successes += 1
            if self._successes >= self._rules.probes:
                self._opened_in_vain = 0
                self._turn_to(BreakerState.CLOSED)

    def _count(self, now: float, *, failed: bool) -> None:
        if self._recent.fail_too_often(int(now * SLICES / self._rules.interval_seconds), failed=failed):
            self._open(now)

    def _open(self, now: float) -> None:
        seconds = self._rules.cool_down_seconds * 2.0 ** min(self._opened_in_vain, 30)
        self._opens_at = now + min(seconds, self._rules.most_cool_down_seconds)
        self._opened_in_vain += 1
        self._turn_to(BreakerState.OPEN)

    def _turn_to(self, state: BreakerState) -> None:
        self.state = state
        self._round += 1
        self._probing = self._successes = 0
        self._recent.clear()
        self._observer.note(BreakerTurned(self.name, state))


class BreakerClient:
    """Sends as long as the breaker lets it; no answer, and an answer of 500 or more, are failures."""

    def __init__(self, client: ResourceClient, breaker: Breaker) -> None:
        self.breaker = breaker
        self._client = client

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; raises CircuitOpen while the upstream is left alone."""
        loop = asyncio.get_running_loop()
        turn = self.breaker.enter(loop.time())
        failed: bool | None = None
        try:
            response = await self._client.send(request)
            failed = response.failed
        except UpstreamFailed:
            failed = True
            raise
        finally:
            self.breaker.leave(turn, loop.time(), failed=failed)
        return response

    async def aclose(self) -> None:
        """Close the client behind it."""
        await self._client.aclose()

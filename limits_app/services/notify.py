"""Notifications: observers and signals of decisions, and warnings when a limit is nearly used up.

They cost next to nothing where no observer and no receiver is registered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from time import monotonic
from typing import Final, NamedTuple, Protocol

from django.db import connections

from limits_app import conf, signals
from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import IDEMPOTENCY_LEVEL, PlannedLimit, QuotaPeriod, Scope, ScopedLimits, State, schema_of
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import AnyLimit, CallLimit, LimitDefinition, QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.usage.denial_counter import denials

logger = logging.getLogger("limits_app")

_SECOND: Final = 1_000_000
_MAX_REMEMBERED: Final = 10_000
_CONCURRENCY_SECONDS: Final = 60
"""Concurrency limits have no window: their warnings are sent at most once a minute."""


class DecisionObserver(Protocol):
    """Counts decisions; must not block or raise."""

    def admitted(self, resource: str) -> None:
        """A request on a resource was admitted."""

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        """A request was rejected, perhaps after it had waited."""

    def waited(self, seconds: float) -> None:
        """A request has waited for `seconds`, whether it was admitted or not."""


OBSERVERS: Final[list[DecisionObserver]] = []
"""The observers of every decision in this process."""

_SENDING: Final[set[asyncio.Future[None]]] = set()


def rejected(outcome: Outcome, *, waited: bool = False) -> None:
    """Count a rejection, and notify observers and receivers."""
    denials.note(outcome)
    for observer in OBSERVERS:
        observer.refused(outcome, waited=waited)
    if signals.limit_exceeded.receivers:
        signals.limit_exceeded.send_robust(sender=None, outcome=outcome)


def admitted(resource: str, acquisition: Acquisition, *, in_task: bool = False) -> None:
    """Notify observers of a request that was admitted, and receivers of limits that are nearly used up.

    `in_task` calls receivers in a thread, and does not wait for them: they may use a database.
    """
    for admitted_on in _resources(acquisition, resource) if OBSERVERS else ():
        for observer in OBSERVERS:
            observer.admitted(admitted_on)
    if not signals.limit_near.receivers:
        return
    crossings = thresholds.crossings(acquisition)
    if crossings and in_task:
        sending = asyncio.get_running_loop().run_in_executor(None, copy_context().run, _send_in_thread, crossings)
        _SENDING.add(sending)
        sending.add_done_callback(_SENDING.discard)
    else:
        _send(crossings)


@contextmanager
def waiting() -> Iterator[None]:
    """Measure how long the block waits."""
    started = monotonic()
    try:
        yield
    except LimitTimeout:
        _report_wait(started)
        raise
    _report_wait(started)


def _report_wait(started: float) -> None:
    for observer in OBSERVERS:
        observer.waited(monotonic() - started)


def _resources(acquisition: Acquisition, resource: str) -> Collection[str]:
    """The resources of a request, without the pools that serve them."""
    scopes = acquisition.scopes
    if len(scopes) == 1:
        return (resource,)
    return {scope.resource or resource for scope in scopes if scope.member is None} or (resource,)


def _send(crossings: Sequence[Crossing]) -> None:
    try:
        for crossing in crossings:
            crossing.send()
    except Exception:
        logger.exception("the limit_near signal could not be sent")


def _send_in_thread(crossings: Sequence[Crossing]) -> None:
    try:
        _send(crossings)
    finally:
        connections.close_all()


class Crossing(NamedTuple):
    """A limit whose use is beyond a threshold; the process that acquires `send_limit` sends the signal."""

    status: LimitStatus
    threshold: float
    window: str
    send_limit: LimitSet

    def send(self) -> None:
        """Send `limit_near`, unless another process that shares the store has sent it in this window."""
        if self.send_limit.try_acquire():
            signals.limit_near.send_robust(
                sender=None, status=self.status, threshold=self.threshold, window=self.window
            )


class Thresholds:
    """Finds limits beyond a threshold of NEAR_THRESHOLDS, once for each window; remembers up to `most` of them."""

    def __init__(self, most: int = _MAX_REMEMBERED) -> None:
        self._most = most
        self._sent_until: dict[str, int] = {}

    def crossings(self, acquisition: Acquisition) -> list[Crossing]:
        """The limits of an acquisition beyond a threshold, each with the highest one."""
        return [] if acquisition.outcome.degraded else list(self._crossings(acquisition))

    def clear(self) -> None:
        """Forget which signals were sent."""
        self._sent_until.clear()

    def _crossings(self, acquisition: Acquisition) -> Iterator[Crossing]:
        levels, now = conf.get(conf.NEAR_THRESHOLDS), acquisition.decided_at
        for limit, scope, state in acquisition.limits():
            used = limit.rule.used(state, now) / limit.rule.ceiling_parts
            crossed = [level for level in levels if used >= level]
            if not crossed or limit.level == IDEMPOTENCY_LEVEL:
                continue
            seconds = _window_seconds(limit.rule.limit)
            name = f"{scope.key}!{limit.rule.key}!{crossed[-1]}!{_window_end(limit, state)}"
            if self._sent_until.get(name, 0) <= now:
                self._remember(name, now + round(seconds * _SECOND))
                window = _window_end(limit, state) or str(now // round(seconds * _SECOND))
                send_limit = _send_limit(acquisition, name, seconds)
                yield Crossing(acquisition.outcome.passed[limit.place], crossed[-1], window, send_limit)

    def _remember(self, name: str, until: int) -> None:
        if len(self._sent_until) >= self._most:
            self._sent_until = {}  # `send_limit`, in the store, still prevents a second signal
        self._sent_until[name] = until


thresholds: Final = Thresholds()
"""The thresholds of this process."""


def _window_end(limit: PlannedLimit, state: State) -> str:
    """The end of a window or a period in microseconds since 1970; empty for limits without a fixed end."""
    return str(limit.rule.restored_at(state)) if limit.rule.has_fixed_end else ""


def _window_seconds(limit: AnyLimit) -> float:
    match limit:
        case RateLimit() | CallLimit():
            return limit.window_seconds
        case QuotaLimit(period=None, session_seconds=seconds):
            return seconds or _CONCURRENCY_SECONDS
        case QuotaLimit(period=str(period)):
            return QuotaPeriod(period).longest_seconds
        case _:
            return _CONCURRENCY_SECONDS


def _send_limit(acquisition: Acquisition, name: str, seconds: float) -> LimitSet:
    """A limit of one signal in a window, for all processes that share the store."""
    store = acquisition.limit_set.store
    limits: tuple[LimitDefinition, ...] = (CallLimit(1, seconds, RateLimitAlgorithm.FIXED_WINDOW),)
    return LimitSet.composed([ScopedLimits(Scope(name), schema_of(limits, store.lease_us))], store)

"""Collection: records the counts and states of this process before metrics are exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import nan
from time import monotonic
from typing import Any, Final, TypeVar

from django.db import close_old_connections, router

from limits_app import services
from limits_app.acquiring import on_fork
from limits_app.engine import SECOND_US, Clock, lasts, monotonic_us
from limits_app.engine.locks import RLock
from limits_app.engine.outcome import Outcome
from limits_app.metrics.decisions import DecisionCounts, KnownNames, Result
from limits_app.metrics.instruments import Labels, Recorder
from limits_app.models import CollectedBatch, Enforcement, Price
from limits_app.models.fields import aware
from limits_app.models.own_queries import Failures, failures
from limits_app.policies import resolver
from limits_app.stores.background import BackgroundTask
from limits_app.usage.denial_counter import denials
from limits_app.usage.evaluation_counter import evaluations

K = TypeVar("K", bound=Labels)

_DATABASE_SECONDS: Final = 60.0


class Collection:
    """Records the metrics of this process with all its recorders; an observer of decisions, a timer of store calls.

    Without an exporter that asks, as in the multi-process mode of Prometheus, it collects by itself: a second after a
    decision or a failure, and while a store is unavailable, in a background thread that ends when there is nothing to
    record. `clock` returns seconds, and
    `task_clock`, by which the thread runs, microseconds.
    """

    def __init__(
        self, *, by_itself: bool = False, clock: Callable[[], float] = monotonic, task_clock: Clock | None = None
    ) -> None:
        self.recorders: list[Recorder] = []
        self.decisions = DecisionCounts()
        self.names = KnownNames()
        self._by_itself = by_itself
        self._clock = clock
        self._task = BackgroundTask(self._step, SECOND_US, clock=task_clock or Clock(monotonic_us))
        self._totals: dict[str, Mapping[Any, int]] = {}
        self._database_read_at = 0.0
        self._spent: set[Labels] = set()
        """The labels of costs that were recorded, which are 0 on the next day."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start with free locks in a child."""
        self._lock = RLock()
        self._failures = Failures(clock=self._clock)
        self._has_news = False
        self._is_degraded = False

    # ---------------------------------------------------------------------------------- events, during requests

    def admitted(self, resource: str, priority: str = "") -> None:
        """See `Observer.admitted`."""
        self.decisions.admitted(resource, priority)
        self._start()

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        """See `Observer.refused`."""
        self.decisions.refused(outcome, waited=waited)
        self._start()

    def waited(self, seconds: float) -> None:
        """See `Observer.waited`."""
        self._record("wait_seconds", seconds)

    def store_called(self, alias: str, verb: str, seconds: float, *, failed: bool) -> None:
        """See `Timer`."""
        self._record("store_call_seconds", seconds, (alias, verb))
        if failed:
            self._record("store_errors", 1, (alias, verb))
            self._start()

    def read_failed(self) -> None:
        """See `Failures.observers`."""
        self._start()

    def worker_called(self, worker: str, result: str, seconds: float) -> None:
        """See `limits_app.acquiring.observers.CALL_OBSERVERS`."""
        self._record("worker_call_seconds", seconds, (worker, result))

    # ---------------------------------------------------------------------------------- collection

    def collect(self) -> None:
        """Record all counts and states as of now."""
        self._database_read_at = 0.0
        self._collect()

    def _collect(self) -> None:
        with self._lock:
            try:
                for read in (self._decisions, self._stores, self._resolver, self._shadows, self._database):
                    self._attempt(read)
            finally:
                close_old_connections()

    def _start(self) -> None:
        self._has_news = True
        if self._by_itself:
            self._task.start()

    def _step(self) -> int | None:
        if not (self._has_news or self._is_degraded):
            return None
        self._has_news = False
        self._collect()
        return SECOND_US

    def _attempt(self, read: Callable[[], None]) -> None:
        """Read one part; an error, such as an unavailable database, does not affect the others, and is logged."""
        try:
            read()
        except Exception as error:  # noqa: BLE001 - whatever fails, the other metrics matter all the more
            part = read.__name__.strip("_")
            self._failures.note(part, "metrics cannot be read (%s): %s", part, error)

    def _decisions(self) -> None:
        decisions, refusals, priorities = self.decisions.take()
        for labels, number in self.names.bounded(decisions).items():
            self._record("decisions", number, labels)
        for labels, number in self.names.bounded(refusals, by_limit=True).items():
            self._record("refusals", number, labels)
        for (resource, decided), number in self.names.bounded(priorities).items():
            priority, _, result = decided.partition(" ")
            self._record("priority_decisions", number, (resource, priority, result))

    def _shadows(self) -> None:
        refusals = services.shadow_refusals()
        totals = {(resource, key): number for resource, keys in refusals.items() for key, number in keys.items()}
        increase = dict(self._increase("shadow_refusals", totals))
        for labels, number in self.names.bounded(increase, by_limit=True).items():
            self._record("shadow_refusals", number, labels)
        decided = {
            (str(policy), str(kind), Result.REFUSED if is_rejected else Result.ADMITTED): number
            for (policy, kind, is_rejected), number in evaluations.decided().items()
        }
        for label, number in self._increase("evaluations", decided):
            self._record("evaluations", number, label)

    def _stores(self) -> None:
        health = services.store_health()
        self._is_degraded = any(store.state.level or store.unsettled for store in health.values())
        for alias, store in health.items():
            self._record("store_state", store.state.level, (alias,))
            self._record("store_unsettled", store.unsettled, (alias,))
        degraded = {(alias, str(policy)): n for alias, store in health.items() for policy, n in store.degraded.items()}
        for labels, number in self._increase("degraded_decisions", degraded):
            self._record("degraded_decisions", number, labels)

    def _resolver(self) -> None:
        info = resolver.info()
        for name, total in (("resolver_hits", info.hits), ("resolver_misses", info.misses)):
            for _, number in self._increase(name, {(): total}):
                self._record(name, number)
        for label, number in self._increase("unresolved", {(reason,): number for reason, number in failures.totals()}):
            self._record("unresolved", number, label)
        self._record("resolver_kept", info.size)
        self._record("denials_unwritten", denials.waiting)

    def _database(self) -> None:
        if self._database_read_at and lasts(self._database_read_at, _DATABASE_SECONDS, self._clock()):
            return
        self._database_read_at = self._clock()
        self._record("usage_lag_seconds", nan)  # unknown, unless it can be read
        self._record("emergency_mode", nan)
        self._record("emergency_mode", [*Enforcement].index(services.emergency().mode))
        using = router.db_for_read(CollectedBatch)
        latest = CollectedBatch.objects.using(using).order_by("-collected_at").first()
        if latest is not None:
            lag = datetime.now(UTC) - aware(latest.collected_at)
            self._record("usage_lag_seconds", max(lag.total_seconds(), 0.0))
        self._spend()

    def _spend(self) -> None:
        """Record what today's usage costs; a site without prices has none."""
        spent: dict[Labels, Decimal] = dict.fromkeys(self._spent, Decimal(0))
        if Price.objects.using(router.db_for_read(Price)).exists():
            midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
            for spend in services.spend(by="resource", since=midnight):
                labels: Labels = (self.names.resource(spend.resource or ""), spend.currency)
                spent[labels] = spent.get(labels, Decimal(0)) + spend.amount
        self._spent = set(spent)
        for recorded, amount in spent.items():
            self._record("spend_today", float(amount), recorded)

    def _increase(self, name: str, totals: Mapping[K, int]) -> Iterator[tuple[K, int]]:
        """Yield by how much totals have grown since the last collection; one that was reset starts from 0."""
        before = self._totals.get(name, {})
        self._totals[name] = dict(totals)
        for labels, total in totals.items():
            last = before.get(labels, 0)
            yield labels, total - last if total >= last else total

    def _record(self, name: str, value: float, labels: Labels = ()) -> None:
        for recorder in self.recorders:
            recorder.record(name, value, labels)

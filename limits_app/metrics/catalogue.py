"""The catalogue of metrics: each with its name, what it says, its labels, and how it is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from django.db import close_old_connections, router
from django.utils import timezone

from limits_app import services
from limits_app.metrics.durations import Durations
from limits_app.metrics.names import known
from limits_app.metrics.tallies import tallies
from limits_app.models import CollectedBatch
from limits_app.resolver import resolver
from limits_app.usage import denials

__all__ = ["HISTOGRAMS", "METRICS", "Histogram", "Kind", "Metric", "Samples"]

logger = logging.getLogger("limits_app")

Samples = Iterator[tuple[tuple[str, ...], float]]
"""Values of labels, in their order, and a number."""


class Kind(StrEnum):
    """How a number moves: a counter only grows while the process lives."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number for each set of labels; `name` without a prefix, and without the suffix of counters."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Samples]

    def samples(self) -> list[tuple[tuple[str, ...], float]]:
        """What it is now; nothing where that cannot be found out."""
        try:
            return list(self.read())
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the other metrics are wanted all the more
            logger.warning("the metric %s cannot be read: %s", self.name, error)
            return []
        finally:
            close_old_connections()


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations for each set of labels, which exporters keep in their own ways; `name` as that of a metric."""

    name: str
    text: str
    labels: tuple[str, ...]
    durations: Durations


def _decisions() -> Samples:
    yield from known.bounded(tallies.decisions).items()


def _refusals() -> Samples:
    yield from known.bounded(tallies.refusals, by_limit=True).items()


def _shadow_refusals() -> Samples:
    found = services.shadow_refusals()
    counts = {(resource, key): number for resource, keys in found.items() for key, number in keys.items()}
    yield from known.bounded(counts, by_limit=True).items()


def _degraded() -> Samples:
    for alias, health in services.store_health().items():
        for policy, number in health.degraded.items():
            yield (alias, str(policy)), number


def _states() -> Samples:
    for alias, health in services.store_health().items():
        yield (alias,), health.state.level


def _unsettled() -> Samples:
    for alias, health in services.store_health().items():
        yield (alias,), health.unsettled


def _store_errors() -> Samples:
    yield from tallies.store_errors.items()


def _hits() -> Samples:
    yield (), resolver.info().hits


def _misses() -> Samples:
    yield (), resolver.info().misses


def _kept() -> Samples:
    yield (), resolver.info().size


def _lag() -> Samples:
    using = router.db_for_read(CollectedBatch)
    latest = CollectedBatch.objects.using(using).order_by("-collected_at").first()
    if latest is not None:
        moment = latest.collected_at
        aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
        yield (), max((datetime.now(UTC) - aware).total_seconds(), 0.0)


def _unwritten() -> Samples:
    yield (), denials.waiting


METRICS: Final = (
    Metric("decisions", Kind.COUNTER, "Requests by what became of them", ("resource", "result"), _decisions),
    Metric("refusals", Kind.COUNTER, "Refusals by the limit that refused", ("resource", "limit"), _refusals),
    Metric(
        "shadow_refusals",
        Kind.COUNTER,
        "Refusals by policies that are only tried",
        ("resource", "limit"),
        _shadow_refusals,
    ),
    Metric(
        "degraded_decisions", Kind.COUNTER, "Decisions without the store, by policy", ("store", "policy"), _degraded
    ),
    Metric("store_state", Kind.GAUGE, "0 all is well, 1 on its way back, 2 down", ("store",), _states),
    Metric("store_errors", Kind.COUNTER, "Calls that a store could not do", ("store", "verb"), _store_errors),
    Metric("store_unsettled", Kind.GAUGE, "Releases that wait for the store", ("store",), _unsettled),
    Metric("resolver_hits", Kind.COUNTER, "Limits that were compiled already", (), _hits),
    Metric("resolver_misses", Kind.COUNTER, "Limits that the database was asked for", (), _misses),
    Metric("resolver_kept", Kind.GAUGE, "Limits that are compiled", (), _kept),
    Metric("usage_lag_seconds", Kind.GAUGE, "Since usage was last added to the snapshots", (), _lag),
    Metric("denials_unwritten", Kind.GAUGE, "Refusals that are not in the database yet", (), _unwritten),
)

HISTOGRAMS: Final = (
    Histogram("wait_seconds", "How long requests have waited for their turn", (), tallies.waits),
    Histogram("store_call_seconds", "How long a store took", ("store", "verb"), tallies.store_calls),
)

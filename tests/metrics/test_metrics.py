"""Metrics: the same in Prometheus and OpenTelemetry, with labels only from the configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, CollectorRegistry
from pytest_django import Settings

from limits_app import limits, metrics
from limits_app.acquiring.observers import CALL_OBSERVERS
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.metrics import prometheus
from limits_app.metrics.collection import Collection
from limits_app.metrics.decisions import DecisionCounts, KnownNames
from limits_app.metrics.instruments import INSTRUMENTS, Kind
from limits_app.metrics.opentelemetry import OpenTelemetryRecorder
from limits_app.metrics.prometheus import PrometheusRecorder
from limits_app.models import CollectedBatch, Policy, Price, UsageSnapshot
from limits_app.services.notify import OBSERVERS
from limits_app.stores.registry import resilient_store
from limits_app.stores.resilient import TIMERS
from limits_app.testing import FakeClock, fresh_limits
from limits_app.usage.denial_counter import denials
from limits_app.workers import Worker
from tests.opened import fail_at
from tests.replacing import without_package
from tests.usage.tables import missing

pytestmark = pytest.mark.django_db(transaction=True)

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOUR = 3600
CALLS = "limits.store_call_seconds"


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    before = [(one, [*one]) for one in (OBSERVERS, TIMERS, CALL_OBSERVERS)]
    with fresh_limits():
        limits.set_resource_limits("api", [CallLimit(2, HOUR)])
        yield
    for observers, kept in before:
        observers[:] = kept
    denials.clear()


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry in which the metrics of this site are recorded."""
    registry = CollectorRegistry()
    metrics.record(PrometheusRecorder(registry))
    return registry


def collection() -> Collection:
    """The collection of the registry."""
    [found] = [one for one in OBSERVERS if isinstance(one, Collection)]
    return found


def refusal(resource: str, key: str = "call_count") -> Outcome:
    return Outcome(False, (LimitStatus(key, resource, "user:1", "system", 1, 1, 0, 1.0, 1.0),), ())


def test_decisions_are_counted_by_resource_and_result(registry: CollectorRegistry) -> None:
    for _ in range(3):
        limits.try_acquire("api", entity="user:1")
    with pytest.raises(TimeoutError):
        limits.acquire("api", entity="user:1", timeout=0.01)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"limits_{name}", labels)

    assert value("decisions_total", resource="api", result="admitted") == 2
    assert value("decisions_total", resource="api", result="refused") == 1
    assert value("decisions_total", resource="api", result="timed_out") == 1
    assert value("refusals_total", resource="api", limit="call_count") == 2
    assert value("wait_seconds_count") == 1
    assert value("wait_seconds_bucket", le="+Inf") == 1
    assert value("wait_seconds_bucket", le="0.005") == 0
    assert 0.01 <= (value("wait_seconds_sum") or 0) < 5
    assert value("denials_unwritten") == 2
    assert (value("resolver_misses_total") or 0) >= 1
    assert (value("resolver_hits_total") or 0) >= 3
    assert value("resolver_kept") == 1
    assert value("store_state", store="default") == 0


def test_calls_to_the_store_are_timed_by_its_alias_and_the_verb(registry: CollectorRegistry) -> None:
    with limits.acquire("api", entity="user:1"):
        pass
    limits.try_acquire("api", entity="user:2")
    labels = {"store": "default", "verb": "acquire"}
    assert registry.get_sample_value("limits_store_call_seconds_count", labels) == 2
    assert registry.get_sample_value("limits_store_call_seconds_bucket", labels | {"le": "+Inf"}) == 2
    assert 0 < (registry.get_sample_value("limits_store_call_seconds_sum", labels) or 0) < 5
    assert samples(registry, "limits_store_errors_total") == []
    told = samples(registry, "limits_store_call_seconds_count")
    assert {sample.labels["store"] for sample in told} == {"default"}
    assert {sample.labels["verb"] for sample in told} <= {"acquire", "settle", "version", "advance_version"}


def test_calls_that_a_store_could_not_do_are_counted(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}, "ON_UNAVAILABLE": "allow"}
    fail_at(monkeypatch, "acquire")
    assert limits.try_acquire("api", entity="user:1").outcome.degraded
    labels = {"store": "default", "verb": "acquire"}
    assert registry.get_sample_value("limits_store_errors_total", labels) == 1
    assert registry.get_sample_value("limits_store_call_seconds_count", labels) == 1


def test_what_a_finalizer_does_in_the_middle_of_counting_is_counted() -> None:
    decisions = DecisionCounts()

    class Name(str):
        """A name of a resource; a finalizer makes a request while it is counted."""

        __slots__ = ()
        finalizers: ClassVar = [lambda: decisions.admitted("api")]

        def __hash__(self) -> int:
            while self.finalizers:
                self.finalizers.pop()()
            return super().__hash__()

    decisions.admitted(Name("api"))
    assert decisions.take() == ({("api", "admitted"): 2}, {}, {})
    assert decisions.take() == ({}, {}, {})


def test_calls_of_workers_are_timed_by_their_class_and_result(registry: CollectorRegistry) -> None:
    class Halver(Worker):
        def halve(self, number: int) -> float:
            return 1 / number

    with Halver.options(mode="thread").init() as halver:
        futures = [halver.halve(number) for number in (1, 2, 0)]
    assert [future.exception() is None for future in futures] == [True, True, False]

    def count(result: str) -> float | None:
        labels = {"worker": "Halver", "result": result}
        return registry.get_sample_value("limits_worker_call_seconds_count", labels)

    assert (count("done"), count("failed"), count("cancelled")) == (2, 1, None)


def test_decisions_are_counted_by_priority_where_a_limit_keeps_a_share(registry: CollectorRegistry) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600, keep={"low": 60})])
    limits.set_resource_limits("mail", [CallLimit(1, 3600)])
    for priority, times in (("low", 6), ("high", 3), (None, 5)):
        for _ in range(times):
            limits.try_acquire("api", priority=priority)
            limits.try_acquire("mail", priority=priority)
    found = {
        (sample.labels["resource"], sample.labels["priority"], sample.labels["result"]): sample.value
        for sample in samples(registry, "limits_priority_decisions_total")
    }
    assert found == {
        ("api", "low", "admitted"): 4,
        ("api", "low", "refused"): 2,
        ("api", "high", "admitted"): 3,
        ("api", "normal", "admitted"): 3,
        ("api", "normal", "refused"): 2,
    }


def test_names_that_no_administrator_made_are_one(registry: CollectorRegistry) -> None:
    for number in range(20):
        limits.try_acquire(f"made/up/{number}")
        collection().refused(refusal("api", f"key{number}"), waited=False)
    found = {tuple(sample.labels.values()): sample.value for sample in samples(registry, "limits_decisions_total")}
    assert found == {("other", "admitted"): 20, ("api", "refused"): 20}
    found = {tuple(sample.labels.values()): sample.value for sample in samples(registry, "limits_refusals_total")}
    assert found == {("api", "other"): 20}


def test_number_of_remembered_decisions_is_bounded() -> None:
    few = DecisionCounts(max_names=3)
    for number in range(10):
        few.admitted(f"r{number}", "low")
        few.refused(refusal("api", f"k{number}"), waited=True)
    decisions, refusals, priorities = few.take()
    assert priorities == {**{(f"r{number}", "low admitted"): 1 for number in range(3)}, ("other", "low admitted"): 7}
    assert decisions == {
        ("r0", "admitted"): 1,
        ("api", "timed_out"): 10,
        ("r1", "admitted"): 1,
        ("other", "admitted"): 8,
    }
    assert refusals == {("api", "k0"): 1, ("api", "k1"): 1, ("api", "k2"): 1, ("other", "other"): 7}


def test_the_decisions_of_candidates_are_counted(registry: CollectorRegistry) -> None:
    policy = Policy.objects.get()
    limits.set_candidate(policy, "calls=1/h")
    labels = {"policy": str(policy.pk), "kind": "candidate"}

    def decided() -> list[float]:
        return [value(registry, labels | {"result": result}) for result in ("admitted", "refused")]

    before = decided()
    for _ in range(3):
        limits.try_acquire("api", entity="user:1")
    assert [after - old for after, old in zip(decided(), before, strict=True)] == [1, 2]


def value(registry: CollectorRegistry, labels: dict[str, str]) -> float:
    return registry.get_sample_value("limits_evaluations_total", labels) or 0


def test_policies_in_the_shadow_and_stores_in_trouble_are_reported(
    registry: CollectorRegistry, settings: Settings
) -> None:
    Policy.objects.update(enforcement="shadow")
    before = limits.shadow_refusals().get("api", {}).get("call_count", 0)
    for _ in range(3):
        limits.try_acquire("api", entity="user:1")
    labels = {"resource": "api", "limit": "call_count"}
    assert registry.get_sample_value("limits_shadow_refusals_total", labels) == before + 1
    assert registry.get_sample_value("limits_shadow_refusals_total", labels) == before + 1, "counted once"
    Policy.objects.update(enforcement="enforce")
    settings.LIMITS = {"ON_UNAVAILABLE": "allow", "BREAKER_MIN_CALLS": 1, "BREAKER_PROBE_SECONDS": 60}
    resilient_store().record_failure(StoreUnavailable("gone"))
    assert limits.try_acquire("api").outcome.degraded
    assert registry.get_sample_value("limits_store_state", {"store": "default"}) == 2
    labels = {"store": "default", "policy": "allow"}
    assert registry.get_sample_value("limits_degraded_decisions_total", labels) == 1
    assert registry.get_sample_value("limits_store_unsettled", {"store": "default"}) == 0


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_lag_is_the_time_since_usage_was_added(
    registry: CollectorRegistry, settings: Settings, use_tz: bool
) -> None:
    settings.USE_TZ = use_tz
    assert isnan(registry.get_sample_value("limits_usage_lag_seconds") or 0)
    CollectedBatch.objects.create(name="one")
    CollectedBatch.objects.update(collected_at=timezone.now() - timedelta(minutes=5))
    assert 299 < (registry.get_sample_value("limits_usage_lag_seconds") or 0) < 400


def test_what_cannot_be_read_does_not_keep_the_rest(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    limits.try_acquire("api")
    with missing("limits_app_collectedbatch"), missing("limits_app_resource"):
        assert isnan(registry.get_sample_value("limits_usage_lag_seconds") or 0)
        assert registry.get_sample_value("limits_store_state", {"store": "default"}) == 0
        labels = {"resource": "other", "result": "admitted"}
        assert registry.get_sample_value("limits_decisions_total", labels) == 1
    assert "metrics cannot be read (database)" in caplog.text
    assert "the names in the configuration" in caplog.text


def test_a_part_that_cannot_be_read_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    collection = Collection(clock=lambda: now[0])

    def logged() -> list[str]:
        caplog.clear()
        for _time in range(3):
            collection.collect()
        return [one.getMessage() for one in caplog.records if "metrics cannot be read" in one.getMessage()]

    with missing("limits_app_collectedbatch"):
        [message] = logged()
        assert "metrics cannot be read (database): " in message
        now[0] += 59.9
        assert logged() == []
        now[0] += 0.1
        assert logged() == [message]
    assert logged() == []


def test_names_are_asked_for_once_a_minute() -> None:
    now = [0.0]
    names = KnownNames(clock=lambda: now[0])
    counts = {("reports", "admitted"): 1}
    assert names.bounded(counts) == {("other", "admitted"): 1}
    limits.set_resource_limits("reports", [CallLimit(2, HOUR)])
    now[0] = 59
    assert names.bounded(counts) == {("other", "admitted"): 1}
    now[0] = 61
    assert names.bounded(counts) == counts


def test_opentelemetry_is_given_the_same() -> None:
    reader = InMemoryMetricReader()
    metrics.record(OpenTelemetryRecorder(MeterProvider(metric_readers=[reader]).get_meter("test")))
    limits.acquire("api", entity="user:1", timeout=1)
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    [point] = found["limits.decisions"]
    assert (point.value, dict(point.attributes)) == (1, {"resource": "api", "result": "admitted"})
    assert found["limits.wait_seconds"][0].count == 1
    calls = {point.attributes["verb"]: (point.attributes["store"], point.count) for point in found[CALLS]}
    assert calls["acquire"] == ("default", 1)
    assert found["limits.resolver_misses"][0].value >= 1
    assert found["limits.store_state"][0].value == 0
    assert found.keys() <= {f"limits.{name}" for name in (*INSTRUMENTS, "collected")}


def test_the_setting_names_the_exporters(settings: Settings) -> None:
    before = [*OBSERVERS], [*TIMERS], [*CALL_OBSERVERS]
    metrics.install()
    settings.LIMITS = {"METRICS": "prometheus"}  # which the checks report
    metrics.install()
    assert ([*OBSERVERS], [*TIMERS], [*CALL_OBSERVERS]) == before, "by default there is none"
    settings.LIMITS = {"METRICS": ["prometheus", "opentelemetry"]}
    metrics.install()
    kinds = {type(recorder) for recorder in collection().recorders}
    assert kinds == {PrometheusRecorder, OpenTelemetryRecorder}
    assert len(TIMERS) == len(CALL_OBSERVERS) == 1
    assert prometheus.registry_to_export() is REGISTRY
    assert REGISTRY.get_sample_value("limits_resolver_kept") is not None


def test_a_recorder_that_is_recorded_again_counts_each_request_once(settings: Settings) -> None:
    settings.LIMITS = {"METRICS": ["prometheus"]}
    metrics.install()
    labels = {"resource": "api", "result": "admitted"}
    before = REGISTRY.get_sample_value("limits_decisions_total", labels) or 0
    second = CollectorRegistry()
    metrics.record(prometheus.recorder())
    metrics.record(prometheus.recorder(), prometheus.recorder(second))
    limits.acquire("api", entity="user:1")
    assert REGISTRY.get_sample_value("limits_decisions_total", labels) == before + 1
    assert second.get_sample_value("limits_decisions_total", labels) == 1


@pytest.mark.parametrize("exporter", ["prometheus", "opentelemetry"])
def test_an_exporter_whose_package_is_missing_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, exporter: str
) -> None:
    monkeypatch.delattr(metrics, exporter, raising=False)
    without_package(monkeypatch, f"limits_app.metrics.{exporter}")
    settings.LIMITS = {"METRICS": [exporter]}
    with pytest.raises(ImproperlyConfigured, match=rf"pip install 'limits-app\[{exporter}\]'"):
        metrics.install()


def samples(registry: CollectorRegistry, name: str) -> list[Any]:
    return [sample for metric in registry.collect() for sample in metric.samples if sample.name == name]


def exported() -> dict[str, set[str]]:
    """Every name that Prometheus can be asked for, and its labels."""
    names: dict[str, set[str]] = {}
    for one in INSTRUMENTS.values():
        if one.kind is Kind.HISTOGRAM:
            names |= {f"limits_{one.name}_{part}": {"le", *one.labels} for part in ("bucket", "sum", "count")}
        else:
            names[f"limits_{one.name}" + ("_total" if one.kind is Kind.COUNTER else "")] = {*one.labels}
    return names


def test_prometheus_exports_every_instrument(registry: CollectorRegistry) -> None:
    assert {metric.name.removeprefix("limits_") for metric in registry.collect()} == {*INSTRUMENTS}


@pytest.mark.parametrize("by_itself", [True, False])
def test_without_an_exporter_that_asks_it_collects_by_itself_a_second_later(by_itself: bool) -> None:
    recorded = []

    class Recorder:
        def record(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
            recorded.append((name, value, labels))

    clock = FakeClock()
    collection = Collection(by_itself=by_itself, task_clock=clock)
    collection.recorders.append(Recorder())
    collection.admitted("api")
    assert recorded == []
    clock.advance(1)
    if by_itself:
        assert ("decisions", 1, ("api", "admitted")) in recorded
        assert "usage_lag_seconds" in {name for name, *_ in recorded}
        recorded.clear()
        collection.admitted("api")
        clock.advance(1)
        assert ("decisions", 1, ("api", "admitted")) in recorded
        assert "usage_lag_seconds" not in {name for name, *_ in recorded}, "at most once a minute"
        recorded.clear()
        clock.advance(HOUR)
    assert recorded == []


@pytest.mark.parametrize("page", ["grafana/limits.json", "grafana/alerts.yml", "metrics.md"])
def test_pages_and_dashboards_name_exported_metrics(page: str) -> None:
    known_names = exported()
    text = (DOCS / page).read_text()
    named = set(re.findall(r"\blimits_(?!app\b)[a-z_]+\b", text)) - {f"limits_{name}" for name in INSTRUMENTS}
    named.discard("limits_changed")
    assert named
    assert named <= known_names.keys()
    for name, labels in re.findall(r"\b(limits_[a-z_]+)\{([^}]*)\}", text):
        assert set(re.findall(r"(\w+)=", labels)) <= known_names[name]


def test_every_metric_is_on_the_page_and_on_the_dashboard() -> None:
    page, dashboard = ((DOCS / name).read_text() for name in ("metrics.md", "grafana/limits.json"))
    for name in {name.removesuffix("_sum").removesuffix("_count") for name in exported()}:
        assert name in page
        assert name in dashboard


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    dashboard = json.loads((DOCS / "grafana/limits.json").read_text())
    assert dashboard["title"]
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert all(target["expr"] for target in panel["targets"])


def test_the_dashboard_begins_with_tiles_and_has_descriptions() -> None:
    panels = json.loads((DOCS / "grafana/limits.json").read_text())["panels"]
    tiles = [panel for panel in panels if panel["type"] == "stat"]
    assert len(tiles) == 6
    assert max(tile["gridPos"]["y"] for tile in tiles) < min(
        panel["gridPos"]["y"] for panel in panels if panel["type"] != "stat"
    )
    for panel in panels:
        assert panel["description"].endswith(".")
        assert not re.search(r"\d|[Rr]efus|admitted", panel["title"])
        if re.search(r"_state\)|emergency_mode", panel["targets"][0]["expr"]):
            [mapping] = panel["fieldConfig"]["defaults"]["mappings"]
            assert mapping["options"].keys() == {"0", "1", "2"}


def test_spend_of_today_is_exported_by_resource(registry: CollectorRegistry) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    limits.set_resource_limits("llm", [CallLimit.per_day(9)])
    for resource in ("llm", "unknown"):
        values = {"resource": resource, "unit": "tokens", "currency": "usd", "valid_from": today - timedelta(days=1)}
        Price.objects.create(**values, amount=Decimal("0.5"), per=1_000)
        row = {"resource": resource, "key": "tokens", "period": "day", "admitted_milli": 3_000_000}
        UsageSnapshot.objects.create(**row, entity="key:1", start=today)
        UsageSnapshot.objects.create(**row, entity="key:1", start=today - timedelta(days=1))
    collection().collect()
    spends = {sample.labels["resource"]: sample.value for sample in samples(registry, "limits_spend_today")}
    assert spends == {"llm": 1.5, "other": 1.5}
    UsageSnapshot.objects.filter(start=today, resource="llm").delete()
    collection().collect()
    assert registry.get_sample_value("limits_spend_today", {"resource": "llm", "currency": "usd"}) == 0


@pytest.mark.parametrize(
    "fails", [lambda it: it.store_called("default", "acquire", 0.1, failed=True), Collection.read_failed]
)
def test_failures_are_collected_without_a_decision(fails: Callable[[Collection], object]) -> None:
    recorded = []

    class Recorder:
        def record(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
            recorded.append(name)

    clock = FakeClock()
    collection = Collection(by_itself=True, task_clock=clock)
    collection.recorders.append(Recorder())
    fails(collection)
    clock.advance(1)
    assert {"store_state", "resolver_kept"} <= set(recorded)

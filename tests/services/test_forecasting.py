"""Whom a policy would have refused: recorded use replayed hour by hour, without anything being saved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import QuerySet
from pytest_django import Settings

from limits_app import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.limits import LimitDefinition, QuotaLimit
from limits_app.engine.notation import Noted
from limits_app.models import BucketKind, Entity, Plan, Policy, Price, Resource, UsagePeriod, UsageSnapshot
from limits_app.models import Limit as LimitRow
from limits_app.models.fields import in_site_time
from limits_app.services.simulation.forecast import (
    MOST,
    Consumer,
    Forecast,
    can_be_replayed,
    forecast,
    in_steps,
    replay_hours,
)

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
HOUR = int(datetime(2026, 3, 4, 8, tzinfo=UTC).timestamp()) // 3600


def used(resource: str, entity: str, units: int, *, hour: int = 8, key: str = "call_count", **more: Any) -> None:
    start = in_site_time(NOW.replace(hour=hour, minute=0))
    whose = {"resource": resource, "entity": entity, "key": key, "period": UsagePeriod.HOUR, "start": start}
    UsageSnapshot.objects.create(**whose, admitted_milli=units * 1000, **more)


def foreseen(policy: Policy, *limits: LimitDefinition, shared: bool = False) -> Forecast:
    return forecast(policy, [Noted(limit, shared) for limit in limits], now=NOW)


def whom(found: Forecast) -> list[tuple[str, str | None, float]]:
    return [(one.resource, one.entity, one.lost) for one in found.consumers]


@pytest.mark.parametrize(
    ("limit", "recorded", "refused"),
    [
        pytest.param(CallLimit(100, 3600), {0: 100_000}, {}, id="what_fits_is_not_refused"),
        pytest.param(CallLimit(1, 1), {0: 3_600_000}, {}, id="a_short_window_is_judged_by_its_average"),
        pytest.param(CallLimit(1, 1), {0: 7_200_000}, {0: 3_600_000}, id="and_refuses_what_is_beyond"),
        pytest.param(
            CallLimit(60, 3600, RateLimitAlgorithm.FIXED_WINDOW),
            {0: 120_000, 1: 60_000},
            {0: 60_000},
            id="a_window_begins_anew",
        ),
        pytest.param(
            QuotaLimit("tokens", 10, "day", "UTC"), {3: 8_000, 7: 8_000, 25: 8_000}, {7: 6_000}, id="a_quota_by_the_day"
        ),
        pytest.param(RateLimit("tokens", 1, 3600, soft=True), {0: 9_000}, {}, id="a_soft_limit_refuses_nothing"),
        pytest.param(ResourceLimit("slots", 1), {0: 9_000}, {}, id="permits_are_not_counted_by_the_hour"),
        pytest.param(CallLimit(1, 3600), {0: -5_000}, {}, id="more_given_back_than_taken_is_no_use"),
    ],
)
def test_recorded_use_is_replayed(limit: LimitDefinition, recorded: dict[int, int], refused: dict[int, int]) -> None:
    assert replay_hours(limit, {HOUR // 24 * 24 + hour: milli for hour, milli in recorded.items()}) == {
        HOUR // 24 * 24 + hour: milli for hour, milli in refused.items()
    }


@pytest.mark.parametrize("algorithm", list(RateLimitAlgorithm))
def test_forecast_admits_no_more_than_the_limit(algorithm: RateLimitAlgorithm) -> None:
    recorded = dict.fromkeys(range(HOUR, HOUR + 48), 500_000)
    refused = replay_hours(RateLimit("tokens", 100, 3600, algorithm), recorded)
    admitted = sum(recorded.values()) - sum(refused.values())
    assert 100_000 * 40 <= admitted <= 100_000 * 49


def test_only_windows_shorter_than_a_step_are_made_longer() -> None:
    assert in_steps(CallLimit(10, 3600)) == CallLimit(10, 3600)
    assert in_steps(RateLimit("tokens", 10, 7, burst=2)) == RateLimit("tokens", 430, 301, burst=430)
    assert in_steps(ResourceLimit("slots", 1)) == ResourceLimit("slots", 1)
    assert not can_be_replayed(ResourceLimit("slots", 1))


def test_clients_are_listed_by_loss_and_unaffected_ones_are_left_out() -> None:
    for entity, calls in (("user:1", 200), ("user:2", 900), ("user:3", 5)):
        used("api", entity, calls)
    found = foreseen(Policy(resource=Resource.objects.create(name="api")), CallLimit(100, 3600))
    assert [entity for _, entity, _ in whom(found)] == ["user:2", "user:1"]
    first = found.consumers[0]
    assert (first.used, first.first, found.looked_at, found.is_cut) == (900, NOW.replace(minute=0, hour=8), 2, False)
    assert first.share == first.lost / 900
    drawn = found.by_hour("call_count")
    assert sum(fits + lost for fits, lost in drawn.values()) == 1_100_000
    assert found.by_hour("tokens") == {}


def test_a_shared_limit_is_forecast_for_all_clients_together() -> None:
    used("api", "user:1", 60)
    used("api", "user:2", 60)
    used("api", "", 60, bucket=BucketKind.SHARED)
    used("api", "eu", 900, bucket=BucketKind.MEMBER)
    found = foreseen(Policy(resource=Resource.objects.create(name="api")), CallLimit(100, 86_400), shared=True)
    assert [(entity, one.used) for one in found.consumers for entity in [one.entity]] == [(None, 180)]


def test_clients_with_an_own_policy_are_excluded() -> None:
    api, reports = Resource.objects.create(name="api"), Resource.objects.create(name="reports")
    user = Entity.objects.create(identifier="user:1")
    for resource in ("api", "reports", "other"):
        for entity in ("user:1", "user:2"):
            used(resource, entity, 500)
    Policy.objects.create(resource=reports)
    Policy.objects.create(resource=api, entity=user)
    limit = CallLimit(100, 86_400)
    assert {(one, who) for one, who, _ in whom(foreseen(Policy(resource=api), limit))} == {("api", "user:2")}
    of_system = {(one, who) for one, who, _ in whom(foreseen(Policy(), limit))}
    assert ("other", "user:2") in of_system
    assert not {one for one, _ in of_system} & {"reports"}
    assert {one for one, _, _ in whom(foreseen(Policy(entity=user), limit))} == {"reports", "other"}
    assert whom(foreseen(Policy(entity=user, resource=api), limit)) == [("api", "user:1", 396.18)]


def test_a_plan_has_the_entities_on_it_and_below_them_and_a_pattern_those_that_it_matches() -> None:
    plan, prefix = Plan.objects.create(name="pro"), Entity.objects.create(identifier="key:*")
    network, single = Entity.objects.create(identifier="ip:10.0.0.0/8"), Entity.objects.create(identifier="ip:10.0.0.1")
    team = Entity.objects.create(identifier="team:1", plan=plan)
    Entity.objects.create(identifier="user:1", parent=team)
    for entity in ("", "team:1", "user:1", "user:2", "key:1", "key:2", "ip:10.1.2.3", "ip:10.0.0.1", "ip:11.0.0.1"):
        used("api", entity, 500)
    limit = CallLimit(100, 86_400)

    def about(policy: Policy) -> set[str | None]:
        return {who for _, who, _ in whom(foreseen(policy, limit))}

    assert about(Policy(plan=plan)) == {"team:1", "user:1"}
    assert about(Policy(entity=prefix)) == {"key:1", "key:2"}
    assert about(Policy(entity=network)) == {"ip:10.1.2.3", "ip:10.0.0.1"}
    Policy.objects.create(entity=team, resource=Resource.objects.create(name="api"))
    Policy.objects.create(entity=Entity.objects.create(identifier="key:1"))
    Policy.objects.create(entity=single, extends=True)
    Policy.objects.create(entity=Entity.objects.create(identifier="ip:10.1.0.0/16"))
    assert about(Policy(plan=plan)) == {"user:1"}
    assert about(Policy(entity=prefix)) == {"key:2"}
    assert about(Policy(entity=network)) == {"ip:10.0.0.1"}
    assert about(Policy()) == {"", "user:1", "user:2", "key:2", "ip:10.0.0.1", "ip:11.0.0.1"}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"valid_from": NOW}, id="dates"),
        pytest.param({"weekly_hours": "mon-fri 09:00-17:00", "time_zone": "UTC"}, id="hours"),
        pytest.param({"enforcement": "shadow"}, id="shadow"),
        pytest.param({"extends": True}, id="extends"),
        pytest.param({"plan": "pro"}, id="a_plan_without_the_entity"),
        pytest.param({"counted": "total", "resource": None}, id="a_total"),
    ],
)
def test_policies_that_replace_it_only_at_times_exclude_no_client(fields: dict[str, Any]) -> None:
    used("api", "user:1", 500)
    plan = Plan.objects.create(name="pro")
    owner = {"plan": plan} if "plan" in fields else {"entity": Entity.objects.create(identifier="user:1")}
    Policy.objects.create(**{"resource": Resource.objects.create(name="api"), **fields, **owner})
    assert len(whom(foreseen(Policy(), CallLimit(100, 86_400)))) == 1


def test_limits_of_others_that_cannot_be_read_are_no_matter() -> None:
    used("api", "user:1", 500)
    limit = LimitRow.from_definition(Policy.objects.create(counted="total"), QuotaLimit.per_day("tokens", 5))
    limit.save()
    QuerySet.update(LimitRow.objects.all(), text="5/day@Atlantis/Capital")  # as where zones are missing
    assert len(whom(foreseen(Policy(), CallLimit(100, 86_400)))) == 1


def test_an_edited_policy_does_not_replace_itself() -> None:
    used("api", "user:1", 500)
    policy = Policy.objects.create(resource=Resource.objects.create(name="api"))
    assert len(whom(foreseen(policy, CallLimit(100, 86_400)))) == 1


def test_a_total_is_in_addition_to_the_limits_of_each_resource() -> None:
    used("api", "user:1", 60)
    used("reports", "user:1", 60)
    used("reports", "user:2", 500)
    user = Entity.objects.create(identifier="user:1")
    Policy.objects.create(entity=user)
    Entity.objects.create(identifier="user:2", unlimited=True)
    total = Policy(counted="total")
    found = foreseen(total, CallLimit(100, 86_400))
    assert [(one.resource, one.entity, one.used) for one in found.consumers] == [("", "user:1", 120)]


def test_a_blocking_policy_rejects_all_clients_and_an_unlimited_one_none() -> None:
    used("api", "user:1", 3)
    used("api", "user:1", 4, key="tokens")
    used("api", "user:2", 0)
    api = Resource.objects.create(name="api")
    blocked = foreseen(Policy(resource=api, effect="blocked"))
    assert [(one.entity, one.key, one.lost, one.share) for one in blocked.consumers] == [
        ("user:1", "call_count", 3, 1),
        ("user:1", "tokens", 4, 1),
    ]
    assert foreseen(Policy(resource=api, effect="unlimited")).consumers == ()


def test_unknown_figures_are_marked() -> None:
    found = foreseen(Policy(), ResourceLimit("slots", 3), RateLimit("tokens", 1, 1, soft=True))
    assert (found.untold, found.looked_at) == (("slots",), 0)


def test_only_so_many_are_looked_at() -> None:
    for number in range(MOST + 3):
        used("api", f"user:{number}", 10 + number)
    found = foreseen(Policy(), CallLimit(1, 86_400))
    assert (found.looked_at, found.is_cut, len(found.consumers)) == (MOST, True, MOST)
    assert found.consumers[0].entity == f"user:{MOST + 2}"


def test_names_that_meet_only_in_the_query_are_distinguished() -> None:
    used("api", "user:1", 50)
    used("reports", "user:2", 50)
    used("api", "user:2", 1)
    assert {(one, who) for one, who, _ in whom(foreseen(Policy(), CallLimit(2, 86_400)))} == {
        ("api", "user:1"),
        ("reports", "user:2"),
    }


def test_use_is_recorded_without_time_zones_too(settings: Settings) -> None:
    settings.USE_TZ = False
    used("api", "user:1", 50)
    assert len(foreseen(Policy(), CallLimit(2, 86_400)).consumers) == 1


def test_old_use_is_left_alone() -> None:
    start = NOW.replace(minute=0) - timedelta(days=8)
    whose = {"resource": "api", "entity": "user:1", "key": "call_count", "period": UsagePeriod.HOUR, "start": start}
    UsageSnapshot.objects.create(**whose, admitted_milli=10**6)
    assert foreseen(Policy(), CallLimit(1, 86_400)).consumers == ()


def test_a_client_without_use_loses_no_share() -> None:
    assert Consumer("api", "", "call_count", {}, {}).share == 0.0


def test_the_heaviest_clients_are_found_behind_many_excluded_ones(db: None) -> None:
    others = [Entity(identifier=f"tenant:{number}", unlimited=True) for number in range(400)]
    QuerySet(Entity).bulk_create(others)
    start = in_site_time(NOW.replace(hour=8, minute=0))
    whose = {"key": "call_count", "period": UsagePeriod.HOUR, "start": start}
    uses = {f"tenant:{number}": 900 + number for number in range(400)}
    uses |= {f"user:{number}": 200 + number for number in range(120)}
    rows = [
        UsageSnapshot(resource=resource, entity=entity, admitted_milli=units * 500, **whose)
        for entity, units in uses.items()
        for resource in ("api", "mail")
    ]
    QuerySet(UsageSnapshot).bulk_create(rows)
    shown = foreseen(Policy(counted="total"), CallLimit(100, 3600, RateLimitAlgorithm.FIXED_WINDOW))
    heaviest = [f"user:{number}" for number in range(119, 119 - MOST, -1)]
    assert [(consumer.entity, consumer.used) for consumer in shown.consumers] == [
        (name, uses[name]) for name in heaviest
    ]
    assert shown.is_cut


def test_budget_is_foreseen_from_the_cost_of_units() -> None:
    valid_from = datetime(2026, 1, 1, tzinfo=UTC)
    Price.objects.create(
        resource="llm/*", unit="tokens", amount=Decimal(2), per=1000, currency="usd", valid_from=valid_from
    )
    policy = Policy(resource=Resource.objects.create(name="llm/large"), effect="limits")
    for hour in (8, 9):
        used("llm/large", "user:1", 700, hour=hour, key="tokens")
        used("llm/large", "user:2", 100, hour=hour, key="tokens")
    used("llm/large", "user:2", 1_500_000, hour=9, key="usd+")  # 1.5
    used("llm/large", "user:2", 9_000_000, hour=9, key="usd")
    forecast_of_budget = foreseen(policy, QuotaLimit.per_day("usd", 1))
    assert [(consumer.entity, consumer.used, consumer.lost) for consumer in forecast_of_budget.consumers] == [
        ("user:1", 2.8, 1.8),
        ("user:2", 1.9, 0.9),
    ]
    assert foreseen(policy, QuotaLimit.per_day("usd", 3)).consumers == ()
    assert foreseen(policy, QuotaLimit.per_day("usd", 3)).is_recorded
    assert not foreseen(policy, QuotaLimit.per_day("eur", 3)).is_recorded
    [shared] = foreseen(policy, QuotaLimit.per_day("usd", 3), shared=True).consumers
    assert (shared.entity, round(shared.lost, 6)) == (None, 1.7)

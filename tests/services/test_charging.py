"""Budgets that units with prices are charged to: whose they are, when their prices change, and what has none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from pytest_django import Settings

from limits_app import CallLimit, LimitExceeded, QuotaLimit, limits
from limits_app.acquiring import Acquisition
from limits_app.checks.stores import check_stores
from limits_app.engine import GivenAmount
from limits_app.engine.errors import InvalidRequest
from limits_app.models import Entity, Policy, Price, UsageSnapshot
from limits_app.policies import resolver
from limits_app.services import Share, try_acquire_all
from limits_app.services.amounts import one_of_each
from limits_app.services.limit_words import own_limits
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock, exhaust
from limits_app.usage.evaluation_counter import evaluations
from tests.opened import put_store
from tests.services.failing import FailingStore
from tests.services.pool_rows import NAME, make_pool, serve
from tests.services.wall import NOW, Wall

pytestmark = pytest.mark.django_db

USER = "user:1"
TOKENS: Mapping[str, GivenAmount] = {"input_tokens": 1000, "output_tokens": 100}
COST = 0.0035
"""The cost of TOKENS on the resource `llm`."""


def price(resource: str, unit: str, amount: str, per: int = 1_000_000, **fields: Any) -> None:
    values = {"currency": "usd", "valid_from": datetime(2026, 1, 1, tzinfo=UTC)} | fields
    Price.objects.create(resource=resource, unit=unit, amount=Decimal(amount), per=per, **values)


@pytest.fixture(autouse=True)
def prices(clock: FakeClock) -> None:
    price("llm", "input_tokens", "2.50")
    price("llm", "output_tokens", "10")


def use(resource: str = "llm", entity: str = USER, requested: Mapping[str, GivenAmount] = TOKENS) -> Acquisition:
    return limits.acquire(resource, requested=requested, entity=entity)


def used(resource: str = "llm", entity: str | None = USER, key: str = "usd") -> object:
    return limits.status(resource, entity=entity).limits[key]["used"]


def set_for_client() -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], resource="llm")


def set_for_resource() -> None:
    limits.set_resource_limits("llm", ["usd=1/month"])


def set_for_all() -> None:
    limits.set_resource_limits("llm", ["usd=1/month:shared"])


def set_for_total() -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")


def set_for_parent() -> None:
    limits.set_entity("team:1")
    limits.set_entity(USER, parent="team:1", cascade=True)
    limits.set_entity_limits("team:1", ["usd=1/month"], resource="llm")


def set_for_plan() -> None:
    limits.set_plan_limits("pro", ["usd=1/month"], resource="llm")
    limits.set_entity(USER, plan="pro")


@pytest.mark.parametrize(
    "set_budget", [set_for_client, set_for_resource, set_for_all, set_for_total, set_for_parent, set_for_plan]
)
def test_budget_is_charged_wherever_it_is_set(set_budget: Any) -> None:
    set_budget()
    with use() as acquisition:
        assert acquisition.acquisitions["usd"].requested == COST
        acquisition.update({"input_tokens": 1000, "output_tokens": 200})
    key = "total:usd" if set_budget is set_for_total else "usd"
    assert used(key=key) == 0.0045
    with pytest.raises(LimitExceeded), use(requested={"output_tokens": 99_600}):
        pass
    use(requested={"output_tokens": 99_550}).release()
    assert used(key=key) == 1


def test_units_with_a_price_are_counted_without_a_limit() -> None:
    with use() as acquisition:
        assert acquisition.acquisitions["input_tokens"].requested == 1000
        acquisition.update({"input_tokens": 900, "output_tokens": 50})
    assert limits.status("llm", entity=USER).limits["input_tokens"]["type"] == "unlimited"
    limits.roll_up()
    counted = limits.usage("llm", by="entity", since=datetime(2001, 1, 1, tzinfo=UTC))
    assert {use.key: use.admitted for use in counted} == {"input_tokens": 900, "output_tokens": 50}
    with pytest.raises(RuntimeError, match="input_tokens"), use():
        pass


def test_amounts_given_in_money_are_counted_apart() -> None:
    set_for_client()
    with use(requested={"usd": "0.04", "input_tokens": 1000}) as acquisition:
        acquisition.update({"usd": "0.03", "input_tokens": 1000})
    limits.roll_up()
    counted = limits.usage("llm", by="entity", since=datetime(2001, 1, 1, tzinfo=UTC))
    assert {use.key: use.admitted for use in counted} == {"input_tokens": 1000, "usd": 0.0325, "usd+": 0.03}


def test_requests_are_charged_without_naming_them() -> None:
    price("mail", "requests", "1.5", per=1000)
    limits.set_resource_limits("mail", ["usd=0.003/day", "calls=5/min"])
    limits.acquire("mail", entity=USER)
    assert not limits.try_acquire("mail", requested={"call_count": 2}, entity=USER)
    limits.acquire("mail", entity=USER)
    assert used("mail") == 0.003
    assert not limits.try_acquire("mail", entity=USER)


@pytest.mark.parametrize("is_async", [False, True])
def test_prices_are_those_of_the_acquire_and_of_each_extension(wall: Wall, is_async: bool) -> None:
    set_for_client()
    price("llm", "output_tokens", "20", valid_from=NOW + timedelta(hours=1))
    resolver.clear()
    acquisition = use(requested={"output_tokens": 10_000})
    wall.advance(hours=2)
    if is_async:
        async_to_sync(acquisition.aextend)({"output_tokens": 10_000})
    else:
        acquisition.extend({"output_tokens": 10_000})
    assert used() == 0.3
    acquisition.update({"output_tokens": 15_000})
    acquisition.release()
    assert used() == 0.2
    use(requested={"output_tokens": 10_000}).release()
    assert used() == 0.4


def test_member_of_a_pool_is_charged_at_its_prices() -> None:
    pool = make_pool({"cheap": [QuotaLimit.per_day("tokens", 10)], "dear": []}, load_balancing="failover")
    serve("llm", pool)
    limits.set_resource_limits("llm", ["usd=1/month"])
    price("llm", "tokens", "0.01", per=1)
    price(NAME, "tokens", "0.02", per=1, member="dear")
    assert use(requested={"tokens": 10}).config["member"] == "cheap"
    assert used() == 0.1
    acquisition = use(requested={"tokens": 10})
    assert acquisition.config["member"] == "dear"
    assert used() == 0.3
    acquisition.extend({"tokens": 1})
    assert used() == 0.32
    acquisition.update({"tokens": 0})
    acquisition.release()
    assert used() == 0.1


def test_each_of_several_resources_has_its_prices() -> None:
    price("search", "queries", "0.1", per=1)
    limits.set_resource_limits("search", ["usd=0.5/day"])
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    requested = {"llm": TOKENS, "search": {"queries": 2}}
    with limits.acquire(requested, entity=USER) as acquisition:
        acquisition.update({"llm:input_tokens": 1000, "llm:output_tokens": 100, "search:queries": 1})
    assert used("search") == 0.1
    assert used("search", key="total:usd") == 0.1035
    limits.acquire({"llm": {"usd": "0.2"}, "search": {"queries": 3, "usd": "0.1"}}, entity=USER)
    assert (used("search"), used("search", key="total:usd")) == (0.5, 0.7035)


def test_repeated_request_is_charged_once() -> None:
    set_for_client()
    for _ in range(3):
        limits.acquire("llm", requested=TOKENS, entity=USER, idempotency_key="one").release()
    assert used() == COST


def test_budget_in_shadow_mode_is_evaluated() -> None:
    limits.set_entity_limits(USER, ["usd=0.004/month"], resource="llm", enforcement="shadow")
    assert not use().outcome.shadowed
    shadowed = use().outcome.shadowed
    assert [(status.key, status.requested) for status in shadowed] == [("usd", COST)]


def test_waiting_request_is_charged_when_the_budget_is_available_again(clock: FakeClock) -> None:
    limits.set_entity_limits(USER, ["usd=0.005/h:rate"], resource="llm")
    use()
    assert not limits.try_acquire("llm", requested=TOKENS, entity=USER)
    clock.advance(3600)
    assert limits.acquire("llm", requested=TOKENS, entity=USER, timeout=1)
    assert not limits.try_acquire("llm", requested=TOKENS, entity=USER)


@pytest.mark.parametrize("requested", [{"pages": 5}, {"pages": 5, "call_count": 1}])
def test_resource_without_a_price_is_an_error(settings: Settings, requested: Mapping[str, GivenAmount]) -> None:
    limits.set_resource_limits("ocr", ["usd=1/month", "pages=10/min", "calls=5/min"])
    price("ocr", "pages", "1", per=1, currency="eur")
    with pytest.raises(InvalidRequest, match=r"ocr has no price in usd"):
        limits.try_acquire("ocr", requested=requested, entity=USER)
    assert limits.try_acquire("ocr", requested={**requested, "usd": "0.1"}, entity=USER)
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert limits.try_acquire("ocr", requested=requested, entity=USER)


def test_total_in_money_leaves_requests_without_units_alone(settings: Settings) -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    limits.set_resource_limits("pages", ["calls=5/min", "rows=100/min"])
    assert limits.acquire("pages", requested={"call_count": 1}, entity=USER)
    with pytest.raises(InvalidRequest, match="pages has no price in usd"):
        limits.acquire("pages", requested={"rows": 5}, entity=USER)
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert limits.acquire("pages", requested={"rows": 5}, entity=USER)


@pytest.mark.parametrize("resource", ["new/model", "pages"])
def test_total_in_money_is_not_passed_by_units_without_limits_and_prices(settings: Settings, resource: str) -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    limits.set_resource_limits("pages", ["calls=5/min"])
    with pytest.raises(InvalidRequest, match=f"{resource} has no price in usd"):
        limits.try_acquire(resource, requested={"output_tokens": 5}, entity=USER)
    with pytest.raises(InvalidRequest, match="pages has no price in usd"):
        limits.acquire({"llm": TOKENS, "pages": {"output_tokens": 1}}, entity=USER)
    acquired = limits.acquire(resource, requested={"call_count": 1}, entity=USER)
    with pytest.raises(InvalidRequest, match=f"{resource} has no price in usd"):
        acquired.extend({"output_tokens": 5})
    acquired.extend({"output_tokens": 5, "usd": "0.1"})
    assert limits.try_acquire(resource, requested={"output_tokens": 5, "usd": "0.1"}, entity=USER)
    assert limits.try_acquire(resource, requested={"output_tokens": 5}, entity="user:2")
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert limits.try_acquire(resource, requested={"output_tokens": 5}, entity=USER)


def test_several_resources_of_which_one_has_no_price() -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    limits.set_resource_limits("pages", ["rows=100/min"])
    with pytest.raises(InvalidRequest, match="pages has no price in usd"):
        limits.acquire({"llm": TOKENS, "pages": {"rows": 1}}, entity=USER)
    shares = [Share("llm", USER, TOKENS), Share("llm", "user:2", TOKENS)]
    assert shares


def test_limit_that_is_replaced_by_a_price_keeps_its_use() -> None:
    limits.set_entity_limits(USER, ["input_tokens=1500/day"], resource="llm")
    use()
    limits.delete_entity_limits(USER, resource="llm")
    use(requested={"input_tokens": 5000})
    limits.set_entity_limits(USER, ["input_tokens=1500/day"], resource="llm")
    assert used(key="input_tokens") == 1000


def test_explanation_has_prices_and_units_without_a_limit() -> None:
    limits.set_entity_limits(USER, ["usd=1/month", "eur=1/month", "input_tokens=500/h"], resource="llm")
    explanation = limits.explain("llm", entity=USER)
    assert explanation.as_dict()["units"] == [
        {"key": "input_tokens", "is_unlimited": False, "per_million": {"usd": "2.5"}},
        {"key": "output_tokens", "is_unlimited": True, "per_million": {"usd": "10"}},
    ]
    assert explanation.unpriced == ("eur",)
    text = explanation.text()
    assert "input_tokens: 1,000,000 cost 2.5 USD." in text
    assert "output_tokens: unlimited and counted; 1,000,000 cost 10 USD." in text
    assert "llm has no price in eur, in which it is limited." in text


def test_views_need_no_price_under_a_total_in_money() -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    limits.set_resource_limits("pages", ["calls=5/min", "rows=100/min"])
    for named in ({}, {"rows": 7}):
        assert limits.acquire("pages", requested=partial(one_of_each, named), entity=USER)
    limits.acquire("llm", requested=partial(one_of_each, {"input_tokens": 400}), entity=USER)
    assert used("llm", key="total:usd") == 0.001
    assert limits.explain("pages", entity=USER).unpriced == ("usd",)


def test_views_charge_no_money_to_pools() -> None:
    serve("llm", make_pool({"a": [], "b": []}))
    limits.set_resource_limits("llm", ["usd=1/month"])
    assert resolver.latest(("llm", USER, (), None)).limit_set.ones == {"usd": 0}
    limits.acquire("llm", requested=partial(one_of_each, {}), entity=USER)
    assert used() == 0


def test_candidate_of_a_budget_is_evaluated_in_money() -> None:
    limits.set_entity_limits(USER, ["usd=1/month"], resource="llm")
    limits.set_candidate(Policy.objects.get(), "usd=0.005/month")
    for _ in range(3):
        use()
    evaluations.flush()
    [report] = limits.candidates()
    assert report.by_key["usd"] == (3, 2)
    assert used() == pytest.approx(3 * COST)


@pytest.mark.parametrize(("policy", "admitted"), [("local", 1), ("allow", 3)])
def test_budget_while_the_store_is_unavailable(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, policy: str, admitted: int
) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNAVAILABLE": policy, "EXPECTED_PROCESSES": 2}
    limits.set_entity_limits(USER, ["usd=0.008/month"], resource="llm")
    store = FailingStore(MemoryStore())
    put_store(monkeypatch, store)
    resolver.clear()
    use()
    store.down = True
    decisions = [limits.try_acquire("llm", requested=TOKENS, entity=USER) for _ in range(3)]
    assert [acquisition.outcome.degraded for acquisition in decisions] == [True] * 3
    assert sum(map(bool, decisions)) == admitted


def test_units_without_a_limit_do_not_depend_on_the_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LIMITS = {**settings.LIMITS, "ON_UNAVAILABLE": "block"}
    store = FailingStore(MemoryStore())
    put_store(monkeypatch, store)
    resolver.clear()
    use(entity="user:2")
    store.down = True
    assert use(entity="user:2")


def test_checks_report_resources_without_a_price(settings: Settings) -> None:
    limits.set_resource_limits("llm", ["usd=1/month", "eur=1/month"])
    limits.set_resource_limits("ocr", ["usd=1/month", "pages=5/min"])
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    reported = [message for message in check_stores(["default"]) if message.id == "limits_app.W079"]
    assert [message.msg for message in reported] == [
        "llm is limited in eur, and has no price in eur",
        "ocr is limited in usd, and has no price in usd",
    ]
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert not [message for message in check_stores(["default"]) if message.id == "limits_app.W079"]


def test_checks_report_resources_without_a_price_under_a_total(settings: Settings) -> None:
    def reported() -> list[str]:
        return [message.msg for message in check_stores(["default"]) if message.id == "limits_app.W079"]

    for resource, texts in (("llm", ["tokens=5/min"]), ("ocr", ["pages=5/min"]), ("web", [CallLimit(5, 60)])):
        limits.set_resource_limits(resource, texts)
    limits.set_resource_limits("files", ["usd=1/month", "bytes=5/day@UTC"])
    of_files = "files is limited in usd, and has no price in usd"
    assert reported() == [of_files]
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    assert reported() == [of_files, "ocr limits units and has no price in usd, and a total is limited in usd"]
    with pytest.raises(InvalidRequest, match="ocr has no price in usd"):
        limits.acquire("ocr", entity=USER, requested={"pages": 1})
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert reported() == []


def test_checks_report_prices_that_begin_later_under_a_total(settings: Settings) -> None:
    def reported() -> list[str]:
        return [message.msg for message in check_stores(["default"]) if message.id == "limits_app.W079"]

    begins = datetime.now(UTC).replace(year=2101, month=1, day=1, hour=13, minute=0, second=0, microsecond=0)
    price("maps", "call_count", "1", valid_from=begins)
    price("maps", "tiles", "1", valid_from=begins.replace(hour=14))
    price("llm", "images", "1", valid_from=begins)
    price("files/*", "call_count", "1")
    price("files/upload", "call_count", "2", valid_from=begins)
    assert reported() == []
    limits.set_entity_limits(USER, ["usd=1/month"], counted="total")
    of_maps = "maps has no price in usd before 2101-01-01 13:00 UTC, and a total is limited in usd"
    assert reported() == [of_maps]
    with pytest.raises(InvalidRequest, match="maps has no price in usd"):
        limits.acquire("maps", entity=USER, requested={"tiles": 1})
    assert use(entity=USER)
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert reported() == []


def test_a_limit_of_a_parent_that_shares_have_in_common_is_charged_as_the_first_one_requests_it() -> None:
    team = Entity.objects.create(identifier="team:1")
    for number in (1, 2):
        Entity.objects.create(identifier=f"member:{number}", parent=team, cascade=True)
    limits.set_entity_limits("team:1", ["usd=100/month", "pages=100/day@UTC"], resource="llm")
    limits.set_entity_limits("team:1", ["usd=1000/month"], counted="total")
    shares = [Share("llm", f"member:{number}", {"pages": pages, "usd": pages}) for number, pages in ((1, 3), (2, 10))]
    assert try_acquire_all(shares)
    assert [used("llm", "team:1", key) for key in ("pages", "usd", "total:usd")] == [3, 3, 13]


def test_usage_from_before_a_change_of_currencies_is_read_as_the_other_kind_of_amount(settings: Settings) -> None:
    row = UsageSnapshot(key="gold", admitted_milli=7000)
    assert row.admitted == 7
    settings.LIMITS = {**settings.LIMITS, "CURRENCIES": ["usd", "gold"]}
    assert row.admitted == 0.000007


def test_units_without_a_limit_are_no_limits_of_people() -> None:
    limits.set_entity_limits(USER, ["usd=0.01/month"], resource="llm")
    use()
    stats = limits.status("llm", entity=USER).limits
    assert {key: value["type"] for key, value in stats.items()} == {
        "usd": "quota",
        "input_tokens": "unlimited",
        "output_tokens": "unlimited",
    }
    assert "buckets" not in stats["usd"]
    assert [limit.unit for limit in own_limits(USER, ["llm"])] == ["USD"]
    assert exhaust("llm", entity=USER)
    assert not limits.try_acquire("llm", requested={"input_tokens": 1}, entity=USER)

"""Limits in money through the services: policies, forms, usage, credit and boosts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.exceptions import ValidationError
from django.db.models.signals import post_init
from django.utils import timezone
from pytest_django import Settings

from limits_app import QuotaLimit, limits
from limits_app.checks import stores as checks
from limits_app.engine.errors import InvalidRequest
from limits_app.models import Endpoint, Limit, Policy, UsageSnapshot
from limits_app.policies import resolver
from limits_app.services.amounts import amount_of_each
from limits_app.services.limit_fields import FIELDS, join, split
from limits_app.services.limit_sentences import SimpleAmount
from limits_app.services.limit_words import limit_in_words, own_limits
from limits_app.services.simulation.forecast import replay_hours
from limits_app.services.unavailable import fallback_of

pytestmark = pytest.mark.django_db

USER = "user:1"
BUDGET = "usd=49.990001/month"


def spend(amount: str | Decimal, used: str | Decimal, resource: str = "chat") -> None:
    with limits.acquire(resource, requested={"usd": amount}, entity=USER) as acquisition:
        acquisition.update({"usd": used})


def test_budget_is_charged_and_counted_to_the_millionth() -> None:
    limits.set_resource_limits("chat", [BUDGET])
    spend("0.5", Decimal("0.104213"))
    spend("0.000001", "0.000001")
    stats = limits.status("chat", entity=USER).limits["usd"]
    assert (stats["capacity"], stats["used"], stats["available"]) == (49.990001, 0.104214, 49.885787)
    assert "usd: 49.885787 of 49.990001 left" in limits.explain("chat", entity=USER).text()
    limits.roll_up()
    uses = limits.usage("chat", by="entity", since=datetime(2001, 1, 1, tzinfo=UTC))
    assert {use.key: use.admitted for use in uses} == {"usd": 0.104214, "usd+": 0.104214}
    assert UsageSnapshot.objects.first().admitted == 0.104214  # type: ignore[union-attr]


def test_total_over_resources_is_a_budget() -> None:
    limits.set_entity_limits(USER, ["usd=1/day"], counted="total")
    spend("0.6", "0.6", "chat")
    assert not limits.try_acquire("mail", requested={"usd": 0.400001}, entity=USER)
    assert limits.try_acquire("mail", requested={"usd": 0.4}, entity=USER)


def test_views_charge_no_money() -> None:
    limits.set_resource_limits("chat", ["usd=0.5/month", "calls=5/min"])
    limit_set = resolver.latest(("chat", USER, (), None)).limit_set
    assert limit_set.ones == {"usd": 0}
    assert amount_of_each(5, limit_set) == {"usd": 0, "call_count": 5}


def test_credit_and_boost() -> None:
    limits.set_resource_limits("chat", [BUDGET])
    spend("10", "10")
    assert limits.top_up("chat", key="usd", amount=0.000001, entity=USER, reason="refund")
    assert limits.status("chat", entity=USER).limits["usd"]["used"] == 9.999999
    limits.boost_each(USER, 1.5, timezone.now() + timedelta(days=1), "growth")
    assert limits.status("chat", entity=USER).limits["usd"]["capacity"] == 74.985001


def test_fields_of_forms() -> None:
    row = Limit(policy=Policy.objects.create(), key="usd", text="49.990001/month")
    assert split(row)["capacity"] == Decimal("49.990001")
    values = {name: field.get_default() for name, field in FIELDS.items()}
    values |= {"kind": "quota", "key": "usd", "capacity": Decimal("0.000001"), "period": "day"}
    noted = join(values)
    assert noted is not None
    assert noted.limit == QuotaLimit.per_day("usd", 0.000001)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="capacity must be a whole number"):
        join(values | {"key": "tokens"})


@pytest.mark.parametrize(
    ("text", "words", "per", "unit"),
    [
        ("usd=50/month", "50 USD per month", "month", "USD"),
        ("eur=0.000125/day", "0.000125 EUR per day", "day", "EUR"),
        ("usd=5/min:rate", "5 USD per minute", "min", "USD"),
        ("usd=50/month:from=client", "50 USD per billing month of the client", "billing-month", "USD"),
    ],
)
def test_words_and_sentences(text: str, words: str, per: str, unit: str, settings: Settings) -> None:
    settings.TIME_ZONE = "UTC"
    limit = Limit(key=text.partition("=")[0], text=text.partition("=")[2]).definition()
    assert limit_in_words(limit) == words
    amount = SimpleAmount.of(limit)
    assert (amount.per, amount.unit) == (per, unit)
    assert Limit(key=limit.key, text=amount.text.partition("=")[2]).definition() == limit


def test_own_limits() -> None:
    limits.set_resource_limits("chat", ["usd=50/month"])
    spend("1.25", "1.25")
    assert [limit.text for limit in own_limits(USER, ["chat"])] == ["1.25 of 50 USD per month used"]


def test_recorded_spending_is_replayed() -> None:
    recorded = {500_000: 700_000_000, 500_001: 600_000_000}  # 0.7 and 0.6 of a currency
    assert replay_hours(QuotaLimit.per_month("usd", 1), recorded) == {500_001: 300_000_000}


def test_share_of_a_process_while_the_store_is_unavailable(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "EXPECTED_PROCESSES": 3, "ON_UNAVAILABLE": "local"}
    limits.set_resource_limits("chat", ["usd=0.1/month"])
    [share] = fallback_of(resolver.latest(("chat", USER, (), None)))
    assert share.capacity == 0.033333


def test_amounts_of_a_url_rule() -> None:
    rule = Endpoint(name="chat", path="/chat/", limits="usd=5/day", amounts={"usd": 0.000125})
    rule.full_clean()
    rule.amounts = {"usd": 0.0000001}
    with pytest.raises(ValidationError, match="at most six decimals"):
        rule.full_clean()


def test_several_resources_are_charged_their_money() -> None:
    limits.set_resource_limits("chat", ["usd=1/month"])
    limits.set_resource_limits("image", ["usd=1/month"])
    limits.set_entity_limits(USER, ["usd=1/day"], counted="total")
    asked = {"chat": {"usd": "0.25"}, "image": {"usd": Decimal("0.500001")}}
    with limits.acquire(asked, entity=USER) as acquisition:  # type: ignore[arg-type]
        acquisition.update({"chat:usd": "0.1", "image:usd": 0.000001})
    assert limits.status("image", entity=USER).limits["usd"]["used"] == 0.000001
    assert limits.status("image", entity=USER).limits["total:usd"]["used"] == 0.100001


def test_idempotency_key_belongs_to_an_amount_however_it_is_written() -> None:
    limits.set_resource_limits("chat", ["usd=1/month"])
    for amount in ("0.10", 0.1, Decimal("0.1")):
        with limits.acquire("chat", requested={"usd": amount}, entity=USER, idempotency_key="a") as acquisition:
            acquisition.update({"usd": 0.1})
    assert limits.status("chat", entity=USER).limits["usd"]["used"] == 0.1
    with pytest.raises(InvalidRequest):
        limits.acquire("chat", requested={"usd": "0.100001"}, entity=USER, idempotency_key="a")


def test_other_currencies(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "CURRENCIES": ["chf"]}
    limits.set_resource_limits("chat", ["chf=0.5/month", "usd=5/min"])
    assert {limit.key: type(limit).__name__ for limit in limits.limit_set("chat")} == {
        "chf": "QuotaLimit",
        "usd": "RateLimit",
    }


@pytest.mark.parametrize("text", ["gold=3", "gold=3/5d", "gold=3/5d:gcra", "gold=3/h:sliding_window"])
def test_limits_in_units_stay_in_force_when_their_key_becomes_a_currency(settings: Settings, text: str) -> None:
    limits.set_resource_limits("mine", [text])
    settings.LIMITS = {**settings.LIMITS, "CURRENCIES": ["gold"]}
    resolver.clear()
    acquisition = limits.try_acquire("mine", requested={"gold": 2}, entity=USER)
    assert acquisition
    assert not limits.try_acquire("mine", requested={"gold": 2}, entity=USER)
    acquisition.cancel()
    [reported] = checks.check_stores(["default"])
    assert reported.id == "limits_app.E092"
    assert "mine" in reported.msg
    assert "'gold' as before, in units" in str(reported.hint)


def test_limits_in_money_stay_in_force_when_their_key_is_no_currency(settings: Settings) -> None:
    before = settings.LIMITS
    settings.LIMITS = {**before, "CURRENCIES": ["gold"]}
    limits.set_resource_limits("mine", ["gold=0.5/month"])
    settings.LIMITS = {**before, "CURRENCIES": ["usd"]}
    resolver.clear()
    assert limits.try_acquire("mine", requested={"gold": "0.3"}, entity=USER)
    assert not limits.try_acquire("mine", requested={"gold": "0.3"}, entity=USER)
    assert [reported.id for reported in checks.check_stores(["default"])] == ["limits_app.E092"]


def test_small_money_is_written_in_plain_decimals() -> None:
    limits.set_resource_limits("tiny", ["usd=0.00007/month"])
    spend("0.00005", "0.00005", "tiny")
    assert "usd: 0.00002 of 0.00007 left" in limits.explain("tiny", entity=USER).text()
    rejected = limits.try_acquire("tiny", requested={"usd": "0.00003"}, entity=USER)
    assert "0.00002 of 0.00007 left, 0.00003 requested" in rejected.outcome.summary()


def test_checks_read_the_texts_of_limits_and_not_a_row_for_each() -> None:
    for number in range(30):
        limits.set_entity_limits(f"user:{number}", ["tokens=5M/month@Europe/Berlin", "calls=20/min"])
    read: list[Limit] = []
    receiver = lambda instance, **_: read.append(instance)  # noqa: E731 - signals hold functions weakly
    post_init.connect(receiver, sender=Limit)
    try:
        assert checks.check_stores(["default"]) == []
    finally:
        post_init.disconnect(receiver, sender=Limit)
    assert len(read) == 1, "that of every table, to see whether it can be read"

"""Limits that nobody has used yet, and a clock that moves all of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings
from pytest_django import Settings

from limits_app import StoreUnavailable, limits, services, signals
from limits_app.acquiring.breaker import BreakerState
from limits_app.alerts import recorder
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit
from limits_app.models import Alert, AlertRule, Policy
from limits_app.services.status import status_of_each
from limits_app.stores import registry
from limits_app.stores.registry import resilient_store
from limits_app.testing import FakeClock, freeze_limits, fresh_limits, override_limits
from tests.services.pool_rows import NAME, make_pool

ONE: LimitDefinition = CallLimit(1, 60)


def take() -> bool:
    """Whether a call of the site itself is admitted."""
    return bool(services.try_acquire("reports"))


def test_each_block_begins_with_unused_limits() -> None:
    with override_limits("reports", ONE):
        for _ in range(2):
            with fresh_limits():
                assert take()
                assert not take()


@pytest.mark.django_db
def test_the_state_of_several_clients_is_that_of_replaced_limits() -> None:
    with fresh_limits(), override_limits("reports", ONE):
        assert take()
        statuses = status_of_each([("reports", "user:1"), ("reports", "user:2"), ("mail", "user:1")])
        assert [[*status.limits] for status in statuses] == [["call_count"], ["call_count"], []]


def test_former_stores_are_restored() -> None:
    with fresh_limits(), override_limits("reports", ONE):
        assert take()
        with fresh_limits():
            assert take()
        assert not take()


def test_stores_of_the_site_are_restored_when_the_block_raises() -> None:
    def block() -> None:
        with fresh_limits(), fresh_limits():
            raise LookupError

    before = registry.store()
    with pytest.raises(LookupError):
        block()
    assert registry.store() is before


@pytest.mark.django_db
def test_cool_downs_and_turns_are_reset() -> None:
    make_pool({"a": [], "b": []})
    for _ in range(2):
        with fresh_limits():
            pool = limits.pool(NAME)
            assert [pool.try_acquire().config["member"] for _ in range(3)] == ["a", "b", "a"]
            pool.cool_down("b", 3600)
            assert [pool.try_acquire().config["member"] for _ in range(3)] == ["a"] * 3


def test_a_store_that_was_down_is_asked_again() -> None:
    for _ in range(2):
        with fresh_limits(), override_limits("reports", ONE):
            assert take()
            for _ in range(100):
                resilient_store().record_failure(StoreUnavailable("down"))
            store = resilient_store()
            assert store.breaker.state is BreakerState.OPEN
            assert store.failing
        assert not store.failing


def test_warnings_are_reported_again_after_a_reset() -> None:
    near: list[float] = []

    def hear(threshold: float, **details: object) -> None:
        near.append(threshold)

    signals.limit_near.connect(hear)
    try:
        for _ in range(2):
            with freeze_limits(at=1e9), override_limits("reports", ONE):
                take()
    finally:
        signals.limit_near.disconnect(hear)
    assert near == [near[0]] * 2


@pytest.mark.django_db(transaction=True)
def test_refusals_of_policies_that_are_tried_are_counted_from_nothing() -> None:
    limits.set_resource_limits("reports", [ONE], enforcement="shadow")
    for _ in range(2):
        with fresh_limits():
            assert [take() for _ in range(3)] == [True] * 3
            assert limits.shadow_refusals() == {"reports": {"call_count": 2}}


def test_every_alias_has_a_store_of_its_own() -> None:
    stores = {"a": {"KIND": "process"}, "b": {"KIND": "process"}}
    with override_settings(LIMITS={"STORE": "a", "STORES": stores}), fresh_limits():
        assert registry.store() is registry.store("a") is not registry.store("b")


def test_settings_that_change_within_do_not_bring_back_a_store_of_the_site() -> None:
    with fresh_limits():
        before = registry.store()
        with override_settings(LIMITS={"STORES": {"default": {"KIND": "process", "MAP_MEGABYTES": 1}}}):
            assert registry.store() is before


def test_time_stands_still_until_it_is_moved() -> None:
    with freeze_limits() as clock, override_limits("reports", ONE):
        assert take()
        clock.advance(59)
        assert not take()
        clock.advance(1)
        assert take()


def test_time_starts_at_the_given_time() -> None:
    noon = datetime(2030, 3, 5, 12, tzinfo=UTC)
    with freeze_limits(at=noon.timestamp()) as clock, override_limits("reports", QuotaLimit("calls", 1, period="day")):
        assert services.try_acquire("reports", requested={"calls": 1})
        clock.advance(12 * 3600 - 1)
        assert not services.try_acquire("reports", requested={"calls": 1})
        clock.advance(1)
        assert services.try_acquire("reports", requested={"calls": 1})


@pytest.mark.django_db(transaction=True)
def test_dates_of_policies_move_with_the_clock() -> None:
    with freeze_limits() as clock:
        services.set_entity_limits("ann", [ONE], resource="reports")
        services.grant_boost("ann", "reports", [CallLimit(3, 60)], datetime.now(UTC) + timedelta(hours=1), "a launch")
        assert services.limit_set("reports", "ann")["call_count"].capacity == 3
        clock.advance(3601)
        assert services.limit_set("reports", "ann")["call_count"].capacity == 1
        assert Policy.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_times_of_alerts_move_with_the_clock(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "ALERTS": True}
    AlertRule.objects.create(name="incidents", kind="emergency", target="log")
    begun, wall = datetime.now(UTC), recorder.now
    with freeze_limits() as clock:
        clock.advance(7_200)
        services.set_emergency("off", reason="a test")
        clock.advance(86_400)
        services.set_emergency("shadow", reason="a test")
        recorder.flush()
    first, second = Alert.objects.order_by("pk").values_list("created_at", flat=True)
    assert timedelta(hours=2) <= first - begun < timedelta(hours=3)
    assert timedelta(hours=24) <= second - first < timedelta(hours=25)
    assert recorder.now == wall


@fresh_limits()
@override_limits("reports", ONE)
def test_a_function_that_is_decorated_is_a_block() -> None:
    assert take()
    assert not take()


test_and_may_be_called_again = test_a_function_that_is_decorated_is_a_block


def test_a_coroutine_that_is_decorated_is_a_block() -> None:
    @freeze_limits(kwarg_name="clock")
    @override_limits("reports", ONE)
    async def decorated(clock: FakeClock) -> list[bool]:
        first = await services.atry_acquire("reports")
        await asyncio.sleep(0)
        second = await services.atry_acquire("reports")
        clock.advance(60)
        return [bool(first), bool(second), bool(await services.atry_acquire("reports"))]

    assert asyncio.run(decorated()) == [True, False, True]

"""A site in an SQLite file that has its limits in the same file, and requests that lock it before they ask."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from django.db import transaction
from pytest_django import Settings

from limits_app import CallLimit, ResourceLimit, StoreUnavailable, limits
from limits_app.engine.errors import StoreBlocked
from limits_app.models import Entity
from limits_app.stores.registry import resilient_store
from limits_app.testing import FakeClock
from tests.services.failing import recover_by
from tests.stores.database.databases import ALIAS, There


@pytest.fixture(autouse=True)
def site(
    second_database: None, settings: Settings, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A store that would wait for an hour, whose recovery goes by a clock that stands still."""
    store = {"KIND": "database", "USING": ALIAS, "LOCK_TIMEOUT_SECONDS": 3600}
    settings.DATABASE_ROUTERS = [There()]
    settings.LIMITS = {**settings.LIMITS, "STORES": {"default": store}}
    recover_by(clock, monkeypatch)
    limits.set_resource_limits("api", [CallLimit(3, 60), ResourceLimit("running", 1)])
    yield
    resilient_store().open().inner.close()  # type: ignore[attr-defined]


def write() -> None:
    Entity.objects.update_or_create(identifier="user:7", defaults={"name": "Ann"})


def test_a_request_that_blocks_itself_gets_an_error_and_blocks_no_other(caplog: pytest.LogCaptureFixture) -> None:
    assert limits.try_acquire("api").release() is None
    for _ in range(50):
        with transaction.atomic(using=ALIAS):
            write()
            with pytest.raises(StoreBlocked, match="which the transaction of the caller has locked: acquire before"):
                limits.acquire("api")
    assert not resilient_store().failing
    assert caplog.records[-1].levelno == logging.WARNING
    assert limits.try_acquire("api")


def test_refunds_are_settled_when_the_transaction_is_over(clock: FakeClock) -> None:
    acquired = limits.acquire("api")
    with transaction.atomic(using=ALIAS):
        write()
        acquired.release()
    assert resilient_store().unsettled == 1
    assert not limits.try_acquire("api")
    clock.advance(10)
    assert resilient_store().unsettled == 0
    assert limits.try_acquire("api")
    assert not resilient_store().failing


def test_while_the_store_is_asked_again_little_by_little_it_takes_nobodys_place() -> None:
    resilient = resilient_store()
    for _ in range(50):
        resilient.record_failure(StoreUnavailable("no"))
    resilient.breaker.half_open()
    with transaction.atomic(using=ALIAS):
        write()
        with pytest.raises(StoreBlocked):
            limits.acquire("api")
    assert limits.try_acquire("api")


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_reset_and_a_credit_are_made_after_the_transaction_that_audits_them(in_transaction: bool) -> None:
    for _ in range(3):
        limits.acquire("api").release()
    with transaction.atomic(using=ALIAS) if in_transaction else nullcontext():
        assert limits.top_up("api", key="call_count", amount=1, idempotency_key="once")
    assert resilient_store().unsettled == 0
    assert not limits.top_up("api", key="call_count", amount=1, idempotency_key="once")
    assert limits.status("api").limits["call_count"]["used"] == pytest.approx(2, abs=0.5)
    with transaction.atomic(using=ALIAS) if in_transaction else nullcontext():
        assert limits.reset("api")
    assert limits.status("api").limits["call_count"]["used"] == 0

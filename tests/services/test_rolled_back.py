"""Credit and resets within a transaction of the caller: they happen when it is committed, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from django.db import transaction

from limits_app import CallLimit, RateLimit, audit, conf, limits
from limits_app.core.errors import StoreUnavailable
from limits_app.models import AuditEvent, Limit
from limits_app.resolver.cache import resolver
from limits_app.stores import registry
from limits_app.stores.registry import forget_stores
from tests.services.failing import FailingStore

Act = Callable[[], bool]


def top_up() -> bool:
    return limits.top_up("api", key="tpm", amount=3, idempotency_key="ticket-1")


def reset() -> bool:
    return limits.reset("api", idempotency_key="ticket-1")


acts = pytest.mark.parametrize(("act", "after"), [(top_up, 3), (reset, 10)], ids=["top_up", "reset"])


class Failed(Exception):
    """What a view raises."""


@pytest.fixture(autouse=True)
def _spent() -> None:
    """Ten of ten are used."""
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    with limits.acquire("api", requested={"tpm": 10}) as acquisition:
        acquisition.update({"tpm": 10})


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingStore:
    """The store of the site, which can be taken away."""
    failing = FailingStore(registry.store("default"))
    monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), failing)
    forget_stores()
    resolver.clear()
    return failing


def left() -> object:
    return limits.status("api").limits["tpm"]["available"]


def events() -> int:
    return AuditEvent.objects.filter(object_type="state").count()


@acts
def test_what_is_rolled_back_is_not_done_and_its_key_is_free(act: Act, after: float) -> None:
    for _ in range(2):
        with suppress(Failed), transaction.atomic():
            assert act()
            assert events() == 1
            raise Failed
        assert (left(), events()) == (0, 0)
    assert act()
    assert (left(), events()) == (after, 1)


@acts
def test_what_is_committed_is_done_then_and_once(act: Act, after: float) -> None:
    with transaction.atomic():
        assert [act(), act()] == [True, False]
        assert left() == 0
    assert (left(), events()) == (after, 1)
    assert act() is False
    assert left() == after


@acts
def test_a_part_of_a_transaction_that_is_rolled_back_is_not_done(act: Act, after: float) -> None:
    with transaction.atomic():
        with suppress(Failed), transaction.atomic():
            act()
            raise Failed
        limits.set_entity_limits("user:1", [CallLimit(5, 60)])
    assert (left(), events()) == (0, 0)
    with transaction.atomic():
        with transaction.atomic():
            act()
        with suppress(Failed), transaction.atomic():
            raise Failed
    assert (left(), events()) == (after, 1)


@acts
def test_within_other_changes_it_is_done_with_them(act: Act, after: float) -> None:
    with suppress(Failed), audit.acting(reason="all of it"):
        act()
        raise Failed
    assert (left(), events()) == (0, 0)
    with audit.acting(reason="all of it"):
        act()
    assert (left(), events()) == (after, 1)


@acts
def test_where_autocommit_is_switched_off_nothing_is_done(act: Act, after: float) -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(transaction.TransactionManagementError, match="autocommit"):
            act()
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert (left(), events()) == (0, 0)


@acts
def test_an_outage_fails_the_commit(act: Act, after: float, failing: FailingStore, announced: list[str]) -> None:
    def act_and_lose_the_store() -> None:
        with transaction.atomic():
            assert act()
            Limit.objects.update(capacity=20)
            announced.clear()
            failing.down = True

    with pytest.raises(StoreUnavailable):
        act_and_lose_the_store()
    assert events() == 1
    assert announced == ["default"]
    failing.down = False
    forget_stores()
    assert act() is False


@acts
def test_a_store_that_is_down_before_it_is_no_event(act: Act, after: float, failing: FailingStore) -> None:
    failing.down = True
    with transaction.atomic(), pytest.raises(StoreUnavailable):
        act()
    assert events() == 0

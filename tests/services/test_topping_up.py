"""Credit and resets: audited, within what a limit can hold, and only once for each idempotency key.

Within a transaction of the caller they happen when it is committed, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from limits_app import (
    CallLimit,
    InvalidLimit,
    InvalidRequest,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
    audit,
    limits,
)
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import RateLimitAlgorithm as Algorithm
from limits_app.models import AuditEvent, Entity, Limit
from limits_app.policies import ResolvedSet, resolver
from limits_app.stores import registry
from limits_app.stores.registry import forget_stores, resilient_store
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.replacing import at_next_call
from tests.services.failing import FailingStore


def spend(amount: int, entity: str | None = None) -> None:
    with limits.acquire("api", entity=entity, requested={"tpm": amount}) as acquisition:
        acquisition.update({"tpm": amount})


def left(entity: str | None = None, key: str = "tpm") -> float:
    return limits.status("api", entity=entity).limits[key]["available"]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_credit_is_as_much_as_fits(algorithm: RateLimitAlgorithm) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600, algorithm), CallLimit(5, 3600)])
    spend(8)
    assert limits.top_up("api", key="tpm", amount=3, reason="sorry", actor="ann") is True
    assert left() == 5
    assert left(key="call_count") == 4
    limits.top_up("api", key="tpm", amount=1)
    assert left() == 6
    limits.top_up("api", key="tpm", amount=1000)
    assert left() == 10
    first, *_ = AuditEvent.objects.filter(verb="top_up").order_by("pk")
    assert (first.actor, first.reason, first.object_label) == ("ann", "sorry", "api")
    assert first.after == {"resource": "api", "entity": None, "key": "tpm", "amount": 3}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_credited_amounts_stay_counted_as_usage(algorithm: RateLimitAlgorithm) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600, algorithm)])
    spend(8, "user:1")
    limits.top_up("api", key="tpm", amount=5, entity="user:1")
    spend(1, "user:1")
    counts = resilient_store().open().collect_counts()
    assert counts is not None
    assert [count.amounts for count in counts.counts] == [{"tpm": 9_000}]


def test_credit_of_a_quota_is_for_the_period_in_which_it_is_given(clock: FakeClock) -> None:
    limits.set_resource_limits("api", [QuotaLimit("tpm", 10, session_seconds=3600)])
    spend(8)
    limits.top_up("api", key="tpm", amount=3)
    assert left() == 5
    clock.advance(3600)
    limits.top_up("api", key="tpm", amount=3)
    assert left() == 10


def test_only_the_entity_itself_is_credited() -> None:
    parent = Entity.objects.create(identifier="tenant:acme")
    Entity.objects.create(identifier="user:1", parent=parent, cascade=True)
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    spend(8, "user:1")
    limits.top_up("api", key="tpm", amount=5, entity="user:1")
    own, parents = limits.status("api", entity="user:1").limits["tpm"]["buckets"]
    assert (own["available"], parents["available"]) == (7, 2)
    assert (left("user:1"), left("tenant:acme"), left()) == (2, 2, 10), "the bucket of the parent binds"
    limits.reset("api", entity="user:1")
    own, parents = limits.status("api", entity="user:1").limits["tpm"]["buckets"]
    assert (own["available"], left("tenant:acme")) == (10, 2)


def test_shared_limits_are_credited_to_all_and_reset_with_the_site() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600), CallLimit(9, 3600)], shared=["tpm"])
    spend(8, "user:1")
    limits.reset("api", entity="user:1")
    assert left("user:2") == 2
    limits.top_up("api", key="tpm", amount=5, entity="user:1")
    assert left("user:2") == 7
    limits.reset("api", keys=["tpm"])
    assert left("user:2") == 10


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"resource": "a b"}, InvalidLimit, "resource"),
        ({"entity": ""}, InvalidLimit, "entity"),
        ({"key": "rpm"}, InvalidRequest, "No limit has the key rpm; must be one of: slot, tpm, whole"),
        ({"resource": "free"}, InvalidRequest, "must be one of: none"),
        ({"key": "slot"}, InvalidRequest, "only rates, calls and quotas"),
        ({"key": "whole", "amount": 1.5}, InvalidRequest, "amount of 'whole' must be a whole number"),
        ({"amount": 0}, InvalidRequest, "must be greater than 0"),
        ({"amount": -1}, InvalidRequest, "must not be negative"),
    ],
)
def test_credit_that_cannot_be_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    whole = RateLimit("whole", 5, 60, Algorithm.SLIDING_WINDOW)
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 60), ResourceLimit("slot", 1), whole])
    with pytest.raises(error, match=message):
        limits.top_up(**({"resource": "api", "key": "tpm", "amount": 1} | arguments))
    assert not AuditEvent.objects.filter(verb="top_up").exists()


def test_the_same_key_does_it_once() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    spend(10)
    done = [limits.top_up("api", key="tpm", amount=2, idempotency_key="ticket-1") for _ in range(3)]
    assert done == [True, False, False]
    assert left() == 2
    assert limits.top_up("api", key="tpm", amount=2, idempotency_key="ticket-2") is True
    assert left() == 4
    assert AuditEvent.objects.filter(verb="top_up").count() == 2
    assert [limits.reset("api", idempotency_key="ticket-3") for _ in range(2)] == [True, False]


def test_concurrent_credits_with_the_same_key_are_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    spend(8)
    done = []

    def another_first(latest: Callable[..., ResolvedSet], *args: Any) -> ResolvedSet:
        done.append(limits.top_up("api", key="tpm", amount=2, idempotency_key="one"))
        return latest(*args)

    at_next_call(monkeypatch, resolver, "latest", another_first)
    done.append(limits.top_up("api", key="tpm", amount=2, idempotency_key="one"))
    assert done == [True, False]
    assert left() == 4


def test_a_key_that_was_used_for_something_else_is_an_error() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    limits.top_up("api", key="tpm", amount=2, idempotency_key="one")
    for again in (
        lambda: limits.top_up("api", key="tpm", amount=3, idempotency_key="one"),
        lambda: limits.top_up("api", key="tpm", amount=2, entity="user:1", idempotency_key="one"),
        lambda: limits.reset("api", idempotency_key="one"),
    ):
        with pytest.raises(InvalidRequest, match="'one' was used for another operation: top_up state api"):
            again()


def test_a_key_that_cannot_be_is_an_error_before_anything_is_looked_up() -> None:
    with pytest.raises(InvalidRequest, match="must be text of 1 to 255 characters"):
        limits.top_up("no such name", key="tpm", amount=2, idempotency_key="")
    with pytest.raises(InvalidRequest, match="idempotency key"):
        limits.reset("no such name", idempotency_key="")


def test_failed_credit_can_be_repeated_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    spend(10)

    def unreachable(*args: object) -> Any:
        raise StoreUnavailable("connection refused")

    store = resilient_store().open()
    with monkeypatch.context() as patched:
        patched.setattr(store.inner, "peek", unreachable)
        patched.setattr(store.inner, "reset", unreachable)
        with pytest.raises(StoreUnavailable):
            limits.top_up("api", key="tpm", amount=2, idempotency_key="one")
        with pytest.raises(StoreUnavailable):
            limits.reset("api", idempotency_key="two")
    assert not AuditEvent.objects.filter(verb__in=["top_up", "reset"]).exists()
    forget_stores()
    assert limits.top_up("api", key="tpm", amount=2, idempotency_key="one") is True
    assert left() == 2


def test_what_was_done_is_known_again_also_when_other_limits_hold() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    assert limits.reset("api", idempotency_key="one") is True
    assert limits.reset("api", keys=["tpm"], idempotency_key="two") is True
    assert limits.top_up("api", key="tpm", amount=1, idempotency_key="three") is True
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    assert limits.reset("api", idempotency_key="one") is False
    assert limits.reset("api", keys="tpm", idempotency_key="two") is False
    assert limits.top_up("api", key="tpm", amount=1, idempotency_key="three") is False
    with pytest.raises(InvalidRequest, match="was used for another operation"):
        limits.reset("api", keys=["call_count"], idempotency_key="two")
    with pytest.raises(InvalidRequest, match="No limit has the key tpm"):
        limits.top_up("api", key="tpm", amount=1, idempotency_key="four")


def test_another_error_of_the_database_is_no_key_that_was_used() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    spend(8)
    with pytest.raises(IntegrityError):
        limits.reset("api", actor=None)  # type: ignore[arg-type]  # which no column takes
    assert left() == 2


def test_reset_forgets_recorded_use_and_is_audited() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 3600), RateLimit("tpm", 5, 3600)])
    for who in ("a", "b"):
        with limits.acquire("api", entity=who, requested={"tpm": 5}) as acquisition:
            acquisition.update({"tpm": 5})
    limits.reset("api", entity="a", keys=["tpm"], reason="a favour", actor="ann")
    used = [limits.status("api", entity=who).limits[key]["used"] for who in "ab" for key in ("call_count", "tpm")]
    assert used == [1, 0, 1, 5]
    limits.reset("api", entity="b")
    assert limits.try_acquire("api", entity="b", requested={"tpm": 5}).successful
    first, second = AuditEvent.objects.filter(verb="reset").order_by("pk")
    assert (first.actor, first.reason, first.object_label) == ("ann", "a favour", "a on api")
    assert second.after == {"resource": "api", "entity": "b", "keys": ["call_count", "tpm"]}


def test_one_key_to_reset_needs_no_list() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 3600)])
    limits.acquire("api")
    assert limits.reset("api", keys="call_count") is True
    assert limits.try_acquire("api")
    with pytest.raises(InvalidRequest, match="No limit has the key 5, no"):
        limits.reset("api", keys=[5, "no"])
    for name in ({"resource": "a b"}, {"resource": "api", "entity": ""}):
        with pytest.raises(InvalidLimit, match=r"(resource|entity) .* must be"):
            limits.reset(**name)
    assert AuditEvent.objects.filter(verb="reset").count() == 1


Act = Callable[[], bool]


def top_up() -> bool:
    return limits.top_up("api", key="tpm", amount=3, idempotency_key="ticket-1")


def reset() -> bool:
    return limits.reset("api", idempotency_key="ticket-1")


def acts(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with either, after ten of ten were used."""
    both = pytest.mark.parametrize(("act", "after"), [(top_up, 3), (reset, 10)], ids=["top_up", "reset"])
    return pytest.mark.usefixtures("spent")(both(test))


class Failed(Exception):
    """What a view raises."""


@pytest.fixture
def spent() -> None:
    """Ten of ten are used."""
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 3600)])
    with limits.acquire("api", requested={"tpm": 10}) as acquisition:
        acquisition.update({"tpm": 10})


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingStore:
    """The store of the site, which can be taken away."""
    failing = FailingStore(registry.store("default"))
    put_store(monkeypatch, failing)
    forget_stores()
    resolver.clear()
    return failing


def events() -> int:
    return AuditEvent.objects.filter(object_type="state").count()


@acts
def test_rolled_back_credit_leaves_its_key_free(act: Act, after: float) -> None:
    for _ in range(2):
        with suppress(Failed), transaction.atomic():
            assert act()
            assert events() == 1
            raise Failed
        assert (left(), events()) == (0, 0)
    assert act()
    assert (left(), events()) == (after, 1)


@acts
def test_credit_is_given_once_after_the_commit(act: Act, after: float) -> None:
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
            Limit.objects.update(text="20/min")
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

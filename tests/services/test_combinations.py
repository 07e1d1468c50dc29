"""Combinations: each has a counter, and all those of a client have the limits 1,024 times."""

from __future__ import annotations

import pytest

from limits_app import services
from limits_app.engine.errors import LimitExceeded
from limits_app.policies import resolver
from limits_app.policies.combined import TIMES_OF_A_CLIENT
from limits_app.services.combinations import CombinedSource, combined_name
from limits_app.services.request import AmountsRequest
from limits_app.stores.memory import MemoryStore
from tests.opened import put_store
from tests.services.failing import FailingStore

pytestmark = pytest.mark.django_db(transaction=True)


def allowed(value: object, client: str | None = "ip:192.0.2.1") -> bool:
    """Charge 1 of the limits of the resource to a value of a client."""
    name = combined_name(client, [str(value).encode()])
    source = CombinedSource(resolver, {name: client})
    try:
        AmountsRequest(("log-in", name, (), None), None, source, is_of_view=True).acquire()
    except LimitExceeded:
        return False
    return True


@pytest.mark.parametrize(
    "limits",
    [
        "calls=1/h",
        pytest.param("calls=1/h:burst=1:gcra", marks=pytest.mark.slow),
        pytest.param("calls=1/h:sliding_window", marks=pytest.mark.slow),
        pytest.param("calls=1/day", marks=pytest.mark.slow),
        pytest.param("calls=1/h db=9:permits", marks=pytest.mark.slow),
    ],
)
def test_each_of_a_thousand_values_has_its_counter_and_no_more(limits: str) -> None:
    services.set_resource_limits("log-in", limits)
    assert all(map(allowed, range(TIMES_OF_A_CLIENT)))
    assert not any(map(allowed, (0, TIMES_OF_A_CLIENT)))
    assert [allowed(0, "ip:192.0.2.2"), allowed(0, "ip:192.0.2.2")] == [True, False]


def test_values_of_a_soft_limit_are_bounded_too() -> None:
    services.set_resource_limits("log-in", "calls=1/h:soft")
    assert allowed(0)
    assert all(map(allowed, range(TIMES_OF_A_CLIENT - 1)))
    assert not allowed(TIMES_OF_A_CLIENT)


@pytest.mark.slow
def test_rejected_values_leave_the_bound_of_their_client_as_it_is() -> None:
    services.set_resource_limits("log-in", "calls=2/h:sliding_window")
    assert [allowed("a") for _ in range(9)] == [True, True, *[False] * 7]
    assert [allowed(number) for number in range(2 * TIMES_OF_A_CLIENT)].count(True) == 2 * TIMES_OF_A_CLIENT - 2


@pytest.mark.slow
def test_values_of_a_policy_in_shadow_mode_are_bounded_too() -> None:
    services.set_resource_limits("log-in", "calls=1/h", enforcement="shadow")
    before = sum(services.shadow_refusals().get("log-in", {}).values())
    assert all(map(allowed, range(TIMES_OF_A_CLIENT)))
    assert sum(services.shadow_refusals().get("log-in", {}).values()) == before
    assert allowed(TIMES_OF_A_CLIENT)
    assert sum(services.shadow_refusals().get("log-in", {}).values()) == before + 1


@pytest.mark.slow
def test_values_are_bounded_while_the_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FailingStore(MemoryStore())
    put_store(monkeypatch, store)
    services.set_resource_limits("log-in", "calls=1/h", on_unavailable="local")
    store.down = True
    assert services.try_acquire("log-in", entity=combined_name("ip:192.0.2.1", [b"alone"])).outcome.degraded
    assert all(map(allowed, range(TIMES_OF_A_CLIENT)))
    assert not any(map(allowed, (0, TIMES_OF_A_CLIENT)))


def test_an_erased_client_has_new_values_in_shadow_mode_too() -> None:
    services.set_resource_limits("log-in", "calls=1/h", enforcement="shadow")
    assert all(map(allowed, range(TIMES_OF_A_CLIENT)))
    services.erase("ip:192.0.2.1")
    before = sum(services.shadow_refusals().get("log-in", {}).values())
    assert allowed(TIMES_OF_A_CLIENT)
    assert sum(services.shadow_refusals().get("log-in", {}).values()) == before


@pytest.mark.slow
def test_all_clients_together_have_more_values() -> None:
    services.set_resource_limits("log-in", "calls=1/h")
    assert all(allowed(number, None) for number in range(2 * TIMES_OF_A_CLIENT))
    assert not allowed(0, None)


def test_limits_that_clients_share_have_no_bound_for_each() -> None:
    services.set_resource_limits("log-in", "calls=3/h:shared")
    assert [allowed(number) for number in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize("limits", ["tokens=1000000000000/h", "usd=1000000/month"])
def test_the_largest_limits_are_bounded_as_often_as_limits_may_be_large(limits: str) -> None:
    services.set_resource_limits("log-in", f"{limits} calls=1/h")
    name = combined_name("user:1", [b"a"])
    source = CombinedSource(resolver, {name: "user:1"})
    resolved = source.read(("log-in", name, (), None))
    [bound] = [scoped for scoped in resolved.limit_set.scoped if scoped.level == "combinations"]
    own = resolved.own[0].schema.limits[: len(bound.schema.limits)]
    assert all(more.capacity >= limit.capacity for more, limit in zip(bound.schema.limits, own, strict=True))


def test_a_change_of_the_limits_applies_to_the_next_request() -> None:
    services.set_resource_limits("log-in", "calls=1/h")
    assert [allowed("a"), allowed("a")] == [True, False]
    services.set_resource_limits("log-in", "calls=3/h")
    assert [allowed("a") for _ in range(3)] == [True, True, False]

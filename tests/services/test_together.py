"""Several resources and entities at once, all or nothing: as shares, and as a mapping of resources to amounts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytest_django import Settings

from limits_app import services, signals
from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitExceeded, LimitTimeout, StoreUnavailable
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.models import Policy
from limits_app.policies import resolver
from limits_app.services import Share, try_acquire_all
from limits_app.stores import registry
from limits_app.testing import FakeClock
from tests.opened import VERBS, fail_at
from tests.services.pool_rows import make_pool, serve

SLIDING = RateLimitAlgorithm.SLIDING_WINDOW


def left(resource: str, entity: str | None = "ann") -> dict[str, object]:
    """How much is left of each limit."""
    return {key: stats["available"] for key, stats in services.status(resource, entity=entity).limits.items()}


def limit(resource: str, *limits: LimitDefinition, on_unavailable: str = "") -> None:
    """Set limits for everyone on a resource."""
    services.set_resource_limits(resource, limits, on_unavailable=on_unavailable)


def test_all_shares_are_charged_each_with_its_amounts() -> None:
    limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60))
    limit("exports", CallLimit(5, 60), ResourceLimit("slots", 2))
    acquisition = try_acquire_all(
        [Share("api", "ann", {"tpm": 30}), Share("exports", "ann", {"call_count": 2}), Share("api", "bob", {"tpm": 1})]
    )
    assert acquisition
    assert set(acquisition.acquisitions) == {
        "api:call_count",
        "api:tpm",
        "exports:call_count",
        "exports:slots",
        "api:2:call_count",
        "api:2:tpm",
    }
    assert left("api") == {"call_count": 9, "tpm": 70}
    assert left("exports") == {"call_count": 3, "slots": 1}
    assert left("api", "bob") == {"call_count": 9, "tpm": 99}
    acquisition.update({"api:tpm": 10})
    acquisition.release()
    assert (left("api")["tpm"], left("exports")["slots"]) == (90, 2)


def test_a_refusal_charges_nothing_and_is_reported(heard: Callable[..., list[object]]) -> None:
    limit("api", CallLimit(10, 60, SLIDING))
    limit("exports", CallLimit(1, 60, SLIDING))
    shares = [Share("api", "ann"), Share("exports", "ann")]
    sent = heard(signals.limit_exceeded)
    assert try_acquire_all(shares)
    refused = try_acquire_all(shares)
    assert not refused
    assert [(status.resource, status.entity) for status in refused.outcome.violations] == [("exports", "ann")]
    assert sent == [refused.outcome]
    assert left("api") == {"call_count": 9}


def test_a_limit_that_two_shares_have_in_common_is_charged_as_the_first_one_requests_it() -> None:
    services.set_resource_limits("api", [RateLimit("tpm", 100, 60)], shared=["tpm"])
    with try_acquire_all([Share("api", "ann", {"tpm": 30}), Share("api", "bob", {"tpm": 50})]) as acquisition:
        assert set(acquisition.acquisitions) == {"api:tpm"}
        acquisition.update({"api:tpm": 20})
    assert left("api") == left("api", "bob") == {"tpm": 80}


def test_amounts_may_depend_on_the_effective_limits() -> None:
    limit("api", RateLimit("rpm", 10, 60))
    limit("exports", RateLimit("rpm", 10, 60))
    shares = [Share(name, None, lambda found: dict.fromkeys(found.rates, 4)) for name in ("api", "exports")]
    assert try_acquire_all(shares)
    assert (left("api", None), left("exports", None)) == ({"rpm": 6}, {"rpm": 6})


def test_limits_of_the_call_hold_where_nothing_is_set() -> None:
    shares = [Share("api", "ann", None, (CallLimit(1, 60),)), Share("exports", "ann")]
    assert [bool(try_acquire_all(shares)) for _ in range(2)] == [True, False]


def test_shares_of_different_configurations_are_resolved_again() -> None:
    limit("api", CallLimit(9, 60))
    limit("exports", CallLimit(9, 60))
    resolver.get(("api", "ann", (), None))
    limit("exports", CallLimit(1, 60))
    resolver.get(("exports", "ann", (), None))
    shares = [Share("api", "ann"), Share("exports", "ann")]
    assert [bool(try_acquire_all(shares)) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("policies", "admitted"),
    [
        pytest.param(("allow", "allow"), 3, id="all_allow"),
        pytest.param(("allow", "local"), 1, id="the_stricter_counts"),
        pytest.param(("local", "allow"), 1, id="in_any_order"),
        pytest.param(("", "allow"), 0, id="the_site_says_block"),
        pytest.param(("block", "local"), 0, id="the_strictest_counts"),
    ],
)
def test_the_strictest_outage_policy(policies: tuple[str, str], admitted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, policy in zip(("api", "exports"), policies, strict=True):
        limit(name, CallLimit(1, 60), on_unavailable=policy)
    fail_at(monkeypatch, *VERBS)
    seen = []
    for _ in range(3):
        try:
            seen.append(bool(try_acquire_all([Share("api", "ann"), Share("exports", "ann")])))
        except StoreUnavailable:
            seen.append(False)
    assert sum(seen) == admitted


def test_limits_in_shadow_mode_reject_no_request() -> None:
    limit("api", CallLimit(9, 60))
    limit("exports", CallLimit(1, 60))
    Policy.objects.filter(resource__name="exports").update(enforcement="shadow")
    shares = [Share("api", "ann"), Share("exports", "ann")]
    outcomes = [try_acquire_all(shares).outcome for _ in range(2)]
    assert [(outcome.allowed, len(outcome.shadowed)) for outcome in outcomes] == [(True, 0), (True, 1)]


def test_many_threads_never_exceed_the_limit(settings: Settings) -> None:
    limit("api", CallLimit(100, 3600, SLIDING))
    limit("exports", CallLimit(60, 3600))
    try_acquire_all([Share("api", "bob"), Share("exports", "bob")])

    def one(number: int) -> bool:
        shares = [Share("api", "ann"), Share("exports", "ann")]
        return bool(try_acquire_all(shares if number % 2 else shares[::-1]))

    with ThreadPoolExecutor(16) as pool:
        assert Counter(pool.map(one, range(1_000))) == {True: 60, False: 940}
    assert (left("api"), left("exports")) == ({"call_count": 40}, {"call_count": 0})


def test_resources_that_several_pools_serve_are_an_error() -> None:
    for name in ("texts", "images"):
        serve(name, make_pool({"a": [CallLimit(9, 3600)]}, name=f"{name}/pool"))
    with pytest.raises(InvalidRequest, match="its resources have several: texts/pool, images/pool"):
        services.try_acquire({"texts": None, "images": None})
    assert services.try_acquire("texts")


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([], "at least one Share"),
        (
            [Share("api", "ann"), Share("api", "bob"), Share("api", "ann", {"call_count": 2})],
            r"duplicate Share for \('api', 'ann'\); combine the amounts into one",
        ),
        (
            [Share("api", "ann"), Share("llm", "ann")],
            "nothing is requested of tpm of llm: rates and quotas need",
        ),
    ],
    ids=["none", "twice", "no_amount_of_a_rate"],
)
@pytest.mark.usefixtures("both")
def test_invalid_shares_charge_nothing(shares: list[Share], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        try_acquire_all(shares)
    assert left("api") == {"call_count": 5}


BOTH: Any = {"api": None, "llm": {"tpm": 40}}


@pytest.fixture
def both() -> None:
    limit("api", CallLimit(5, 60))
    limit("llm", RateLimit("tpm", 100, 100))


@pytest.mark.usefixtures("both")
def test_a_mapping_is_charged_or_nothing_of_it() -> None:
    for _ in range(2):
        with services.acquire(BOTH, entity="ann") as acquisition:
            acquisition.update({"llm:tpm": 40})
    with pytest.raises(LimitExceeded):
        services.acquire(BOTH, entity="ann")
    assert not services.try_acquire(BOTH, entity="ann")
    assert left("api") | left("llm") == {"call_count": 3, "tpm": 20}


@pytest.mark.usefixtures("both")
def test_asyncio_uses_kept_limits() -> None:
    services.try_acquire(BOTH, entity="ann")
    assert asyncio.run(services.atry_acquire(BOTH, entity="ann"))
    limit("llm", RateLimit("tpm", 1, 100))
    assert asyncio.run(services.atry_acquire({"api": None}, entity="ann"))
    assert not asyncio.run(services.atry_acquire_all([Share("llm", "ann", {"tpm": 1})]))


@pytest.mark.usefixtures("both")
def test_a_task_waits_for_several_until_the_time_is_up(clock: FakeClock) -> None:
    services.try_acquire("llm", entity="ann", requested={"tpm": 100}).release()

    async def course() -> None:
        assert not await services.atry_acquire(BOTH, entity="ann")
        waiting = [asyncio.ensure_future(services.aacquire(BOTH, entity="ann", timeout=seconds)) for seconds in (5, 60)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert registry.store().line.busy
        clock.advance(5)
        with pytest.raises(LimitTimeout):
            await waiting[0]
        clock.advance(35)
        assert (await waiting[1]).successful

    asyncio.run(course())
    assert left("api") | left("llm") == {"call_count": 4, "tpm": 0}


@pytest.mark.parametrize(
    ("resources", "requested"),
    [
        pytest.param({}, None, id="no_resource"),
        pytest.param(BOTH, {"tpm": 1}, id="amounts_twice"),
        pytest.param({"api": 1}, None, id="an_amount_of_nothing_in_particular"),
        pytest.param({"a b": None}, None, id="a_name_that_cannot_be"),
        pytest.param(["api", "llm"], None, id="neither_a_name_nor_a_mapping"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(resources: Any, requested: Any) -> None:
    with pytest.raises((InvalidRequest, InvalidLimit)):
        services.acquire(resources, entity="ann", requested=requested)

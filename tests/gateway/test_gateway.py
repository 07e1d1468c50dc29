"""The gateway to a language model: real calls to a local server that streams."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from limits_app import LimitExceeded, RateLimit, limits
from limits_app.testing import fresh_limits
from project.gateway import figures, scene
from project.gateway.gateway import POOL, RESOURCE, Gateway, set_budget, set_price, set_regions
from project.gateway.provider import provider
from project.gateway.tokens import estimated_tokens


@pytest.fixture(autouse=True)
def site(transactional_db: None) -> Iterator[None]:
    with fresh_limits():
        yield


def test_the_estimate_is_the_prompt_and_the_longest_answer() -> None:
    assert estimated_tokens("four letters a token", 100) == 5 + 100


def test_every_figure_of_the_demo_is_known_beforehand() -> None:
    found = scene.play()
    limited = {**figures.BUDGETS, **figures.TENANTS}
    assert found["answered"] == {client: expected for client, (_, expected) in limited.items()}
    assert found["used"] == {region: expected for region, (_, expected) in figures.REGIONS.items()}
    spent = {client: Decimal(amount) for client, amount in found["spent"].items()}
    assert {client: spent.get(client) for client in figures.SPEND} == figures.SPEND
    assert found["charged"] == {"team:red": "0.08"}


def test_a_call_within_the_budget_of_its_key_is_rejected_by_that_of_its_team() -> None:
    set_price(Decimal("2.5"))
    set_budget("team:blue", "0.10", {"key:blue": "5"})
    set_regions({"east": 1000})
    with provider() as address:
        gateway = Gateway({"east": address})
        gateway.ask("key:blue", figures.PROMPT, 20)
        with pytest.raises(LimitExceeded, match="team:blue"):
            gateway.ask("key:blue", figures.PROMPT, 20)
    for entity in ("key:blue", "team:blue"):
        assert limits.status(RESOURCE, entity=entity).limits["usd"]["used"] == 0.05


def test_answer_costs_its_usage_and_rejection_costs_nothing() -> None:
    limits.set_entity_limits("tenant:one", [RateLimit.per_hour("tokens", 1000)], resource=RESOURCE)
    set_regions({"east": 40})
    with provider() as address:
        gateway = Gateway({"east": address})
        answer = gateway.ask("tenant:one", figures.PROMPT, 5)
        assert (answer.text, answer.region, answer.estimated, answer.used) == ("one two ten six our", "east", 15, 15)
        with pytest.raises(LimitExceeded):
            gateway.ask("tenant:one", figures.PROMPT, 30)
    left = [status.remaining for status in limits.check(RESOURCE, entity="tenant:one", requested={"tokens": 0}).passed]
    assert int(left[0]) == 985


def test_a_failing_region_is_refunded_and_skipped() -> None:
    limits.set_entity_limits("tenant:two", [RateLimit.per_hour("tokens", 100)], resource=RESOURCE)
    set_regions({"east": 100, "west": 100})
    nowhere = dict.fromkeys(["east", "west"], "http://127.0.0.1:1/")
    with pytest.raises(OSError, match="refused"):
        Gateway(nowhere).ask("tenant:two", figures.PROMPT, 20)
    pool = limits.pool(POOL)
    assert [region.get_stats()["tokens"]["available"] for region in pool] == [100, 100]
    (aside,) = (place for place in range(2) if pool.cooling_seconds(place))
    other = str(pool[1 - aside].config["member"])
    with provider() as address:
        assert Gateway(dict.fromkeys(nowhere, address)).ask("tenant:two", figures.PROMPT, 20).region == other
    pool.cool_down(aside, 0)  # whom a process has put aside it remembers, also for the other tests
    left = limits.check(RESOURCE, entity="tenant:two", requested={"tokens": 0}).passed[0].remaining
    assert int(left) == 80


def test_regions_can_be_set_again() -> None:
    set_regions({"east": 100, "west": 100})
    set_regions({"north": 10})
    assert [one.config["member"] for one in limits.pool(POOL)] == ["north"]

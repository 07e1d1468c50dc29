"""The gateway to a language model: real calls to a local server that streams."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from limits_app import LimitExceeded, RateLimit, limits
from limits_app.resolver import resolver
from project.gateway import figures, scene
from project.gateway.gateway import RESOURCE, Gateway, regions
from project.gateway.provider import provider
from project.gateway.tokens import estimated_tokens


@pytest.fixture(autouse=True)
def site(settings: Settings, transactional_db: None) -> None:
    settings.LIMITS = {"STORE": "gateway", "STORES": {"gateway": {"KIND": "memory"}}}
    resolver.clear()


def test_the_estimate_is_the_prompt_and_the_longest_answer() -> None:
    assert estimated_tokens("four letters a token", 100) == 5 + 100


def test_every_figure_of_the_demo_is_known_beforehand() -> None:
    found = scene.play()
    assert found["answered"] == {tenant: expected for tenant, (_, expected) in figures.TENANTS.items()}
    assert found["used"] == {region: expected for region, (_, expected) in figures.REGIONS.items()}


def test_an_answer_costs_what_was_used_and_a_refusal_nothing() -> None:
    limits.set_entity_limits("tenant:one", [RateLimit.per_hour("tokens", 1000)], resource=RESOURCE)
    pool = regions({"east": 40})
    with provider() as address:
        gateway = Gateway({"east": address}, pool)
        answer = gateway.ask("one", figures.PROMPT, 5)
        assert (answer.text, answer.region, answer.estimated, answer.used) == ("one two ten six our", "east", 15, 15)
        with pytest.raises(LimitExceeded):
            gateway.ask("one", figures.PROMPT, 30)
    left = [status.remaining for status in limits.check(RESOURCE, entity="tenant:one", requested={"tokens": 0}).passed]
    assert int(left[0]) == 985


def test_a_region_that_fails_costs_nobody_anything() -> None:
    limits.set_entity_limits("tenant:two", [RateLimit.per_hour("tokens", 100)], resource=RESOURCE)
    pool = regions({"east": 100})
    with pytest.raises(OSError, match="refused"):
        Gateway({"east": "http://127.0.0.1:1/"}, pool).ask("two", figures.PROMPT, 20)
    assert pool[0].get_stats()["tokens"]["available"] == 100

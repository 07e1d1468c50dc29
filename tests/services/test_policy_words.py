"""Whom policies are about, in words: each client by itself, or all of them together."""

from __future__ import annotations

from typing import Any

import pytest

from limits_app import limits
from limits_app.models import Endpoint, Policy
from limits_app.services.policy_words import policies_in_words, policy_in_words

pytestmark = pytest.mark.django_db

SHARED = {"shared": ["tokens"]}


@pytest.mark.parametrize(
    ("scope", "options", "words"),
    [
        ({"resource": "api"}, {}, "Each client on api"),
        ({"resource": "api"}, SHARED, "All clients together on api"),
        ({"resource": "api"}, {"effect": "unlimited"}, "Everyone on api"),
        ({}, {}, "Each client, on each resource"),
        ({}, {"counted": "total"}, "Each client, over all resources together"),
        ({}, {"counted": "total", **SHARED}, "All clients together, over all resources together"),
        ({"plan": "pro"}, {}, "Each member of “pro”, on each resource"),
        ({"plan": "pro"}, {"effect": "blocked"}, "Plan “pro”, on each resource"),
        ({"entity": "user:*", "resource": "api"}, {}, "Each user on api"),
        ({"entity": "ip:*"}, {}, "Each IP address, on each resource"),
        ({"entity": "tenant:acme"}, {}, "tenant:acme (Acme), on each resource"),
    ],
)
def test_a_policy_text_distinguishes_each_client_from_all_together(scope: Any, options: Any, words: str) -> None:
    text: Any = [] if "effect" in options else "tokens=5/h"
    match scope:
        case {"plan": plan, **rest}:
            policy = limits.set_plan_limits(plan, text, **rest, **options)
        case {"entity": entity, **rest}:
            policy = limits.set_entity_limits(entity, text, **rest, **options)
        case {"resource": resource}:
            policy = limits.set_resource_limits(resource, text, **options)
        case _:
            policy = limits.set_system_limits(text, **options)
    assert policy_in_words(policy, {"tenant:acme": "Acme"}) == words


def test_a_policy_with_both_kinds_of_limits_is_described_for_all_clients() -> None:
    policy = limits.set_resource_limits("api", "tokens=5/h calls=5/h", shared=["tokens"])
    assert policy_in_words(policy, {}) == "Everyone on api"


@pytest.mark.parametrize(
    ("counted_by", "words"),
    [
        ("entity", "Each client on /reports/"),
        ("user", "Each user on /reports/"),
        ("ip", "Each IP address on /reports/"),
        ("api_key", "Each API key on /reports/"),
        ("everyone", "All clients together on /reports/"),
        ("session", "Each client on /reports/"),
    ],
)
def test_the_policy_of_a_url_rule_is_named_by_its_url(counted_by: str, words: str) -> None:
    Endpoint.objects.create(name="reports", path="/reports/", limits="5/min", counted_by=counted_by)
    assert policy_in_words(Policy.objects.get(), {}) == words


def test_many_policies_take_one_query(django_assert_num_queries: Any) -> None:
    for number in range(5):
        Endpoint.objects.create(name=str(number), path=f"/{number}/", limits="5/min")
    rows = Policy.objects.select_related("resource", "entity", "plan").prefetch_related("limits")
    policies = [*rows]
    with django_assert_num_queries(1):
        words = policies_in_words(policies, {})
    assert words == [f"Each client on /{number}/" for number in range(5)]

"""A quota of requests per calendar period counts each request, as a call limit does."""

from __future__ import annotations

import pytest

from limits_app import limits
from limits_app.engine.errors import LimitExceeded
from limits_app.engine.limits import RateLimit
from limits_app.engine.notation import parse_limit
from limits_app.services.limit_sentences import unit_key

pytestmark = pytest.mark.django_db(transaction=True)


def test_code_that_names_nothing_counts_1() -> None:
    limits.set_resource_limits("reports", "calls=2/month")
    assert [bool(limits.try_acquire("reports", entity="ann")) for _ in range(3)] == [True, True, False]
    with pytest.raises(LimitExceeded), limits.acquire("reports", entity="ann"):
        pass
    assert limits.status("reports", entity="ann").limits["calls"]["used"] == 2


def test_usage_need_not_be_reported() -> None:
    limits.set_resource_limits("reports", ["calls=2/day@Europe/Berlin"])
    with limits.acquire("reports", entity="ann"):
        pass
    assert limits.status("reports", entity="ann").limits["calls"]["used"] == 1


def test_a_number_of_requests_may_be_named() -> None:
    limits.set_resource_limits("reports", "calls=5/month")
    assert limits.try_acquire("reports", entity="ann", requested={"calls": 4})
    assert not limits.try_acquire("reports", entity="ann", requested={"calls": 2})


@pytest.mark.parametrize("path", ["resource", "entity", "plan", "system"])
def test_a_total_of_requests_counts_them_on_every_resource(path: str) -> None:
    if path == "entity":
        limits.set_entity_limits("ann", "calls=3/week", counted="total")
    elif path == "plan":
        limits.set_plan_limits("free", "calls=3/week", counted="total")
        limits.set_entity("ann", plan="free")
    elif path == "system":
        limits.set_system_limits("calls=3/week", counted="total")
    else:
        limits.set_resource_limits("a", "calls=3/week")
    names = ["a"] * 4 if path == "resource" else ["a", "b", "a", "b"]
    assert [bool(limits.try_acquire(name, entity="ann")) for name in names] == [True, True, True, False]


def test_other_quotas_have_no_default() -> None:
    limits.set_resource_limits("reports", [RateLimit.per_minute("tokens", 5), "calls=5/month"])
    assert limits.try_acquire("reports", entity="ann", requested={"tokens": 1})
    assert limits.status("reports", entity="ann").limits["calls"]["used"] == 1


def test_the_form_means_this_quota_by_requests() -> None:
    noted = parse_limit(f"{unit_key('requests')}=1000/day@UTC")
    limits.set_resource_limits("reports", [noted.limit])
    assert limits.try_acquire("reports", entity="ann")

"""Quotas that begin with the client: each client has the period of its own billing date, or of one above it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from limits_app import QuotaLimit, limits
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Candidate, Endpoint, Entity, Limit, Policy, Pool, PoolMember, Resource
from limits_app.policies import ResolvedSet, resolver

pytestmark = pytest.mark.django_db

TOKENS = QuotaLimit.per_month("tokens", 10, starts="client")
ANN, BOB, EVE, TENANT = "user:ann", "user:bob", "user:eve", "tenant:acme"
FIFTEENTH = datetime(2025, 3, 15, 6, tzinfo=UTC)


def resolved(entity: str | None, resource: str = "api") -> ResolvedSet:
    return resolver.latest((resource, entity, (), None))


def starts(entity: str | None) -> list[str]:
    """When the periods of the quotas of a client begin, those above it included."""
    scoped = resolved(entity).limit_set.scoped
    return [limit.starts for scope in scoped for limit in scope.schema.limits if isinstance(limit, QuotaLimit)]


def test_quota_begins_with_the_billing_date_of_the_client() -> None:
    limits.set_resource_limits("api", [TOKENS])
    limits.set_entity(ANN, billing_from=FIFTEENTH)
    assert starts(ANN) == ["15+6h"]
    assert starts(BOB) == starts(None) == [""]


def test_billing_date_is_that_of_the_nearest_above() -> None:
    limits.set_resource_limits("api", [TOKENS])
    limits.set_entity(TENANT, billing_from=FIFTEENTH)
    limits.set_entity("team:a", parent=TENANT)
    limits.set_entity(ANN, parent="team:a")
    assert starts(ANN) == ["15+6h"]
    limits.set_entity("team:a", billing_from=datetime(2025, 3, 1, tzinfo=UTC))
    assert starts(ANN) == [""]
    limits.set_entity(ANN, billing_from=datetime(2025, 3, 31, tzinfo=UTC))
    assert starts(ANN) == ["31"]
    limits.set_entity(ANN, billing_from=None)
    limits.set_entity("team:a", billing_from=None)
    assert starts(ANN) == ["15+6h"]


def test_each_charged_entity_has_its_own_period() -> None:
    limits.set_resource_limits("api", [TOKENS])
    limits.set_entity(TENANT, billing_from=FIFTEENTH)
    limits.set_entity(ANN, parent=TENANT, cascade=True, billing_from=datetime(2025, 3, 2, tzinfo=UTC))
    assert starts(ANN) == ["2", "15+6h"]


def test_day_and_time_are_those_of_the_time_zone_of_the_quota() -> None:
    limits.set_resource_limits("api", ["tokens=10/month@Europe/Berlin:from=client"])
    limits.set_entity(ANN, billing_from=datetime(2025, 7, 14, 22, 30, 59, tzinfo=UTC))
    assert starts(ANN) == ["15+30min"]


def test_clients_with_the_same_day_and_time_share_compiled_limits() -> None:
    limits.set_resource_limits("api", [TOKENS])
    for name, date in ((ANN, FIFTEENTH), (BOB, datetime(2026, 1, 15, 6, tzinfo=UTC)), (EVE, None)):
        limits.set_entity(name, name=name, billing_from=date)
    first = resolved(ANN)
    with CaptureQueriesContext(connection) as queries:
        second = resolved(BOB)
    assert len(queries) == 1
    assert (second.template or second) is (first.template or first)
    assert starts(EVE) == [""]


def test_billing_dates_do_not_matter_without_such_a_quota() -> None:
    limits.set_resource_limits("api", [QuotaLimit.per_month("tokens", 10, starts="15")])
    limits.set_entity(ANN, billing_from=FIFTEENTH)
    limits.set_entity(BOB, billing_from=datetime(2025, 8, 9, tzinfo=UTC))
    first, second = resolved(ANN), resolved(BOB)
    assert (second.template or second) is (first.template or first)


def test_candidates_and_limits_in_code_begin_with_the_client_too() -> None:
    limits.set_resource_limits("api", ["calls=5/min"])
    Candidate.objects.create(policy=Policy.objects.get(), limits="tokens=5/month:from=client", percent=100)
    limits.set_entity(ANN, billing_from=FIFTEENTH)
    limits.set_entity(BOB, billing_from=datetime(2025, 8, 9, tzinfo=UTC))
    for name, start in ((ANN, "15+6h"), (BOB, "9")):
        shadow = resolved(name).shadow
        assert shadow is not None
        assert [limit.starts for limit in shadow if isinstance(limit, QuotaLimit)] == [start]
        of_code = resolver.latest(("mail", name, (TOKENS,), None)).limit_set
        assert [limit.starts for limit in of_code if isinstance(limit, QuotaLimit)] == [start]


def test_changed_billing_date_keeps_use_until_the_next_one() -> None:
    limits.set_resource_limits("api", [TOKENS])
    with limits.acquire("api", requested={"tokens": 7}, entity=ANN) as acquisition:
        acquisition.update({"tokens": 7})
    limits.set_entity(ANN, billing_from=FIFTEENTH)
    stats = limits.status("api", entity=ANN).limits["tokens"]
    assert (stats["used"], stats["starts"]) == (7, "15+6h")


def test_explanation_and_words_name_the_start() -> None:
    limits.set_resource_limits("api", [TOKENS])
    limits.set_entity(ANN, billing_from=FIFTEENTH)
    assert "tokens: it counts per month from day 15, 06:00, UTC." in limits.explain("api", entity=ANN).text()


def test_limits_that_clients_share_cannot_begin_with_one() -> None:
    with pytest.raises(ValueError, match="cannot be client for a limit that is shared"):
        limits.set_resource_limits("api", ["tokens=10/month:from=client:shared"])
    policy = limits.set_resource_limits("api", [TOKENS])
    row = Limit.objects.get()
    row.shared = True
    with pytest.raises(ValidationError, match="cannot be client"):
        row.full_clean()
    with pytest.raises(IntegrityError, match="cannot be client"):
        Limit.objects.create(policy=policy, key="other", text="5/month:from=client", shared=True)
    member = PoolMember.objects.create(pool=Pool.objects.create(name="pool"), name="one")
    with pytest.raises(ValidationError, match="cannot be client"):
        Limit(member=member, key="tokens", text="5/month:from=client").full_clean()
    with pytest.raises(ValidationError, match="cannot be client"):
        Endpoint(name="all", path="/", counted_by="everyone", limits="tokens=5/month:from=client").full_clean()
    assert not Resource.objects.filter(name="rule-all").exists()


def test_pattern_of_clients_has_the_billing_date_of_each() -> None:
    limits.set_entity_limits("user:*", [TOKENS], resource="api")
    limits.set_entity(ANN, billing_from=FIFTEENTH)
    assert Entity.objects.get(identifier=ANN).billing_from == FIFTEENTH
    assert (starts(ANN), starts(BOB)) == (["15+6h"], [""])


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("year", [1, 9999])
def test_first_and_last_year_are_refused_and_stop_no_request(year: int, zone: str) -> None:
    limits.set_resource_limits("api", [QuotaLimit.per_month("tokens", 10, zone, starts="client")])
    ends = datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, 0 if year == 1 else 23, tzinfo=UTC)
    with pytest.raises(ValidationError, match="The year of a billing date must be from 2 to 9998"):
        Entity(identifier=BOB, billing_from=ends).full_clean()
    with pytest.raises(InvalidLimit, match="from 2 to 9998"):
        limits.set_entity(BOB, billing_from=ends)
    limits.set_entity(ANN)
    with connection.cursor() as cursor:  # past the validation of the model
        cursor.execute("UPDATE limits_app_entity SET billing_from = %s WHERE identifier = %s", [ends, ANN])
    resolver.clear()
    assert len(starts(ANN)) == 1
    assert limits.try_acquire("api", requested={"tokens": 1}, entity=ANN)

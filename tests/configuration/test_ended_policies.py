"""A policy ends at one time, for the filter of rows as for those in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from limits_app.models import Entity, Policy, Resource
from limits_app.models.policy_rules import has_ended, not_ended
from limits_app.policies import Subject
from limits_app.policies.query import policies_for

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("until", "ended"),
    [
        pytest.param(None, False, id="no end"),
        pytest.param(NOW - timedelta(microseconds=1), True, id="just before"),
        pytest.param(NOW, True, id="now"),
        pytest.param(NOW + timedelta(microseconds=1), False, id="just after"),
    ],
)
def test_a_policy_ends_at_its_last_time_exactly(until: datetime | None, ended: bool) -> None:
    resource = Resource.objects.create(name="api")
    begins = None if until is None else NOW - timedelta(days=1)
    client = Entity.objects.create(identifier="user:7")
    Policy.objects.create(entity=client, resource=resource, valid_from=begins, valid_until=until, effect="blocked")
    assert has_ended(until, NOW) is ended
    assert Policy.objects.filter(not_ended(NOW)).exists() is not ended
    assert Resource.objects.filter(not_ended(NOW, "policies__"), policies__isnull=False).exists() is not ended
    chain = policies_for(Subject("api", "user:7", None), "default", NOW)
    assert any(link.policies for link in chain.links) is not ended

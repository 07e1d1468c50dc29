"""Patterns: which identifiers they match, wherever they may be written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from limits_app import limits
from limits_app.alerts.recording import AlertEvent
from limits_app.engine.errors import InvalidLimit
from limits_app.integrations.identity import entity_of_user
from limits_app.models import AlertKind, AlertRule, BucketKind, Denial, Endpoint, Plan, PlanGroup
from limits_app.models.patterns import Patterns, begins, patterns_of
from limits_app.usage.reading import denied

_PARTS = st.sampled_from(["key", "user", "ip", "eu", "10.1.2.3", "10.0.0.0", "2001:db8::", "a"])
_IDENTIFIERS = st.one_of(
    st.builds(lambda parts, separators: "".join(a + b for a, b in zip(parts, separators, strict=False)) + parts[-1],
              st.lists(_PARTS, min_size=1, max_size=4), st.lists(st.sampled_from(":/.-_@"), min_size=4, max_size=4)),
    st.ip_addresses(v=4).map(lambda one: f"ip:{one}"),
    st.ip_addresses(v=6).map(lambda one: f"ip:{one}"),
)  # fmt: skip


@given(_IDENTIFIERS, st.data())
def test_set_of_patterns_matches_as_policies_do(identifier: str, data: st.DataObject) -> None:
    every = patterns_of(identifier)
    some = set(data.draw(st.lists(st.sampled_from(every), max_size=5))) if every else set()
    others = {"key:other*"[:-1], "tenant:*", "ip:192.0.2.0/24", "ip:2001:db8:ffff::/48"} - set(every) - {identifier}
    assert set(Patterns(some | others).matching(identifier)) == some


@pytest.mark.parametrize(
    ("lines", "identifier", "matches"),
    [
        (["key:*"], "key:k1", True),
        (["key:*"], "keys:k1", False),
        (["user:eu-*", "user:7"], "user:eu-9", True),
        (["user:eu-*", "user:7"], "user:7", True),
        (["ip:10.0.0.0/8"], "ip:10.200.3.4", True),
        (["ip:10.0.0.0/8"], "ip:11.0.0.1", False),
        (["ip:2001:db8::/32"], "ip:2001:db8:1:2::/64", True),
        (["ip:10.0.0.0/8"], "ip:unknown", False),
        ([], "user:7", False),
    ],
)
def test_identifiers_that_patterns_match(lines: list[str], identifier: str, matches: bool) -> None:
    assert (identifier in Patterns(lines)) is matches


@pytest.mark.django_db
def test_entities_that_are_exempt_from_a_rule_are_checked_as_patterns() -> None:
    rule = Endpoint(name="r", path="/", limits="1/min", exempt_entities="key:*\nip:10.0.0.0/8\nuser:7")
    rule.full_clean()
    for wrong in ("key*", "ip:10.0.0.1/8"):
        rule.exempt_entities = wrong
        with pytest.raises(ValidationError):
            rule.full_clean()


@pytest.mark.parametrize(("entity", "is_for"), [("", True), ("user:*", True), ("user:7", True), ("key:*", False)])
def test_alert_rules_match_patterns(entity: str, is_for: bool) -> None:
    event = AlertEvent(AlertKind.THRESHOLD, "tpm", "", 0, "", entity="user:7", percent=90)
    assert event.is_for(AlertRule(kind=AlertKind.THRESHOLD, entity=entity, percent=80)) is is_for


@pytest.fixture
def rejected(db: None) -> Iterator[datetime]:
    """Rejections of several clients in one minute."""
    minute = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for name in (
        "key:a",
        "key:b",
        "KEY:c",
        "user:7",
        "ip:10.1.2.3",
        "ip:11.1.2.3",
        "ip:10.0.0.0/8",
        "ip:2001:db8::/64",
    ):
        times: dict[str, Any] = {"minute": minute, "first": minute, "last": minute, "count": 1}
        Denial.objects.create(resource="api", bucket=BucketKind.ENTITY, entity=name, key="call_count", **times)
    return minute


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        ("key:*", {"key:a", "key:b"}),
        ("ip:10.0.0.0/8", {"ip:10.1.2.3", "ip:10.0.0.0/8"}),
        ("ip:2001:db8::/32", {"ip:2001:db8::/64"}),
        ("ip:2001:db8::/64", {"ip:2001:db8::/64"}),
        ("user:7", {"user:7"}),
        ("tenant:*", set()),
    ],
)
def test_filters_match_patterns(entity: str, found: set[str], rejected: datetime) -> None:
    rows = denied(None, entity, None, since=rejected, until=None)
    assert {row.entity for row in rows} == found


@pytest.mark.django_db
@pytest.mark.parametrize("change", [
    lambda: limits.reset("api", entity="key:*"),
    lambda: limits.top_up("api", key="call_count", amount=1, entity="ip:10.0.0.0/8"),
])  # fmt: skip
def test_a_pattern_has_no_counters(change: Any) -> None:
    limits.set_resource_limits("api", "5/min")
    with pytest.raises(InvalidLimit, match="is a pattern: name one entity"):
        change()


@pytest.mark.django_db
def test_users_of_two_models_have_identifiers_of_their_own() -> None:
    class Seller:
        class _meta:  # noqa: N801 - as Django names it
            label_lower = "shop.seller"

        pk, is_authenticated = 1, True

    class Key(Seller):
        class _meta:  # noqa: N801 - as Django names it
            label_lower = "shop.key"

    class OfToken:
        pk, is_authenticated = 1, True

    class Deputy(User):
        class Meta:
            app_label, proxy = "auth", True

    own: list[Any] = [User(pk=1), Deputy(pk=1), OfToken()]
    assert {entity_of_user(user) for user in own} == {"user:1"}
    assert [entity_of_user(user) for user in (Seller(), Key())] == ["seller:1", "shop.key:1"]
    assert limits.check("api", entity=Seller()).allowed  # type: ignore[arg-type]  # like a user of another table


def test_another_model_of_users_has_other_identifiers(settings: Any) -> None:
    user: Any = User(pk=1)
    group: Any = Group(pk=1)
    group.is_authenticated = True
    assert [entity_of_user(user), entity_of_user(group)] == ["user:1", "group:1"]
    settings.AUTH_USER_MODEL = "auth.Group"
    assert [entity_of_user(user), entity_of_user(group)] == ["auth.user:1", "user:1"]


@pytest.mark.django_db
def test_the_groups_of_the_user_with_the_same_number_are_not_those_of_another_model() -> None:
    user = User.objects.create_user("ann")
    user.groups.add(group := Group.objects.create(name="pro"))
    limits.set_resource_limits("api", "1/min")
    limits.set_plan_limits("pro", "5/min")
    PlanGroup.objects.create(plan=Plan.objects.get(name="pro"), group=group)
    left = {name: limits.check("api", entity=f"{name}:{user.pk}").passed[0].capacity for name in ("user", "seller")}
    assert left == {"user": 5, "seller": 1}


def test_beginnings_are_asked_for_as_each_database_looks_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begins("name", "a", "default").children == [("name__gte", "a"), ("name__lt", "a\U0010ffff")]
    monkeypatch.setattr(connection, "vendor", "postgresql")
    assert begins("name", "a", "default").children == [("name__startswith", "a")]

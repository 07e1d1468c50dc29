"""Definitions from plain data: the same rules and messages for every model, and what is wrong by its path."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from limits_app import CallLimit, RateLimit
from limits_app.engine.notation import Noted
from limits_app.models import Configuration, Endpoint, Entity, Limit, Policy, Pool, Resource
from limits_app.services import definitions
from limits_app.services.definitions import InvalidDefinition, find_or_new, read, read_limits, save
from limits_app.services.limit_fields import split

pytestmark = pytest.mark.django_db

CALLS = {"kind": "call", "capacity": 5, "window_seconds": 60}


def saved(model: type[Configuration], data: dict[str, Any], **options: Any) -> Any:
    found = read(model(), data, **options)
    save(found)
    return model._default_manager.get(pk=found.row.pk)


def errors(row: Configuration, data: object, **options: Any) -> dict[str, str]:
    with pytest.raises(InvalidDefinition) as caught:
        read(row, data, **options)
    return {definitions.path_text(path): " ".join(found) for path, found in caught.value.errors.items()}


def test_a_policy_takes_limits_as_text_as_fields_and_as_values() -> None:
    Resource.objects.create(name="api")
    limits = ["tpm=1M/day@UTC", CALLS, RateLimit("rps", 10, 1), Noted(RateLimit("x", 1, 2.5), shared=True)]
    policy = saved(Policy, {"resource": "api", "limits": limits, "valid_from": "2026-01-02T03:04:05+01:00"})
    assert policy.valid_from == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert [(one.key, one.shared) for one in policy.limits.all()] == [
        ("call_count", False),
        ("rps", False),
        ("tpm", False),
        ("x", True),
    ]
    assert policy.limits.get(key="call_count").definition() == CallLimit(5, 60)


def test_new_rows_that_a_definition_names_are_saved_with_it() -> None:
    policy = saved(Policy, {"resource": "api", "entity": "user:1", "limits": ["x=1/s"]}, find=find_or_new)
    assert (policy.resource.name, policy.entity.identifier) == ("api", "user:1")
    assert errors(Policy(), {"entity": "", "resource": "a b", "limits": ["x=1/s"]}, find=find_or_new).keys() == {
        "resource.name"
    }


def test_partial_definition_keeps_the_other_fields() -> None:
    policy = saved(Policy, {"limits": ["x=1/s"], "reason": "why", "rollout_percent": 5})
    save(read(policy, {"rollout_percent": 7}, partial=True))
    policy.refresh_from_db()
    assert (policy.reason, policy.rollout_percent, policy.limits.get().key) == ("why", 7, "x")
    save(read(policy, {"limits": ["y=1/s"]}))
    policy.refresh_from_db()
    assert (policy.reason, policy.rollout_percent, policy.limits.get().key) == ("", 100, "y")
    assert "limits[0]" in errors(policy, {"effect": "blocked"}, partial=True)


@pytest.mark.parametrize(
    ("capacity", "window", "read_as"),
    [
        ("1M", "1 min", (1_000_000, 60)),
        ("1,000,000", "2h", (1_000_000, 7200)),
        ("2.5", "90", (Decimal("2.5"), 90)),
    ],
)
def test_numbers_of_limits_can_be_text(capacity: str, window: str, read_as: tuple[object, object]) -> None:
    fields = {"key": "tpm", "kind": "rate", "capacity": capacity, "window_seconds": window}
    (limit,) = read_limits([fields])
    assert (split(limit)["capacity"], split(limit)["window_seconds"]) == read_as


def test_members_keep_their_rows_by_name() -> None:
    pool = saved(Pool, {"name": "p", "members": [{"name": "a", "limits": ["x=1/s"]}, {"name": "b", "weight": 3}]})
    first = pool.members.get(name="a")
    save(read(pool, {"failover": False}, partial=True))
    assert pool.members.count() == 2
    save(read(pool, {"name": "p", "members": [{"name": "a"}, {"name": "c", "config": {"since": date(2026, 1, 2)}}]}))
    assert [one.name for one in pool.members.all()] == ["a", "c"]
    assert pool.members.get(name="a").pk == first.pk
    assert pool.members.get(name="c").config == {"since": "2026-01-02"}
    assert not Limit.objects.exists()


def test_rows_of_every_other_kind() -> None:
    saved(Entity, {"identifier": "t", "metadata": {"a": [date(2026, 1, 2)]}})
    assert saved(Entity, {"identifier": "u", "parent": "t", "cascade": True}).parent.metadata == {"a": ["2026-01-02"]}
    resource = saved(Resource, {"name": "api", "pool": None})
    endpoint = saved(Endpoint, {"name": "E", "path": "/a/", "methods": "post, get", "resource": "api"})
    assert (endpoint.methods, endpoint.resource) == ("GET,POST", resource)


@pytest.mark.parametrize(
    ("model", "data", "wrong"),
    [
        (Policy, [], {"": "Must be an object with fields such as “resource”, not []."}),
        (Endpoint, {"name": "e", "path": "/", "resource": "api", "": []}, {"": "Unknown field"}),
        (Policy, {"limits": "x"}, {"limits": "Write a list, not 'x'."}),
        (Policy, {"limits": ["x=1/s"] * 101}, {"limits": "There can be at most 100, not 101."}),
        (
            Policy,
            {"limits": ["x=1/s", "x=2/s"]},
            {"limits[1]": "Another limit has the key “x”: keys must differ."},
        ),
        (
            Policy,
            {"limits": [5]},
            {"limits[0]": "5 is not a limit: write a text such as 'rpm=1000/min', or its fields"},
        ),
        (Policy, {"limts": [], 5: 1, "effect": "unlimited"}, {"limts": "did you mean “limits”?", "5": "choose one of"}),
        (Policy, {"effect": "block"}, {"effect": "'block' is not a valid choice: did you mean “blocked”?"}),
        (Policy, {"effect": 5, "extends": 1}, {"effect": "Write a text", "extends": "Write true or false, not 1."}),
        (Policy, {"effect": "blocked", "resource": 4}, {"resource": "Write the name of a resource, not 4."}),
        (Policy, {"effect": "blocked", "resource": "no\0"}, {"resource": "There is no resource 'no\\x00'."}),
        (Policy, {"effect": "blocked", "valid_from": "2026-02-30T00:00:00Z"}, {"valid_from": "Write a date and time"}),
        (Policy, {"effect": "blocked", "valid_from": 5}, {"valid_from": "Write a date and time, such as"}),
        (
            Policy,
            {"effect": "blocked", "valid_from": "9999-12-31T23:59:59-14:00"},
            {"valid_from": "of the years 1 to 9999 in UTC"},
        ),
        (
            Policy,
            {"limits": [CALLS | {"capacity": True, "shared": "x"}, CALLS | {"capacity": Decimal(0)}]},
            {"limits[0].capacity": "Write a number, not True.", "limits[0].shared": "Write", "limits[1].capacity": "0"},
        ),
        (
            Policy,
            {"limits": [CALLS | {"capacity": "many", "window_seconds": "soon"}]},
            {"limits[0].capacity": "amount 'many' must be", "limits[0].window_seconds": "time 'soon' must look like"},
        ),
        (
            Policy,
            {"limits": [{"key": "x", "capacity": 0.5, "algorithm": "none"}]},
            {"limits[0].algorithm": "choice", "limits[0].window_seconds": "Enter the length of the window"},
        ),
        (Entity, {"identifier": "u", "blocked": True, "unlimited": True}, {"blocked": "both unlimited and blocked"}),
        (Entity, {"identifier": "u", "metadata": [1]}, {"metadata": "Must be a JSON object"}),
        (Endpoint, {"name": "e", "path": "/"}, {"limits": "Enter either limits or a resource."}),
        (Endpoint, {"name": "e", "resource": "api"}, {"path": "Enter either a path or a view name."}),
        (
            Pool,
            {"name": "p", "members": [{"name": "a"}, {"name": "a"}, 5, {"name": "b", "weight": 0, "order": "x"}]},
            {
                "members[1]": "Another member has the name “a”: names must differ.",
                "members[2]": "Must be an object with fields such as “name”, not 5.",
                "members[3].weight": "greater than or equal to 1",
                "members[3].order": "Write a whole number, not 'x'.",
            },
        ),
        (
            Pool,
            {"name": "p", "members": [{"name": "a", "limits": ["x=1/s:shared"]}]},
            {"members[0].limits[0].shared": ""},
        ),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_errors_name_their_path(model: type[Configuration], data: Any, wrong: dict[str, str], alone: bool) -> None:
    Resource.objects.create(name="api")
    found = errors(model(), data, alone=alone)
    assert found.keys() == wrong.keys()
    for path, words in wrong.items():
        assert words in found[path]


def test_rules_about_other_rows_are_left_out_where_many_are_checked_first() -> None:
    start = timezone.now()
    Policy.objects.create(effect="blocked", valid_from=start)
    data = {"effect": "blocked", "valid_from": start}
    assert "" in errors(Policy(), data)
    assert read(Policy(), data, alone=True).row.valid_from == start
    named = read(Policy(), {**data, "resource": "new", "weekly_hours": "sat"}, find=find_or_new)
    assert (named.row.resource.pk, named.row.time_zone) == (None, "UTC")


def test_missing_row_is_rejected() -> None:
    Resource.objects.create(name="api")
    definitions.check_stored(Resource, "api", ("resource",))
    with pytest.raises(InvalidDefinition, match=r"^resource: There is no resource 'web'\.$"):
        definitions.check_stored(Resource, "web", ("resource",))


def test_limits_without_a_policy() -> None:
    assert [one.definition() for one in read_limits(["x=1/s", CALLS])] == [RateLimit("x", 1, 1), CallLimit(5, 60)]
    with pytest.raises(InvalidDefinition, match=r"^limits\[1\].capacity: "):
        read_limits(["x=1/s", {"key": "y"}])
    with pytest.raises(InvalidDefinition, match=r"^limits: Write a list"):
        read_limits({})
    assert str(InvalidDefinition({(): ["a"], ("b", 0): ["c", "d"]})) == "a; b[0]: c; b[0]: d"

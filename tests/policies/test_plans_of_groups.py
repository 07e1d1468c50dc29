"""Of the plans that the groups of a user have, the same one applies in requests, in queries and in proposals."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from limits_app.models import Plan, PlanGroup
from limits_app.models.plan import plan_order, plan_order_sql, plans_by_groups
from limits_app.policies import AccessTable, Subject
from limits_app.policies.query import policies_for
from tests.servers import shared

NOW = datetime(2026, 6, 1, tzinfo=UTC)
CASES = {
    "of two plans, that with the higher priority": ([("a", 0), ("b", 1)], "b"),
    "of equal priorities, the first name": ([("b", 1), ("a", 1)], "a"),
    "upper case comes before lower case": ([("a", 0), ("B", 0)], "B"),
    "names compare by code points": ([("é", 3), ("z", 3)], "z"),
}


@pytest.mark.django_db
@pytest.mark.parametrize(("plans", "applies"), CASES.values(), ids=CASES)
def test_one_plan_applies_wherever_it_is_read(plans: list[tuple[str, int]], applies: str) -> None:
    user = get_user_model().objects.create_user("ann")
    for name, priority in plans:
        group = Group.objects.create(name=f"group of {name}")
        PlanGroup.objects.create(group=group, plan=Plan.objects.create(name=name, priority=priority))
        user.groups.add(group)
    client = f"user:{user.pk}"
    assert policies_for(Subject("api", client, None), "default", NOW).links[0].plan == applies
    assert AccessTable.read("default").plan_of_groups(user) == applies
    assert plans_by_groups("default") == {client: applies}
    proposed = [(f"group of {name}", name, priority) for name, priority in plans]
    assert plans_by_groups("default", proposed=proposed) == {client: applies}


@pytest.mark.server
@pytest.mark.parametrize(("plans", "applies"), CASES.values(), ids=CASES)
def test_a_collation_of_the_database_changes_no_plan(plans: list[tuple[str, int]], applies: str) -> None:
    priorities = dict(plans)
    names = ", ".join(['(%s COLLATE "en-x-icu", %s)'] * len(plans))
    query = f"SELECT n.name FROM (VALUES {names}) n (name, priority) ORDER BY {plan_order_sql('postgresql', 'n')}"  # noqa: S608 - of constants
    with shared.postgres_database() as database:
        address = {"host": database["HOST"], "port": database["PORT"], "user": database["USER"]}
        with psycopg.connect(**address, dbname=database["NAME"]) as connection:
            rows = connection.execute(query.encode(), [value for plan in plans for value in plan]).fetchall()
    ordered = [name for (name,) in rows]
    assert ordered == sorted(priorities, key=lambda name: plan_order(priorities[name], name))
    assert ordered[0] == applies

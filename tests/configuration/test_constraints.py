"""What rows have met their checks with is not asked again, and everything else is."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import UniqueConstraint
from django.test.utils import CaptureQueriesContext

from limits_app.core.limits import CallLimit
from limits_app.models import Entity, Limit, Policy, Resource, constraints

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "_MET", set())


def limit_of(name: str) -> Limit:
    policy = Policy.objects.create(resource=Resource.objects.create(name=name))
    return Limit.from_definition(policy, CallLimit(10, 60))


def checks_asked(row: Limit | Entity) -> int:
    """How many questions about checks the database hears."""
    with CaptureQueriesContext(connection) as asked:
        row.validate_constraints()
    return sum("_check" in query["sql"] for query in asked.captured_queries)


def test_the_same_values_are_asked_about_once_whatever_they_belong_to() -> None:
    assert checks_asked(limit_of("one")) == 1
    assert checks_asked(limit_of("other")) == 0


@pytest.mark.parametrize(
    ("field", "value"), [("capacity", -1), ("kind", "other"), ("window_seconds", None), ("policy_id", None)]
)
def test_each_value_counts(field: str, value: object) -> None:
    limit = limit_of("api")
    limit.validate_constraints()
    setattr(limit, field, value)
    with pytest.raises(ValidationError):
        limit.validate_constraints()


def test_a_value_of_another_kind_is_another_one() -> None:
    limit = limit_of("api")
    limit.validate_constraints()
    limit.capacity = str(limit.capacity)  # type: ignore[assignment]  # as a form may leave it
    assert checks_asked(limit) == 1


def test_an_entity_that_is_its_own_parent_is_one_after_others_were_none() -> None:
    parent = Entity.objects.create(identifier="parent")
    child = Entity.objects.create(identifier="child", parent=parent)
    child.validate_constraints()
    child.parent = child
    with pytest.raises(ValidationError, match="parent"):
        child.validate_constraints()


def test_what_did_not_meet_them_is_asked_about_again() -> None:
    limit = limit_of("api")
    limit.capacity = -1
    for _ in range(2):
        with pytest.raises(ValidationError, match="capacity"):
            limit.validate_constraints()


def test_what_the_database_did_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    execute = CursorWrapper._execute  # type: ignore[attr-defined]  # the last step before the driver

    def fail(cursor: CursorWrapper, sql: str, *more: object) -> object:
        if "_check" in sql:
            raise OperationalError("cancelled")
        return execute(cursor, sql, *more)

    limit = limit_of("api")
    with monkeypatch.context() as patched:
        patched.setattr(CursorWrapper, "_execute", fail)
        limit.validate_constraints()
    assert "cancelled" in caplog.text
    assert checks_asked(limit) == 1


def test_what_a_database_that_is_gone_did_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> object:
        raise OperationalError("gone")

    limit = limit_of("api")
    with monkeypatch.context() as patched:
        patched.setattr(UniqueConstraint, "validate", lambda *_, **__: None)  # it needs an answer
        patched.setattr(BaseDatabaseWrapper, "cursor", fail)
        limit.validate_constraints()
    assert "gone" in caplog.text
    assert checks_asked(limit) == 1


def test_no_more_is_remembered_than_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "_MOST_MET", 2)
    entities = [Entity(identifier=f"user:{number}") for number in range(3)]
    assert [checks_asked(entity) for entity in entities] == [1, 1, 1]
    assert [checks_asked(entity) for entity in entities[::-1]] == [0, 1, 1]

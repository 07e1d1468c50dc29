"""Resources and entities: names, lineage, and what the database itself refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.models import ProtectedError

from limits_app.audit import acting
from limits_app.models import MAX_LEVELS, Entity, Policy, Resource
from tests.configuration.rows import complaint

pytestmark = pytest.mark.django_db

BAD_NAMES = ["", "7up", "a b", "a:b", "naïve", "a\0", "a\n", "a" * 10_240, " api"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: f"{name[:12]!a}")
def test_a_resource_with_an_odd_name_is_refused(name: str) -> None:
    said = complaint(Resource(name=name).full_clean, "name")
    assert "must be a letter followed by at most 63" in said or "cannot be blank" in said
    assert len(said) < 400


@pytest.mark.parametrize("name", ["openai/gpt-4", "A_b.9", "a" * 64])
def test_a_resource_with_a_plain_name_is_taken(name: str) -> None:
    resource = Resource(name=name)
    resource.full_clean()
    resource.save()
    assert str(Resource.objects.get()) == name


@pytest.mark.parametrize(
    ("identifier", "said"),
    [
        ("", "cannot be blank"),
        ("user\0:42", "cannot contain the character NUL: remove it"),
        ("\ud800", "half of a surrogate pair"),
        ("x" * 10_240, "text of 1 to 255 characters"),
        (None, "cannot be null"),
    ],
    ids=lambda value: f"{value!a:.12}",
)
def test_an_entity_that_no_database_could_store_is_refused(identifier: Any, said: str) -> None:
    complained = complaint(Entity(identifier=identifier).full_clean, "identifier")
    assert said in complained
    assert len(complained) < 400


@pytest.mark.parametrize(
    "identifier",
    [
        "user:42",
        "a|b:c/d\\e",
        "v1:api:-",
        "\N{ROCKET} 日本",
        " ",
        " user:42 ",
        "tab\tline\n",
        "x" * 255,
        "\N{ROCKET}" * 255,
    ],
    ids=lambda value: f"{value[:12]!a}",
)
def test_any_other_text_identifies_an_entity_exactly(identifier: str) -> None:
    entity = Entity(identifier=identifier)
    entity.full_clean()
    entity.save()
    assert Entity.objects.get(identifier=identifier).identifier == identifier


def test_identifiers_differ_by_case_and_spaces() -> None:
    Entity.objects.bulk_create([Entity(identifier=name) for name in ("user:a", "User:A", "user:a ")])
    assert Entity.objects.get(identifier="User:A").identifier == "User:A"
    assert Entity.objects.filter(identifier="USER:A").count() == 0


def test_mysql_compares_names_with_a_binary_collation(monkeypatch: pytest.MonkeyPatch) -> None:
    field = Entity._meta.get_field("identifier")
    assert field.db_parameters(connection)["collation"] is None
    monkeypatch.setattr(connection, "vendor", "mysql")
    assert field.db_parameters(connection)["collation"] == "utf8mb4_0900_bin"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"a": float("nan")}, "must be finite, not NaN or infinity"),
        ({"a": [1, float("inf")]}, "must be finite, not NaN or infinity"),
        ({"a": "\0"}, "character NUL"),
        ({"\0": 1}, "character NUL"),
        ({"a": "\udfff"}, "half of a surrogate pair"),
        (True, "Must be a JSON object"),
        ("pro", "Must be a JSON object"),
        ([1], "Must be a JSON object"),
        (json.loads("[" * 40 + "]" * 40), "more than 32 levels deep"),
    ],
)
def test_metadata_that_could_not_be_stored_or_read_is_refused(metadata: object, said: str) -> None:
    assert said in complaint(Entity(identifier="user:42", metadata=metadata).full_clean, "metadata")


@pytest.mark.parametrize("nothing", [None, "", [], {}])
def test_no_metadata_is_an_empty_object(nothing: object) -> None:
    entity = Entity(identifier="user:42", metadata=nothing)
    entity.full_clean()
    assert entity.metadata == {}


def test_an_entity_is_not_both_unlimited_and_blocked() -> None:
    said = complaint(Entity(identifier="user:42", unlimited=True, blocked=True).full_clean)
    assert said == "An entity cannot be both unlimited and blocked: choose one."


def line(length: int) -> list[Entity]:
    """Entities of which each is the parent of the next."""
    made: list[Entity] = []
    for level in range(length):
        made.append(Entity.objects.create(identifier=f"level:{level}", parent=made[-1] if made else None))
    return made


def test_a_line_of_eight_levels_is_fine_and_one_of_nine_is_not() -> None:
    entities = line(MAX_LEVELS)
    entities[-1].full_clean()
    said = complaint(Entity(identifier="ninth", parent=entities[-1]).full_clean, "parent")
    assert said == "Entities can be at most 8 levels deep: choose a parent further up."


def test_descendants_count_when_an_entity_is_moved() -> None:
    entities = line(5)
    top = Entity.objects.create(identifier="top")
    entities[0].parent = top
    entities[0].full_clean()
    for level in range(3):
        top = Entity.objects.create(identifier=f"top:{level}", parent=top)
    entities[0].parent = top
    assert "at most 8 levels" in complaint(entities[0].full_clean, "parent")


@pytest.mark.parametrize("length", [1, 2, 8])
def test_an_entity_cannot_be_its_own_ancestor(length: int) -> None:
    entities = line(length)
    entities[0].parent = entities[-1]
    said = complaint(entities[0].full_clean, "parent")
    assert said == "An entity cannot be its own ancestor: choose another parent, or none."


def test_a_cycle_made_behind_validation_does_not_hang_it() -> None:
    entities = line(2)
    models.QuerySet(Entity).filter(pk=entities[0].pk).update(parent=entities[1])
    assert "at most 8 levels" in complaint(Entity(identifier="third", parent=entities[0]).full_clean, "parent")


PAST_VALIDATION: dict[str, Callable[[list[Entity]], object]] = {
    "update": lambda made: Entity.objects.filter(pk=made[0].pk).update(parent=made[1]),
    "save": lambda made: Entity(pk=made[0].pk, identifier="level:0", parent=made[7]).save(),
    "bulk_update": lambda made: Entity.objects.bulk_update([Entity(pk=made[0].pk, parent=made[2])], ["parent"]),
    "create": lambda made: Entity.objects.create(identifier="level:8", parent=made[7]),
    "bulk_create": lambda made: Entity.objects.bulk_create([Entity(identifier="level:8", parent=made[7])]),
    "own_parent": lambda _: Entity.objects.bulk_create([Entity(pk=7777, identifier="a", parent_id=7777)]),
    "from_below": lambda made: Entity.objects.filter(pk=made[0].pk).update(
        parent=Entity.objects.create(identifier="above")
    ),
}


@pytest.mark.parametrize("write", PAST_VALIDATION.values(), ids=PAST_VALIDATION)
def test_no_way_of_writing_makes_cycles_or_a_ninth_level(write: Callable[[list[Entity]], object]) -> None:
    made = line(MAX_LEVELS)
    with pytest.raises(IntegrityError, match="its own ancestor, or more than 8 levels"), transaction.atomic():
        write(made)
    assert Entity.objects.get(pk=made[0].pk).parent is None


def test_a_unit_is_judged_by_its_end() -> None:
    made = line(MAX_LEVELS)
    with acting():
        Entity.objects.filter(pk=made[0].pk).update(parent=made[7])
        Entity.objects.filter(pk=made[4].pk).update(parent=None)
    assert Entity.objects.get(pk=made[0].pk).parent == made[7]


def test_unknown_parent_is_an_error_of_its_field() -> None:
    assert "99" in complaint(Entity(identifier="user:42", parent_id=99).full_clean, "parent")


BROKEN: list[tuple[str, tuple[Any, ...]]] = [
    ("limits_app_resource_has_name", (Resource(name=""),)),
    ("limits_app_entity_fields", (Entity(identifier=""),)),
    ("limits_app_entity_fields", (Entity(identifier="a", unlimited=True, blocked=True),)),
    ("UNIQUE", (Resource(name="a"), Resource(name="a"))),
    ("UNIQUE", (Entity(identifier="a"), Entity(identifier="a"))),
]


@pytest.mark.parametrize(("constraint", "rows"), BROKEN)
def test_database_constraints_agree_with_validation(constraint: str, rows: tuple[Any, ...]) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        type(rows[0]).objects.bulk_create(rows)


def test_subjects_of_policies_and_parents_cannot_be_deleted(api: Resource, user: Entity) -> None:
    tenant = Entity.objects.create(identifier="tenant:acme")
    Policy.objects.create(resource=api, entity=user)
    Entity.objects.create(identifier="key:1", parent=tenant)
    for row in (api, user, tenant):
        with pytest.raises(ProtectedError):
            row.delete()

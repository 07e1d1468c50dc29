"""Many rows, written as fast as the database takes them, and past the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from django.db import models, transaction

from limits_app.models import Entity, Limit, Policy, Resource

__all__ = ["fill"]

_BATCH = 5_000


def fill(*, entities: int, policies: int, resources: int = 100) -> None:
    """Make entities, and policies: one for all, one for each resource, and the rest for entities on resources."""
    with transaction.atomic():
        put(Resource, (Resource(id=key, name=f"api/{key:05}") for key in range(1, resources + 1)))
        put(
            Entity,
            (
                Entity(id=key, identifier=f"user:{key:07}", name=f"{NAMES[key % 5]} {key}")
                for key in range(1, entities + 1)
            ),
        )
        put(Policy, (Policy(id=key, **about(key, resources)) for key in range(1, policies + 1)))
        put(
            Limit,
            (Limit(id=key, policy_id=key, key="tpm", text="1000/min:gcra") for key in range(1, policies + 1)),
        )


NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald")


def about(number: int, resources: int) -> dict[str, Any]:
    """What a policy is about, by its number."""
    if number == 1:
        return {}
    if number <= resources + 1:
        return {"resource_id": number - 1}
    return {"resource_id": number % resources + 1, "entity_id": number - resources}


def put(model: type[models.Model], rows: Iterable[Any]) -> None:
    """Insert rows in batches; Django's own queryset records nothing."""
    rest: Iterator[Any] = iter(rows)
    while batch := list(islice(rest, _BATCH)):
        models.QuerySet(model).bulk_create(batch)

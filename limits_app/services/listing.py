"""Listing what is set, and for whom."""

from __future__ import annotations

from typing import Final

from limits_app.core.limits import Limit
from limits_app.models import Policy

__all__ = ["list_entities", "list_resources", "list_resources_with_entities"]


_ALWAYS: Final = {"valid_from": None, "weekly_hours": ""}
"""What is listed are policies that always hold, without boosts and hours."""


def list_resources() -> dict[str, tuple[Limit, ...]]:
    """Resources with a policy of their own, and its limits."""
    policies = Policy.objects.filter(resource__isnull=False, entity=None, **_ALWAYS).select_related("resource")
    return {str(policy.resource): policy.definitions() for policy in policies.prefetch_related("limits")}


def list_resources_with_entities() -> list[str]:
    """Resources on which some entity has a policy of its own."""
    own = Policy.objects.filter(resource__isnull=False, entity__isnull=False, **_ALWAYS)
    return sorted(set(own.values_list("resource__name", flat=True)))


def list_entities(resource: str | None = None) -> dict[str, tuple[Limit, ...]]:
    """Entities with a policy of their own on a resource (None: on all resources), and its limits."""
    policies = Policy.objects.filter(entity__isnull=False, **_ALWAYS)
    policies = policies.filter(resource=None) if resource is None else policies.filter(resource__name=resource)
    policies = policies.select_related("entity").prefetch_related("limits")
    return {str(policy.entity): policy.definitions() for policy in policies}

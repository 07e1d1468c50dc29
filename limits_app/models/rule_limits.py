"""The limits that a rule for URLs has itself: their text, and the resource and policy that are made for them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from django.db.models import ProtectedError, Q
from django.utils.text import slugify
from django.utils.translation import gettext

from limits_app.models.limit import Limit, noted_limits
from limits_app.models.policy import Policy
from limits_app.models.resource import Resource

_LONGEST_STEM: Final = 48
_OF_RESOURCE: Final[Mapping[str, Any]] = {"entity": None, "plan": None, "valid_from": None, "weekly_hours": ""}
"""The permanent policy of a resource."""


def normalize_limits(text: str) -> str:
    """Write limits with one space between two of them."""
    return " ".join(text.split())


def make_resource(name: str, wanted: str, using: str) -> Resource:
    """Return the resource for the limits of a rule: the `wanted` one, or else a new one, named after the rule."""
    resources = Resource.objects.using(using)
    if not wanted:
        stem = f"rule-{slugify(name)[:_LONGEST_STEM].strip('-') or 'url'}"
        used = Q(made_for_rule=True) | Q(endpoints__isnull=False)
        used |= Q(policies__isnull=False, policies__entity=None, policies__plan=None)
        taken = set(resources.filter(used, name__startswith=stem).values_list("name", flat=True))
        wanted = next(one for n in count(1) if (one := stem if n == 1 else f"{stem}-{n}") not in taken)
    description = gettext("Made for the URL rule “%(name)s”, which has its limits.") % {"name": name}
    defaults = {"made_for_rule": True, "description": description}
    resource, is_new = resources.get_or_create(name=wanted, defaults=defaults)
    if not (is_new or resource.made_for_rule):
        resource.made_for_rule = True
        resource.save(using=using)
    return resource


def write_limits(resource: Resource, text: str, using: str) -> None:
    """Make the limits of a resource those of a text; nothing is written where they are the same."""
    noted = {one.limit.key: one for one in noted_limits(text)}
    policies = Policy.objects.using(using)
    policy, _is_new = policies.get_or_create(resource=resource, **_OF_RESOURCE)
    stored = {one.key: one for one in Limit.objects.using(using).filter(policy=policy)}
    for key, limit in stored.items():
        if noted.get(key) == limit.noted():
            del noted[key]
        else:
            limit.delete(using=using)
    for one in noted.values():
        Limit.from_definition(policy, one.limit, shared=one.shared).save(using=using)


def remove_resource(name: str, using: str) -> None:
    """Delete the policy that was made for the limits of a rule, and its resource unless something else refers to it."""
    resource = Resource.objects.using(using).filter(name=name, made_for_rule=True).first()
    if resource is None:
        return
    Policy.objects.using(using).filter(resource=resource, **_OF_RESOURCE).delete()
    try:
        resource.delete(using=using)
    except ProtectedError:  # for instance by the policy of an entity
        resource.made_for_rule = False
        resource.save(using=using)

"""The resources and policies that are made for the limits of URL rules."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import count
from typing import Any, Final

from django.db.models import ProtectedError, Q
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext

from limits_app.engine import limit_text
from limits_app.models.audit_log import AuditEvent
from limits_app.models.limit import Limit, noted_limits
from limits_app.models.policy import Policy
from limits_app.models.policy_rules import not_ended
from limits_app.models.resource import Resource
from limits_app.models.usage import UsagePeriod, UsageSnapshot

MADE_FOR_RULE: Final = "rule-"
"""How the names of resources begin that are made for the limits of URL rules."""
LONGEST_STEM: Final = 48
OF_RESOURCE: Final[Mapping[str, Any]] = {"entity": None, "plan": None, "valid_from": None, "weekly_hours": ""}
"""The permanent policy of a resource."""


def unused_name(rule: str, ended: Container[str], using: str) -> str:
    """Return a name for the resource of a new rule, under which nothing has been counted before.

    Stores keep counts by the name of the resource, so that a rule with the name of a deleted one would continue them.
    A resource that only policies of entities or plans refer to is adopted with its counts, because they were set for
    this rule. `ended` are the names in the unit of change, which the audit log does not have yet.
    """
    stem = f"{MADE_FOR_RULE}{slugify(rule)[:LONGEST_STEM].strip('-') or 'url'}"
    resources = Resource.objects.using(using).filter(name__startswith=stem)
    used = Q(made_for_rule=True) | Q(endpoints__isnull=False)
    used |= Q(policies__isnull=False, policies__entity=None, policies__plan=None)
    in_force = not_ended(timezone.now(), "policies__")
    taken = set(resources.filter(used).values_list("name", flat=True))
    adopted = set(resources.filter(in_force, policies__isnull=False).values_list("name", flat=True)) - taken
    names = (stem if n == 1 else f"{stem}-{n}" for n in count(1))
    return next(name for name in names if name in adopted or not (name in ended or _has_existed(name, using)))


def _has_existed(name: str, using: str) -> bool:
    """Whether there is, or has been, a resource of this name, or usage of it."""
    events = AuditEvent.objects.using(using).filter(object_type="resource", object_label=name)
    # Usage may remain where the log was pruned.
    usage = UsageSnapshot.objects.using(using).filter(period__in=UsagePeriod.values, resource=name)
    return Resource.objects.using(using).filter(name=name).exists() or events.exists() or usage.exists()


def make_resource(name: str, rule: str, using: str) -> Resource:
    """Return the resource with this name for the limits of a rule, which is made where it does not exist."""
    resources = Resource.objects.using(using)
    description = gettext("Made for the URL rule “%(name)s”, which has its limits.") % {"name": rule}
    defaults = {"made_for_rule": True, "description": description}
    resource, is_new = resources.get_or_create(name=name, defaults=defaults)
    if not (is_new or resource.made_for_rule):
        resource.made_for_rule = True
        resource.save(using=using)
    return resource


def write_limits(resource: Resource, text: str, using: str) -> None:
    """Make the limits of a resource those of a text; nothing is written where they are the same."""
    noted = {noted_limit.limit.key: noted_limit for noted_limit in noted_limits(text)}
    policies = Policy.objects.using(using)
    policy, _is_new = policies.get_or_create(resource=resource, **OF_RESOURCE)
    stored = {limit.key: limit for limit in Limit.objects.using(using).filter(policy=policy)}
    for key, limit in stored.items():
        if key in noted and limit_text(noted[key].limit, shared=noted[key].shared) == limit.notation():
            del noted[key]
        else:
            limit.delete(using=using)
    for noted_limit in noted.values():
        Limit.from_definition(policy, noted_limit.limit, shared=noted_limit.shared).save(using=using)


def remove_resource(name: str, using: str) -> None:
    """Delete the policy that was made for the limits of a rule, and its resource unless something else refers to it."""
    resource = Resource.objects.using(using).filter(name=name, made_for_rule=True).first()
    if resource is None:
        return
    Policy.objects.using(using).filter(resource=resource, **OF_RESOURCE).delete()
    try:
        resource.delete(using=using)
    except ProtectedError:  # for instance by the policy of an entity
        resource.made_for_rule = False
        resource.save(using=using)

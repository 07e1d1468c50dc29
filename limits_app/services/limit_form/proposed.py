"""The policy that a limit in words would be, and which limits of other policies it would replace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from django.utils import timezone
from django.utils.translation import gettext

from limits_app.models import Counted, Endpoint, Entity, Plan, Policy, Resource, write_alias
from limits_app.policies import LostLimit, lost_by_new
from limits_app.services.limit_form.saving import entity_of, existing, policy_to_try, resource_of
from limits_app.services.limit_sentences import SimpleLimit, What, Who
from limits_app.services.limit_words import limit_in_words
from limits_app.services.policy_words import policies_in_words

_NEW_RESOURCE = "-"
"""In place of the resource that saving makes for a URL; no resource has this name."""


def proposed_policy(limit: SimpleLimit) -> Policy:
    """The policy of a limit, which is not saved; it refers to the rows that exist, and else to new ones."""
    using, row = write_alias(), existing(limit)
    if isinstance(row, Endpoint):
        name: str | None = row.limits_resource
    elif limit.is_rule:
        name = _NEW_RESOURCE
    else:
        name = resource_of(limit) or (_NEW_RESOURCE if limit.what == What.URL else None)
    identifier, plan = entity_of(limit), limit.plan if limit.who == Who.PLAN else ""
    resources = Resource.objects.using(using).filter(name=name)
    entities = Entity.objects.using(using).filter(identifier=identifier)
    plans = Plan.objects.using(using).filter(name=plan)
    return Policy(
        resource=None if name is None else resources.first() or Resource(name=name),
        entity=(entities.first() or Entity(identifier=identifier)) if identifier else None,
        plan=(plans.first() or Plan(name=plan)) if plan else None,
        counted=Counted.TOTAL if limit.what == What.EVERYTHING else Counted.EACH,
        valid_from=timezone.now() if limit.until else None,
        valid_until=limit.until,
    )


def replaced_limits(limit: SimpleLimit) -> list[LostLimit]:
    """The limits of other policies that no longer apply with a limit, without those that it keeps."""
    own = replace(limit, kept=(), extends=False)
    policy, row = proposed_policy(own), policy_to_try(own)
    policy.pk = None if row is None else row.pk
    return lost_by_new(policy, own.noted, using=write_alias())


def with_kept(limit: SimpleLimit, *, is_trial: bool = False) -> SimpleLimit:
    """A limit that keeps the limits of others that it would replace.

    Policies extend others, except rules for URLs, totals, and what applies for a time or on trial: these get copies.
    """
    if not (limit.is_rule or limit.until or is_trial or limit.what == What.EVERYTHING):
        return replace(limit, extends=True)
    may_share = entity_of(limit) == "" and limit.who != Who.PLAN
    lost = [other.noted for other in replaced_limits(limit)]
    return replace(limit, kept=tuple([noted for noted in lost if may_share or not noted.shared]))


def replaced_in_words(lost: Iterable[LostLimit]) -> str:
    """Which limits are replaced, such as “600 requests per minute (Each client, on each resource)”."""
    limits = [*lost]
    rows = [limit.policy for limit in limits if limit.policy is not None]
    words = dict(zip([row.pk for row in rows], policies_in_words(rows, {}), strict=True))
    return ", ".join(
        "{} ({})".format(
            limit_in_words(limit.noted.limit),
            gettext("set in code") if limit.policy is None else words[limit.policy.pk],
        )
        for limit in limits
    )

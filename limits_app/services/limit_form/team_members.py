"""Members of a team, and whether the limits of each client apply to it as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext

from limits_app.models import Entity, PolicyEffect, write_alias
from limits_app.models.patterns import is_pattern
from limits_app.models.validators import validate_identifier
from limits_app.services import definitions
from limits_app.services.clients import client_names, client_to_change, with_name
from limits_app.services.exempt_clients import policy_of_effect
from limits_app.services.limit_sentences import (
    SimpleLimit,
    What,
    Who,
    lifting_policies,
    members,
    own_defaults,
)

_MOST_MEMBERS: Final = 100
"""How many members can be added at once."""
_MOST_IN_SENTENCE: Final = 10
"""How many members of a team are named."""
_SEPARATORS: Final = re.compile(r"[\n\r,]+")


def members_in(text: str, team: str, *, is_sure: bool = False) -> tuple[str, ...]:
    """The identifiers in a text, one per line or separated by commas, without those that are members already.

    The name of the only client that has it stands for its identifier; see `client_to_change` for names of several.

    Raises ValidationError for one that cannot become a member: a pattern, the team itself, or a member of another.
    """
    names = [*dict.fromkeys(filter(None, map(str.strip, _SEPARATORS.split(text))))]
    if len(names) > _MOST_MEMBERS:
        raise ValidationError(gettext("Add at most %(count)s members at once.") % {"count": _MOST_MEMBERS})
    for name in names:
        validate_identifier(name)
    names = [*dict.fromkeys(client_to_change(name, is_sure=is_sure, may_be_new=True) for name in names)]
    for name in names:
        if is_pattern(name) or name == team:
            raise ValidationError(gettext("“%(name)s” cannot be a member of %(team)s.") % {"name": name, "team": team})
    rows = Entity.objects.using(write_alias()).filter(identifier__in=names, parent__isnull=False)
    parents = dict(rows.values_list("identifier", "parent__identifier"))
    for name, parent in parents.items():
        if parent != team:
            problem = gettext("“%(name)s” is a member of %(parent)s: remove it there first.")
            raise ValidationError(problem % {"name": name, "parent": parent})
    return tuple([name for name in names if name not in parents])


def add_members(team: str, names: Iterable[str], *, counts: bool) -> None:
    """Make clients members of a team, whose use counts for it or not; rows are made where there are none.

    Raises InvalidDefinition, by the field `members`, for one that cannot be below the team.
    """
    for name in names:
        row = Entity.objects.using(write_alias()).filter(identifier=name).first()
        fields: dict[str, Any] = {"parent": team, "cascade": counts}
        try:
            definition = definitions.read(
                row or Entity(identifier=name), fields, partial=True, find=definitions.find_or_new
            )
            definitions.save(definition)
        except definitions.InvalidDefinition as error:
            problems = [text for texts in error.errors.values() for text in texts]
            raise definitions.InvalidDefinition({("members",): problems}) from error


def can_lift_each(limit: SimpleLimit, *, is_change: bool) -> bool:
    """Whether saving a limit can decide that the limits of each client do not apply to a team as a whole.

    The limit is a total without an end, which members count for. A team that they count for already is left as it is,
    except by a change of its limit, and so are its own limits for each resource.
    """
    if limit.who != Who.TEAM or limit.what != What.EVERYTHING or limit.until or not limit.counts_members:
        return False
    if not (limit.new_members or members(limit.entity).exists()):
        return False
    if lifting_policies(limit.entity).exists():
        return True
    return not own_defaults(limit.entity).exists() and (is_change or not has_counted_members(limit.entity))


def has_counted_members(team: str) -> bool:
    """Whether the use of a client counts for a team."""
    return members(team).filter(cascade=True).exists()


def lift_each(limit: SimpleLimit, *, is_change: bool, reason: str) -> None:
    """Make a team unlimited for each resource, so that only its own limits apply; or end that by a change."""
    if limit.who != Who.TEAM or limit.what != What.EVERYTHING or limit.until:
        return
    policies = lifting_policies(limit.entity)
    if limit.lifts_each and not policies.exists():
        definitions.save(policy_of_effect(PolicyEffect.UNLIMITED, limit.entity, reason=reason))
    elif is_change and not limit.lifts_each:
        for policy in policies:
            policy.delete()


def member_names(team: str) -> str:
    """The members of a team with their names, as far as they are few; empty without members."""
    some = [*members(team).order_by("identifier").values_list("identifier", flat=True)[: _MOST_IN_SENTENCE + 1]]
    names = client_names(some[:_MOST_IN_SENTENCE])
    shown = [with_name(member, names) for member in some[:_MOST_IN_SENTENCE]]
    return ", ".join([*shown, "…"] if len(some) > _MOST_IN_SENTENCE else shown)

"""Clients that become members of a team: reading them from a text, and saving them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext

from limits_app.models import Entity, write_alias
from limits_app.models.patterns import is_pattern
from limits_app.models.validators import validate_identifier
from limits_app.services import definitions
from limits_app.services.clients import client_to_change

_MOST_MEMBERS: Final = 100
"""How many members can be added at once."""
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

"""Roles: groups of Django with the permissions for typical work on limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from django.contrib.auth.models import Group, Permission
from django.db import router, transaction

from limits_app.services.rights import APP, RIGHTS, Action


class Role(StrEnum):
    """A group; its name says which app it is about, because a site may have its own group “support”."""

    VIEWER = "limits viewer"
    SUPPORT = "limits support"
    ADMINISTRATOR = "limits administrator"


_OF_SUPPORT: Final = (
    Action.BOOST,
    Action.BLOCK,
    Action.RESET,
    Action.TOP_UP,
    Action.CREATE_CLIENT,  # a client has no row before it is helped for the first time
)
"""What support does beside viewing. It gets the narrowest permission for each, which comes first in the table."""


@dataclass(frozen=True, slots=True)
class ChangedRole:
    """A role, and which of its permissions its group did not have."""

    role: Role
    permissions: int
    added: tuple[str, ...]


def make_roles(*, dry_run: bool = False) -> list[ChangedRole]:
    """Create the groups, or give existing ones the permissions that they lack; they keep all others.

    Permissions exist after `manage.py migrate`. A dry run changes nothing.
    """
    using = router.db_for_write(Group)
    with transaction.atomic(using=using):
        changes = [*_made(using)]
        if dry_run:
            transaction.set_rollback(True, using=using)
    return changes


def _made(using: str) -> Iterator[ChangedRole]:
    every = {row.codename: row for row in Permission.objects.using(using).filter(content_type__app_label=APP)}
    for role in Role:
        group, _is_new = Group.objects.using(using).get_or_create(name=role.value)
        names = _permissions_of(role, every.keys())
        present = {*group.permissions.filter(content_type__app_label=APP).values_list("codename", flat=True)}
        added = sorted(names - present)
        group.permissions.add(*(every[name] for name in added))
        yield ChangedRole(role, len(names), tuple(added))


def _permissions_of(role: Role, every: Collection[str]) -> set[str]:
    """The names of the permissions of a role."""
    if role is Role.ADMINISTRATOR:
        return {*every}
    names = {name for name in every if name.startswith("view_")}
    if role is Role.SUPPORT:
        for needed in map(RIGHTS.__getitem__, _OF_SUPPORT):
            names |= {*needed.all_of, *needed.any_of[:1]}
    return names

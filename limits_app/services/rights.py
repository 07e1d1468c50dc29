"""The table of rights: which permissions each action needs, in the admin and in the REST API.

Commands do not authenticate: a user of the machine who can run them has every right.
Adding, changing, deleting and viewing rows needs the permission of Django for the model, as `permission` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from limits_app.audit import changed_by_revert
from limits_app.models import AuditEvent, Candidate, Entity, Policy, Resource, write_alias

APP: Final = "limits_app"


class Action(StrEnum):
    """What a user does, apart from adding, changing, deleting and viewing rows of a model."""

    VIEW_LIMITS = "view the effective limits and the current usage"
    VIEW_USAGE = "view recorded usage and rejections"
    BOOST = "boost the limits of one entity"
    BOOST_POLICIES = "boost policies, for all entities to whom they apply"
    RESET = "reset usage"
    TOP_UP = "top up a limit"
    USE_LIMITS = "acquire limits for other programs"
    BLOCK = "block an entity"
    CREATE_CLIENT = "create the row of a client that an action is about"
    EXEMPT = "exempt a client or a plan"
    ERASE = "erase the identifier of an entity"
    ERASE_POLICIES = "erase it, and remove its policies and other configuration"
    LIMIT_SOMETHING = "use the page Limit something"
    VIEW_CANDIDATES = "view candidates"
    SET_CANDIDATE = "set the candidate of a policy"
    DECIDE_CANDIDATE = "enforce, revert or discard a candidate"
    VIEW_EMERGENCY = "view the emergency switch"
    SET_EMERGENCY = "set the emergency switch"
    REVERT = "revert a change of the audit log"
    VIEW_HISTORY = "view the events of an object in the audit log"
    TEST_ALERT = "send a test alert"


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of an action: all of `all_of`, and one of `any_of` unless that is empty."""

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()

    def allow(self, user: Any) -> bool:
        """Whether the user has them; REST framework can be configured to have no anonymous user (None)."""
        if user is None:
            return False
        needs_none, names = not self.any_of, map(_full, self.any_of)
        return bool(user.has_perms([*map(_full, self.all_of)])) and (needs_none or any(map(user.has_perm, names)))


RIGHTS: Final[Mapping[Action, Permissions]] = {
    Action.VIEW_LIMITS: Permissions(any_of=("view_policy", "change_policy", "boost_policy")),
    Action.VIEW_USAGE: Permissions(("view_usagesnapshot",)),
    Action.BOOST: Permissions(("boost_policy",)),
    # Support may boost one client, but not all to whom a policy applies: these boosts are new policies for many.
    Action.BOOST_POLICIES: Permissions(("boost_policy", "add_policy")),
    Action.RESET: Permissions(("reset_resource",)),
    Action.TOP_UP: Permissions(("top_up_resource",)),
    Action.USE_LIMITS: Permissions(("use_limits",)),
    Action.BLOCK: Permissions(any_of=("block_entity", "change_entity")),
    Action.CREATE_CLIENT: Permissions(any_of=("register_entity", "add_entity")),
    Action.EXEMPT: Permissions(("add_policy",)),
    Action.ERASE: Permissions(("erase_entity",)),
    Action.ERASE_POLICIES: Permissions(
        ("erase_entity", "delete_entity", "change_entity", "delete_policy", "delete_alertrule", "change_endpoint")
    ),
    Action.LIMIT_SOMETHING: Permissions(("add_policy", "add_resource", "add_endpoint")),
    Action.VIEW_CANDIDATES: Permissions(any_of=("view_candidate", "change_candidate")),
    Action.SET_CANDIDATE: Permissions(("add_candidate",)),
    Action.DECIDE_CANDIDATE: Permissions(("change_candidate", "change_policy")),
    Action.VIEW_EMERGENCY: Permissions(any_of=("view_emergencyswitch", "change_emergencyswitch")),
    Action.SET_EMERGENCY: Permissions(("change_emergencyswitch",)),
    Action.REVERT: Permissions(("view_auditevent", "revert_auditevent")),
    Action.VIEW_HISTORY: Permissions(("view_auditevent",)),
    Action.TEST_ALERT: Permissions(("change_alertrule",)),
}
"""The permissions of the app `limits_app` that each action needs."""


def may(user: Any, action: Action, *more: Action | str) -> bool:
    """Whether the user may do this; `more` is what it needs besides in this case.

    Further actions, and permissions as `permission` names them.
    """
    needed = (RIGHTS[right] if isinstance(right, Action) else Permissions((right,)) for right in (action, *more))
    return all(permissions.allow(user) for permissions in needed)


def permission(verb: str, model: Any) -> str:
    """The permission to add, change, delete or view rows of a model."""
    return f"{verb}_{model._meta.model_name}"


def may_change_rows(user: Any, verb: str, model: Any) -> bool:
    """Whether the user may add, change, delete or view rows of a model; who may change them may view them."""
    verbs = ("view", "change") if verb == "view" else (verb,)
    return Permissions(any_of=tuple(permission(verb, model) for verb in verbs)).allow(user)


_CHOSEN_IN_ACTIONS: Final[Mapping[Any, tuple[Action, ...]]] = {
    Resource: (Action.BOOST, Action.RESET, Action.TOP_UP, Action.SET_CANDIDATE),
}
"""The actions whose forms offer rows of a model, beside the forms of other models."""


def may_choose(user: Any, model: Any) -> bool:
    """Whether the user may read the names of a model's rows, because a form that the user may send offers them."""
    if any(may(user, action) for action in _CHOSEN_IN_ACTIONS.get(model, ())):
        return True
    owners = [relation.related_model for relation in model._meta.related_objects]
    names = [permission(verb, owner) for owner in owners if owner._meta.app_label == APP for verb in ("add", "change")]
    return Permissions(any_of=(permission("view", model), *names)).allow(user)


def to_create_entity(identifier: str | None) -> tuple[Action, ...]:
    """What an action needs beside its own permissions where it creates the row of an entity (None: of none)."""
    if identifier is None or Entity.objects.using(write_alias()).filter(identifier=identifier).exists():
        return ()
    return (Action.CREATE_CLIENT,)


def to_replace_candidate(policy: Policy) -> tuple[str, ...]:
    """The permission to set a candidate where the policy has one, which is deleted; nothing elsewhere."""
    if not Candidate.objects.using(write_alias()).filter(policy=policy).exists():
        return ()
    return (permission("delete", Candidate),)


def to_replace_row(row: Any) -> tuple[str, ...]:
    """The permissions to change a row, or to delete it and make one of another model in its place."""
    return () if row is None else (permission("change", row), permission("delete", row))


def may_revert(user: Any, event: AuditEvent) -> bool:
    """Whether the user may revert an event, which changes its object.

    Call it in the same `acting` block as the revert, because it depends on whether the object exists.
    Raises CannotRevert if the event is not about an object.
    """
    verb, model = changed_by_revert(event)
    return may(user, Action.REVERT, permission(verb, model))


def _full(name: str) -> str:
    return f"{APP}.{name}"

"""Plans: limits that many entities have in common, such as free, pro and enterprise."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.db import models, router
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.models.base import Configuration
from limits_app.models.changes import Touched, announce
from limits_app.models.fields import ExactTextField
from limits_app.models.own_queries import read
from limits_app.models.priority_field import priority_field
from limits_app.models.snapshots import Snapshot
from limits_app.models.users import user_identifier, user_key, user_model
from limits_app.models.validators import validate_text

MAX_PLAN_LENGTH: Final = 64
"""The length of a name."""
_GROUP: Final = "auth.Group"  # by name, so that a site without that app gets a check and not a traceback


class Plan(Configuration):
    """A plan has policies as an entity has; each entity on it has its own buckets."""

    always_validated = ("name",)

    name = ExactTextField(
        _("name"),
        max_length=MAX_PLAN_LENGTH,
        unique=True,
        validators=[validate_text],
        help_text=_("The name, such as “free” or “pro”. Case and spaces are significant."),
    )
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("A description for other administrators.")
    )
    priority = models.PositiveIntegerField(
        _("priority"),
        default=0,
        help_text=_("If a user is in groups on several plans, the plan with the highest priority applies."),
    )

    request_priority = priority_field(
        _("One of LIMITS['PRIORITIES'], for requests of clients on this plan; when empty, that of the resource.")
    )

    class Meta(Configuration.Meta):
        verbose_name = _("plan")
        verbose_name_plural = _("plans")
        ordering = ["name"]
        constraints = [models.CheckConstraint(name="limits_app_plan_has_name", condition=~models.Q(name=""))]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def touched_by(cls, key: Any, before: Snapshot, now: Snapshot) -> Touched:
        """Anything; the members of another group are other clients that are not known."""
        return Touched(is_all=True, is_everything=before.get("groups", []) != now.get("groups", []))


class PlanGroup(Configuration):
    """A Django group whose users are on a plan, unless their entity or the request has another one."""

    part_of = ("plan",)

    plan = models.ForeignKey(Plan, verbose_name=_("plan"), on_delete=models.CASCADE, related_name="groups")
    group = models.OneToOneField(
        _GROUP,
        verbose_name=_("group"),
        on_delete=models.DO_NOTHING,  # see `watch_groups`: users and their groups may be in another database
        related_name="+",
        db_constraint=False,
        help_text=_("A group has at most one plan."),
    )

    class Meta(Configuration.Meta):
        default_permissions = ()  # the permissions of the plan apply to its groups
        verbose_name = _("user group on a plan")
        verbose_name_plural = _("user groups on a plan")
        ordering = ["pk"]  # the table of groups may be in another database

    def __str__(self) -> str:
        return str(self.group)


def memberships() -> Any:
    """The many-to-many field from users to their groups; None where the user model has no groups."""
    return _memberships(settings.AUTH_USER_MODEL)


@cache
def _memberships(_user_model: str) -> Any:
    if not apps.is_installed("django.contrib.auth"):
        return None
    group, fields = apps.get_model(_GROUP), user_model()._meta.many_to_many
    return next((field for field in fields if field.related_model is group), None)


def groups_have_plans(using: str) -> bool:
    """Whether the groups of users can have plans: users have groups, in the database of the plans."""
    return memberships() is not None and router.db_for_write(user_model()) == using


def plan_order(priority: int, name: str) -> tuple[int, str]:
    """The key by which the plan of a user in several groups is the first: the highest priority, then the name."""
    return -priority, name


def plan_order_sql(vendor: str, plan: str) -> str:
    """`plan_order` for a query, in which `plan` is the table of plans: names by code points, as Python compares them.

    On MySQL and MariaDB the column does so (see `ExactTextField`), and on SQLite every one.
    """
    return f"{plan}.priority DESC, {plan}.name" + (' COLLATE "C"' if vendor == "postgresql" else "")


def plans_by_groups(
    using: str,
    users: Collection[str] | None = None,
    *,
    most: int | None = None,
    proposed: Iterable[tuple[str, str, int]] = (),
) -> dict[str, str]:
    """The names of the plans that users have by their groups, by their entities; None: of all users.

    At most so many memberships are read. `proposed` are names of groups, with plans and their priorities, that they
    have instead of the stored ones.
    """
    if not groups_have_plans(using):
        return {}
    groups = PlanGroup.objects.using(using).order_by()
    rows = list(groups.values_list("group", "plan__name", "plan__priority"))
    if instead := {name: (plan, priority) for name, plan, priority in proposed}:
        changed = {key: instead[name] for key, name in group_names().items() if name in instead}
        rows = [row for row in rows if row[0] not in changed] + [(key, *plan) for key, plan in changed.items()]
    rows.sort(key=lambda row: plan_order(row[2], row[1]))
    order = {group: (rank, plan) for rank, (group, plan, _priority) in enumerate(rows)}
    if not order:
        return {}
    field = memberships()
    user, group = field.m2m_field_name(), field.m2m_reverse_field_name()
    members = field.remote_field.through._base_manager.using(using).filter(**{f"{group}__in": list(order)})
    if users is not None:
        members = members.filter(
            **{f"{user}__in": [key for user_row in users if (key := user_key(user_row)) is not None]}
        )
    first: dict[Any, tuple[int, str]] = {}
    for key, of_group in members.order_by().values_list(f"{user}_id", f"{group}_id")[:most].iterator():
        first[key] = min(first.get(key, order[of_group]), order[of_group])
    return {user_identifier(key): plan for key, (_place, plan) in first.items()}


def group_names() -> dict[Any, str]:
    """The names of the groups of users, by primary key; none on a site without them."""
    if not apps.is_installed("django.contrib.auth"):
        return {}
    group = apps.get_model(_GROUP)
    return dict(group._base_manager.using(router.db_for_write(group)).values_list("pk", "name"))


def watch_groups() -> None:
    """Announce a change when users join or leave groups that matter, or such a group changes; see `_groups_matter`.

    Django sends no signal for rows of its table of memberships that are written directly, nor for those that it
    deletes with a user; for those of a model of the site it does.
    """
    pre_delete.connect(_group_deleted, sender=_GROUP, dispatch_uid="limits_app.groups")
    post_save.connect(_group_saved, sender=_GROUP, dispatch_uid="limits_app.groups")
    if (field := memberships()) is not None:
        through = field.remote_field.through
        m2m_changed.connect(_groups_changed, sender=through, dispatch_uid="limits_app.groups")
        post_save.connect(_member_saved, sender=through, dispatch_uid="limits_app.groups")
        post_delete.connect(_member_deleted, sender=through, dispatch_uid="limits_app.groups")
        pre_delete.connect(_user_deleted, sender=user_model(), dispatch_uid="limits_app.users")


def _group_deleted(*, instance: models.Model, using: str, **details: object) -> None:
    """Delete the plan of the group too, and announce the change after that."""
    rows = PlanGroup.objects.using(using).filter(group_id=instance.pk)
    if router.db_for_write(PlanGroup) != using:
        return
    if read(using, rows.exists, False):
        rows.delete()
    elif _groups_matter(using):
        announce(using, Touched.anything())


def _group_saved(*, created: bool, using: str, **details: object) -> None:
    if not created and router.db_for_write(PlanGroup) == using and _groups_matter(using):
        announce(using, Touched.anything())


def _groups_changed(
    *, action: str, using: str, instance: models.Model, reverse: bool, pk_set: set[Any] | None, **details: object
) -> None:
    if not action.startswith("post_"):
        return
    users = (pk_set or ()) if reverse else [instance.pk]
    # Without users, a group has lost all that it had.
    _announce_users(users, using, is_new=action == "post_add", is_many=reverse and pk_set is None)


def _member_saved(*, instance: models.Model, using: str, **details: object) -> None:
    _announce_users([_user_of(instance)], using, is_new=True)


def _member_deleted(*, instance: models.Model, using: str, **details: object) -> None:
    _announce_users([_user_of(instance)], using)


def _user_of(membership: models.Model) -> Any:
    return getattr(membership, f"{memberships().m2m_field_name()}_id")


def _user_deleted(*, instance: models.Model, using: str, **details: object) -> None:
    _announce_users([instance.pk], using)


def _announce_users(users: Iterable[Any], using: str, *, is_new: bool = False, is_many: bool = False) -> None:
    """Announce users whose groups have changed; `is_new` says that they may have had none."""
    if router.db_for_write(PlanGroup) == using and _groups_matter(using):
        identifiers = [user_identifier(user) for user in users]
        touched = Touched.of(identifiers, named=identifiers if is_new else ())
        touched.is_many = is_many
        announce(using, touched)


def _groups_matter(using: str) -> bool:
    """Whether a group has a plan, or is exempt from a URL rule or by LIMITS["EXEMPT"]."""
    if conf.get(conf.EXEMPT).groups:
        return True
    if read(using, PlanGroup.objects.using(using).exists, False):
        return True
    rules = apps.get_model("limits_app.Endpoint")._base_manager.using(using).exclude(exempt_groups="")
    return read(using, rules.exists, False)

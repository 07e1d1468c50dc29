"""Entities: users, API keys, tenants, and patterns of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration, Written
from limits_app.models.changes import Touched
from limits_app.models.fields import ExactTextField
from limits_app.models.patterns import is_pattern
from limits_app.models.plan import Plan
from limits_app.models.snapshots import Snapshot, batches
from limits_app.models.validators import (
    validate_billing_date,
    validate_identifier,
    validate_json,
    validate_object,
    validate_text,
)

_OWN_ANCESTOR: Final = _("An entity cannot be its own ancestor: choose another parent, or none.")
_UNLIMITED_AND_BLOCKED: Final = _("An entity cannot be both unlimited and blocked: choose one.")
_PATTERN_WITH_FIELDS: Final = _(
    "A pattern has no parent, plan, cascade, flags or billing date: leave them empty, and add a policy with the effect "
    "“blocked” or “unlimited” for it."
)
_NOT_OF_PATTERNS: Final = ("parent", "plan", "cascade", "unlimited", "blocked", "billing_from")
_INHERITED: Final = ("identifier", "parent", "plan", "cascade")
"""The fields by which others may be blocked or exempt that are below it, besides the flags."""
IS_UNLIMITED: Final = Q(blocked__in=[False], unlimited__in=[True])
"""The filter for unlimited entities, of which none is blocked, as each database looks them up in the index of flags."""
HAS_FLAG: Final = Q(blocked__in=[True]) | IS_UNLIMITED
"""The same for those that are blocked or unlimited."""
MAX_LEVELS: Final = 8
"""Maximum number of entities from the topmost ancestor to the lowest descendant."""


class Entity(Configuration):
    """A consumer with specific settings, or a pattern of consumers; other consumers do not need a row."""

    named_by = "identifier"
    always_validated = ("identifier", "metadata")

    identifier = ExactTextField(
        _("identifier"),
        max_length=255,
        unique=True,
        validators=[validate_identifier],
        help_text=_(
            "The identifier in requests, such as “user:42” or “tenant:acme”. Case and spaces are significant. "
            "“key:*” stands for all that begin with “key:”, and “ip:10.0.0.0/8” for all addresses of a network."
        ),
    )
    name = models.CharField(
        _("name"), max_length=255, blank=True, db_index=True, validators=[validate_text], help_text=_("Display name.")
    )
    parent = models.ForeignKey(
        "self",
        verbose_name=_("parent"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="children",
        help_text=_("The client that it belongs to, such as the tenant of a user; at most 8 levels."),
    )
    plan = models.ForeignKey(
        Plan,
        verbose_name=_("plan"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="entities",
        help_text=_("Its policies apply to this client; leave empty for the plan of its parent, if it has one."),
    )
    cascade = models.BooleanField(
        _("count for the parent too"),
        default=False,
        help_text=_("Its usage also counts against the limits of its parent."),
    )
    unlimited = models.BooleanField(
        _("unlimited"),
        default=False,
        help_text=_(
            "Exempt from all limits, whatever the policies are; those of a parent that it counts for still apply. "
            "Web requests are not charged at all, also not for limits that all clients share, totals and members of "
            "pools, unless it counts for a parent that is not exempt."
        ),
    )
    blocked = models.BooleanField(
        _("blocked"), default=False, help_text=_("All requests are rejected, whatever the policies are.")
    )
    billing_from = models.DateTimeField(
        _("billing date"),
        null=True,
        blank=True,
        validators=[validate_billing_date],
        help_text=_(
            "When its billing began: quotas “per billing month of the client” begin on this day of the month, at this "
            "time. Leave empty for the billing date of its parent, or calendar months if there is none."
        ),
    )
    metadata = models.JSONField(
        _("metadata"),
        default=dict,
        blank=True,
        validators=[validate_json, validate_object],
        help_text=_("Custom data as a JSON object; it does not affect limits."),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("client")
        verbose_name_plural = _("clients")
        ordering = ["identifier"]
        permissions = [
            ("block_entity", "Can block and unblock an entity"),
            ("erase_entity", "Can erase the identifier of an entity"),
            ("register_entity", "Can create the row of an entity that is boosted, blocked or limited"),
        ]
        indexes = [
            models.Index(fields=["blocked", "unlimited"], name="limits_app_entity_flags"),
        ]
        constraints = [
            models.CheckConstraint(
                name="limits_app_entity_fields", condition=~Q(identifier="") & (Q(unlimited=False) | Q(blocked=False))
            )
        ]

    def __str__(self) -> str:
        return self.identifier

    def clean_alone(self) -> None:
        """Normalize empty metadata, and reject conflicting flags, fields of patterns, and a pattern as the parent."""
        self.metadata = self.metadata or {}
        if self.unlimited and self.blocked:
            raise ValidationError({"blocked": _UNLIMITED_AND_BLOCKED})
        fields = [name for name in _NOT_OF_PATTERNS if getattr(self, name)] if self.is_pattern else []
        if fields:
            raise ValidationError(dict.fromkeys(fields, _PATTERN_WITH_FIELDS))
        parent: Any = self._meta.get_field("parent")
        self._check_parent(parent.get_cached_value(self, None))  # which may not be saved yet

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for all entities that match its identifier."""
        return bool(self.identifier) and is_pattern(self.identifier)

    def _check_parent(self, parent: Entity | None) -> None:
        if parent is not None and parent.is_pattern:
            raise ValidationError({"parent": _("A pattern cannot be a parent: choose one entity.")})
        if parent is not None and parent.identifier == self.identifier:
            raise ValidationError({"parent": _OWN_ANCESTOR})

    def clean(self) -> None:
        """Reject cycles and hierarchies of more than 8 levels."""
        super().clean()
        if self.parent_id is None:
            return
        parent = Entity.objects.using(self._state.db).filter(pk=self.parent_id).first()
        self._check_parent(parent)
        above = _ancestors(self.pk, {self.pk: self.parent_id, **_parents([self.parent_id], self._state.db)})
        if self.pk in above:
            raise ValidationError({"parent": _OWN_ANCESTOR})
        if _are_too_deep([self.pk], len(above), self._state.db):
            raise ValidationError({"parent": _("Entities can be at most 8 levels deep: choose a parent further up.")})

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Reject cycles and hierarchies of more than 8 levels on every write."""
        super().check_written(written, using)
        for _before, now in written.values():
            if is_pattern(now["identifier"]) and any(now.get(name) for name in _NOT_OF_PATTERNS):
                raise IntegrityError("a pattern has no parent, plan, cascade, flags or billing date")
            if now["parent"] is not None and is_pattern(now["parent"]):
                raise IntegrityError("a pattern cannot be a parent")
        moved = [key for key, (before, now) in written.items() if now["parent"] not in {None, before.get("parent")}]
        parents = _parents(moved, using)
        by_levels: dict[int, list[Any]] = {}
        for key in moved:
            by_levels.setdefault(len(_ancestors(key, parents)), []).append(key)
        if any(above and _are_too_deep(keys, above, using) for above, keys in by_levels.items()):
            raise IntegrityError(f"an entity is its own ancestor, or more than {MAX_LEVELS} levels deep")

    @classmethod
    def touched_by(cls, key: Any, before: Snapshot, now: Snapshot) -> Touched:
        """Itself under its old and its new identifier; a pattern concerns other clients."""
        identifiers = [state["identifier"] for state in (before, now) if state]
        is_renamed = len({*identifiers}) > 1
        flags = {(state.get("blocked", False), state.get("unlimited", False)) for state in (before, now)}
        if any(map(is_pattern, identifiers)):
            touched = Touched(is_all=True, is_everything=is_renamed)
        else:
            touched = Touched.of(identifiers, named=identifiers if is_renamed else ())
        if now and not before:
            touched.created[cls] = {key}
        elif now and any(before[name] != now[name] for name in _INHERITED):
            touched.moved[cls] = {key}
        touched.is_access = len(flags) > 1
        return touched


def _ancestors(key: Any, parents: Mapping[Any, Any]) -> list[Any]:
    """Primary keys of the ancestors of an entity, nearest first, up to the maximum depth."""
    above: list[Any] = []
    parent = parents.get(key)
    while parent is not None and len(above) < MAX_LEVELS:
        above.append(parent)
        parent = parents.get(parent)
    return above


def _parents(keys: list[Any], using: str | None) -> dict[Any, Any]:
    """The parents of entities and of their ancestors, by primary key, up to the maximum depth."""
    entities = Entity._base_manager.using(using).exclude(parent=None).order_by()
    rows: dict[Any, Any] = {}
    missing = {*keys}
    for _generation in range(MAX_LEVELS):
        for batch in batches(missing):
            rows.update(entities.filter(pk__in=batch).values_list("pk", "parent_id"))
        missing = {rows[key] for key in missing if key in rows} - rows.keys()
    return rows


def _are_too_deep(keys: list[Any], above: int, using: str | None) -> bool:
    """Whether entities with this number of ancestors and their descendants exceed the maximum depth."""
    if above >= MAX_LEVELS:
        return True
    below = "__".join(["parent"] * (MAX_LEVELS - above))
    entities = Entity._base_manager.using(using)
    return any(entities.filter(**{f"{below}__in": batch}).exists() for batch in batches(keys))

"""Pools with their members as one page, and each member with its limits as another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet
from django.forms import CharField, ModelForm, Textarea
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.base import AuditedAdmin, PartOf
from limits_app.admin.forms import LIMIT_FIELDS, JSONField
from limits_app.admin.policies import LimitFormSet, LimitInline
from limits_app.engine.errors import LimitsError
from limits_app.models import Pool, PoolMember
from limits_app.models.limit import limit_texts
from limits_app.services import definitions
from limits_app.services.display import amount
from limits_app.services.limit_words import limit_name
from limits_app.services.pools import member_use

_NEW_MEMBERS: Final = 3
"""How many empty rows the form of a new pool has."""


class MemberForm(ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """A member with its limits as one text."""

    limits_text = CharField(
        label=_("limits"),
        required=False,
        help_text=_("Such as “100/min tokens=400k/min”. All users of the member share them."),
        widget=Textarea(attrs={"rows": 3, "cols": 18, "aria-label": _("limits")}),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.pk is not None:
            self.initial["limits_text"] = " ".join(limit_texts(self.instance.limits.all()))

    def clean_limits_text(self) -> str:
        """Reject text that is not a list of limits."""
        text: str = self.cleaned_data["limits_text"]
        try:
            if "limits_text" in self.changed_data:
                _definition(PoolMember(name="member"), text)
        except definitions.InvalidDefinition as error:
            raise ValidationError([message for messages in error.errors.values() for message in messages]) from error
        return text

    def save(self, commit: bool = True) -> PoolMember:
        """Save the member, and its limits if their text was changed."""
        member: PoolMember = super().save(commit)
        if commit and "limits_text" in self.changed_data:
            definitions.save(_definition(member, self.cleaned_data["limits_text"]))
        return member


def _definition(member: PoolMember, text: str) -> definitions.Definition:
    return definitions.read(member, {"limits": text.split()}, partial=True, alone=True)


class MemberInline(PartOf, admin.TabularInline):  # type: ignore[type-arg]  # generic only in its type stubs
    """The members of a pool with their limits as text; the page of a member has the limits as fields."""

    whole = Pool
    model = PoolMember
    form = MemberForm
    fields = ["name", "limits_text", "order", "weight", "enabled", "config", "use"]
    readonly_fields = ["use"]
    formfield_overrides = {
        models.JSONField: {"form_class": JSONField, "widget": Textarea(attrs={"rows": 3, "cols": 18})},
    }
    show_change_link = True
    _use: Mapping[str, str]

    def get_extra(self, request: HttpRequest, obj: Any = None, **options: Any) -> int:
        """Offer several empty rows for a new pool."""
        return _NEW_MEMBERS if obj is None else 1

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """Read the usage of all members once; an inline exists for one request."""
        self._use = {} if obj is None else _use(obj)
        return super().get_formset(request, obj, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Label each field, because screen readers do not read the head of its column."""
        field: Any = super().formfield_for_dbfield(db_field, request, **kwargs)
        field.widget.attrs["aria-label"] = str(field.label)
        return field

    def get_queryset(self, request: HttpRequest) -> QuerySet[PoolMember]:
        """Fetch the limits of all members at once."""
        members: QuerySet[PoolMember] = super().get_queryset(request)
        return members.prefetch_related("limits")

    @admin.display(description=_("in use now"))
    def use(self, member: PoolMember) -> str:
        """Say how much of it is used."""
        return self._use.get(member.name, "") if member.pk else ""


class MemberLimitInline(LimitInline):
    """The limits of one member."""

    whole = Pool
    formset = LimitFormSet  # type: ignore[assignment]  # those of a member may be none
    fields = tuple(tuple(name for name in line if name != "shared") for line in LIMIT_FIELDS)


@admin.register(Pool)
class PoolAdmin(AuditedAdmin):
    """Pools."""

    list_display = ["name", "load_balancing", "failover", "members_in_words", "description"]
    list_filter = ["load_balancing", "failover"]
    search_fields = ["name", "description", "members__name"]
    search_help_text = _("A pool distributes requests over several providers of a service, each with its own limits.")
    inlines = [MemberInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Fetch the members of all rows at once."""
        pools: QuerySet[Any] = super().get_queryset(request)
        return pools.prefetch_related("members")

    @admin.display(description=_("members"))
    def members_in_words(self, pool: Pool) -> str:
        """Name the members."""
        off = gettext("%(name)s (off)")
        return ", ".join(
            member.name if member.enabled else off % {"name": member.name} for member in pool.members.all()
        )


@admin.register(PoolMember)
class PoolMemberAdmin(PartOf, AuditedAdmin):
    """One member with its limits; reached from the page of its pool."""

    whole = Pool
    list_display = ["pool", "name", "enabled"]
    list_select_related = ["pool"]
    search_fields = ["pool__name", "name"]
    fields = ["pool", "name", "order", "weight", "enabled", "config"]
    inlines = [MemberLimitInline]

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Keep it out of the index."""
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """A member stays in its pool."""
        return [] if obj is None else ["pool"]


def _use(pool: Pool) -> Mapping[str, str]:
    """How much of each member is used, in words; why that is not known where it is not."""
    default = conf.get(conf.STORE)
    aliases = {alias or default for alias in pool.resources.values_list("store", flat=True)} or {default}
    errors: dict[str, list[str]] = {}
    for alias in sorted(aliases):
        for name, words in _use_in(pool, alias).items():
            errors.setdefault(name, []).append(f"{alias}: {words}" if len(aliases) > 1 else words)
    return {name: "; ".join(words) for name, words in errors.items()}


def _use_in(pool: Pool, alias: str) -> Mapping[str, str]:
    try:
        use = member_use(pool.name, alias)
    except LimitsError as error:
        return {member.name: str(error) for member in pool.members.all()}
    return {
        name: ", ".join(
            f"{limit_name(key)}: {amount(stats['used'])} / {amount(stats['capacity'])}" for key, stats in of_key.items()
        )
        for name, of_key in use.items()
    }

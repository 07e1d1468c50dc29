"""The form in which people write limits as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, time
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.action_forms import DayEnd, end_of_day
from limits_app.admin.client_fields import ClientInput, ClientsInput, client_in, is_sent_again, mean, mean_initial
from limits_app.admin.limit_rows import ROW_FIELDS, LimitRowsForm, initial_rows
from limits_app.engine import check_resource
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Entity, Plan, PlanGroup, write_alias
from limits_app.models.fields import aware
from limits_app.models.plan import MAX_PLAN_LENGTH, groups_have_plans, memberships
from limits_app.models.rule_fields import validate_block, validate_statuses
from limits_app.models.validators import validate_billing_date, validate_identifier, validate_path, validate_text
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.display import moment
from limits_app.services.limit_form.team_members import can_lift_each, has_counted_members, members_in
from limits_app.services.limit_sentences import (
    BILLING_MONTH,
    COUNTED_BY,
    EACH,
    OF_ONE,
    SimpleLimit,
    What,
    Who,
    uncounted_members,
)

_FIELDS_OF_RULES: Final = {"path": "target", "resource": "target", "name": "target", "valid_until": "ends"}
"""The fields of the form in which fields of rules and policies are shown, where the names differ."""
_WHO: Final = (
    (_("each by itself"), [(who.value, who.label) for who in EACH]),
    (_("one limit for all together"), [(who.value, who.label) for who in Who if who not in EACH]),
)
_NEEDED: Final[Mapping[str, str]] = {**dict.fromkeys(OF_ONE, "entity"), Who.PLAN: "plan"}
"""The fields that name whom a limit is for."""


def target_of(text: str) -> tuple[What, str]:
    """What a text names: a URL if it begins with a slash, else a resource, or without one everything; and its name."""
    name = text.strip()
    if not name:
        return What.EVERYTHING, ""
    return (What.URL if name.startswith("/") else What.RESOURCE), name


class SimpleLimitForm(LimitRowsForm):
    """What is limited, for whom, to how much, what happens beyond it, and until when."""

    target = forms.CharField(
        label=_("Limit"),
        max_length=255,
        required=False,
        help_text=_(
            "A URL such as /api/search/, /api/* for everything below /api/, or the name of a resource. Leave empty for "
            "all resources together."
        ),
        widget=forms.TextInput(
            attrs={
                "list": "limits-targets",
                "placeholder": _("everything"),
                "autocomplete": "off",
                "spellcheck": "false",
            }
        ),
    )
    who = forms.ChoiceField(label=_("for"), choices=_WHO, initial=Who.USER)
    entity = forms.CharField(
        label=_("Client or team"),
        max_length=255,
        required=False,
        validators=[validate_identifier],
        help_text=_("Its identifier, such as “user:42”, or its name."),
        widget=ClientInput(attrs={"list": "limits-clients", "autocomplete": "off", "spellcheck": "false"}),
    )
    members = forms.CharField(
        label=_("Add members"),
        max_length=10_000,
        required=False,
        help_text=_("Their identifiers or names, such as “key:ci”, one per line; members that it has stay."),
        widget=ClientsInput(attrs={"rows": 3, "cols": 24, "autocomplete": "off", "spellcheck": "false"}),
    )
    counts_members = forms.BooleanField(
        label=_("Count the use of its members for it"),
        required=False,
        initial=True,
        help_text=_("What a member uses then counts for the team too."),
    )
    lifts_each = forms.BooleanField(
        label=_("The limits of each client do not apply to the team as a whole"),
        required=False,
        initial=True,
        help_text=_(
            "For a total of a new team, whose members then share only what is set for the team itself; each member "
            "keeps its own limits."
        ),
    )
    plan = forms.CharField(
        label=_("Plan"),
        max_length=MAX_PLAN_LENGTH,
        required=False,
        validators=[validate_text],
        help_text=_("A name that no plan has makes a new plan."),
        widget=forms.TextInput(attrs={"list": "limits-plans", "autocomplete": "off", "spellcheck": "false"}),
    )
    groups = forms.ModelMultipleChoiceField(
        label=_("User groups on the plan"), queryset=Plan.objects.none(), required=False
    )
    shadow = forms.TypedChoiceField(
        label=_("then"),
        choices=[("", _("reject")), ("1", _("only report"))],
        coerce=bool,
        required=False,
        widget=forms.RadioSelect,
        initial="",
    )
    responses = forms.CharField(
        label=_("count"),
        max_length=100,
        required=False,
        validators=[validate_statuses],
        help_text=_(
            "For a URL: only these responses, such as “401,403”, “4xx” or “errors”; all when left empty. The number is "
            "then also that of these requests at the same time."
        ),
        widget=forms.TextInput(
            attrs={"placeholder": _("all responses"), "size": 16, "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    block_for = forms.CharField(
        label=_("block for"),
        max_length=16,
        required=False,
        validators=[validate_block],
        help_text=_("For a URL: such as “10m”; then all further requests are rejected for this time."),
        widget=forms.TextInput(
            attrs={"placeholder": _("no time"), "size": 8, "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    billing_date = forms.DateField(
        label=_("Billing date of the client"),
        required=False,
        help_text=_(
            "Its billing months begin on this day; empty leaves it as it is. Set it here for one client or a team."
        ),
        widget=forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"}),
    )
    keep = forms.BooleanField(label=_("Keep them too"), required=False)
    ends = forms.ChoiceField(label=_("until"), choices=[("", _("no end")), *DayEnd.choices], required=False)
    last_day = forms.DateField(
        label=_("Day"), required=False, widget=forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"})
    )

    def __init__(self, *args: Any, instance: SimpleLimit | None = None, **options: Any) -> None:
        super().__init__(*args, instance=instance, **options)
        mean_initial(self, "entity")
        if self.may_have_groups:
            self.fields["groups"].queryset = memberships().related_model._base_manager.order_by("name")  # type: ignore[attr-defined]
        if instance is not None and instance.until is not None:
            same = gettext("%(date)s, as before") % {"date": moment(instance.until)}
            self.fields["ends"].choices = [("same", same), *self.fields["ends"].choices]  # type: ignore[attr-defined]

    @property
    def may_have_groups(self) -> bool:
        """Whether user groups, which the site may not have so far, can be on a plan."""
        return groups_have_plans(router.db_for_write(Plan))

    @property
    def has_conditions(self) -> bool:
        """Whether certain responses count, or exceeding the limit blocks for a time, or either has an error."""
        fields = self["responses"], self["block_for"]
        return any(field.value() or field.errors for field in fields)

    def clean_entity(self) -> str:
        """The identifier of one client, also where its name was entered; a team is always an identifier."""
        if self.cleaned_data.get("who") == Who.ENTITY:
            return client_in(self, "entity", may_be_new=True)  # a warning says so before it is saved
        return str(self.cleaned_data["entity"])

    def clean(self) -> dict[str, Any]:
        """Require what the choices need, and read the target, the limits and the end."""
        cleaned: dict[str, Any] = super().clean() or {}
        needed = _NEEDED.get(cleaned.get("who", ""), "")
        if needed and not cleaned.get(needed) and needed not in self.errors:
            self.add_error(needed, gettext("This field is required."))
        self._check_target(cleaned)
        self._check_groups(cleaned)
        self._read_members(cleaned)
        cleaned["limits"] = tuple(self._limits(cleaned))
        if not cleaned["limits"] and not any(name.startswith(ROW_FIELDS) for name in self.errors):
            self.add_error("number_1", gettext("Enter how much, such as 60."))
        cleaned["until"] = self._end(cleaned)
        cleaned["billing_from"] = self._billing_from(cleaned)
        self._check_conditions(cleaned)
        return cleaned

    def _check_conditions(self, cleaned: Mapping[str, Any]) -> None:
        """Only a limit without an end for a URL, of no single client, team or plan, is a URL rule with conditions."""
        what, _name = target_of(cleaned.get("target") or "")
        is_rule = what == What.URL and cleaned.get("who") in COUNTED_BY and not cleaned.get("ends")
        for name in ("responses", "block_for"):
            if cleaned.get(name) and not is_rule:
                problem = gettext("Only a limit of a URL without an end, of no single client or plan, has this.")
                self.add_error(name, problem)

    def _check_target(self, cleaned: Mapping[str, Any]) -> None:
        what, name = target_of(cleaned.get("target") or "")
        try:
            if what == What.URL:
                validate_path(name)
            elif what == What.RESOURCE:
                check_resource(name)
        except ValidationError as error:
            self.add_error("target", error)
        except InvalidLimit:
            problem = gettext(
                "“%(name)s” is not a resource: use letters, digits and . _ / - only. URLs begin with “/”."
            )
            self.add_error("target", problem % {"name": name})

    def _check_groups(self, cleaned: Mapping[str, Any]) -> None:
        groups = cleaned.get("groups") or ()
        others = PlanGroup.objects.filter(group__in=[group.pk for group in groups]).exclude(
            plan__name=cleaned.get("plan")
        )
        for row in others.select_related("plan"):
            problem = gettext("The group “%(group)s” is on the plan “%(plan)s”: remove it there first.")
            self.add_error("groups", problem % {"group": row.group, "plan": row.plan})

    def _read_members(self, cleaned: dict[str, Any]) -> None:
        """The identifiers of new members in place of their text; errors are shown at the field."""
        is_team = cleaned.get("who") == Who.TEAM
        text = (cleaned.get("members") or "") if is_team else ""
        try:
            is_sure = bool(text) and is_sent_again(self, "members")
            cleaned["members"] = members_in(text, cleaned.get("entity") or "", is_sure=is_sure)
        except ValidationError as error:
            mean(self, "members", text.strip())
            self.add_error("members", error)

    def _billing_from(self, cleaned: Mapping[str, Any]) -> datetime | None:
        """The beginning of the day of a billing date, where the limit uses it."""
        day = cleaned.get("billing_date")
        if day is None or BILLING_MONTH not in (cleaned.get(per.name) for _number, _unit, per in self.rows):
            return None
        if day == _billing_date(cleaned.get("entity") or ""):
            return None  # which keeps its time of the day
        if cleaned.get("who") not in OF_ONE:
            self.add_error("billing_date", gettext("Choose one client or a team to set its billing date here."))
        at = timezone.make_aware(datetime.combine(day, time()), timezone.get_default_timezone())
        try:
            validate_billing_date(at)
        except ValidationError as error:
            self.add_error("billing_date", error)
        return at

    def _end(self, cleaned: Mapping[str, Any]) -> datetime | None:
        ends = cleaned.get("ends")
        if not ends:
            return None
        if ends == "same":
            return None if self._before is None else self._before.until
        day = cleaned.get("last_day")
        if ends == DayEnd.DATE and day is None:
            if "last_day" not in self.errors:
                self.add_error("last_day", gettext("This field is required."))
            return None
        until = end_of_day(DayEnd(ends), day)
        if until <= timezone.now():
            self.add_error("last_day", gettext("The end must be in the future."))
        return until

    def _groups_off(self, values: Mapping[str, Any]) -> list[Any]:
        """The groups of the plan whose limit is changed, as far as they are not chosen any more."""
        if self._before is None or self._before.plan != values["plan"]:
            return []
        chosen = {group.pk for group in values["groups"]}
        return [row.group for row in _groups_of(self._before.plan) if row.group_id not in chosen]

    @property
    def chosen_target(self) -> tuple[What, str]:
        """What the form is about, also one with errors."""
        return target_of(str(self["target"].value() or ""))

    @property
    def limit(self) -> SimpleLimit:
        """The limit of a valid form."""
        values, (what, name) = self.cleaned_data, self.chosen_target
        who = Who(values["who"])
        limit = SimpleLimit(
            what=what,
            who=who,
            limits=values["limits"],
            path=name if what == What.URL else "",
            resource=name if what == What.RESOURCE else "",
            entity=values["entity"] if who in OF_ONE else "",
            plan=values["plan"] if who == Who.PLAN else "",
            shadow=bool(values["shadow"]),
            responses=values["responses"].strip().lower().replace(" ", ""),
            block_for=values["block_for"].strip(),
            until=values["until"],
            groups=tuple(values["groups"]) if who == Who.PLAN else (),
            groups_off=tuple(self._groups_off(values)) if who == Who.PLAN else (),
            counts_members=values["counts_members"],
            new_members=values["members"],
            billing_from=values["billing_from"],
        )
        return replace(
            limit, lifts_each=values["lifts_each"] and can_lift_each(limit, is_change=self._before is not None)
        )

    def add_definition_errors(self, error: InvalidDefinition) -> None:
        """Show each error of a rule or a policy at the field that it is about."""
        for path, texts in error.errors.items():
            name = str(path[0]) if path else ""
            if name == "limits":
                name = f"number_{path[1] + 1}" if len(path) > 1 and isinstance(path[1], int) else "number_1"
            if not name and self.cleaned_data["until"]:
                name = "ends"  # its dates overlap with those of another limit
            field = _FIELDS_OF_RULES.get(name, name)
            self.add_error(field if field in self.fields else None, texts)

    @staticmethod
    def initial_of(limit: SimpleLimit) -> dict[str, Any]:
        """The values of the fields that stand for a limit."""
        initial = {
            "target": limit.path or limit.resource,
            "who": limit.who,
            "entity": limit.entity,
            "plan": limit.plan,
            "groups": [row.group_id for row in _groups_of(limit.plan)] if limit.plan else [],
            "shadow": "1" if limit.shadow else "",
            "responses": limit.responses,
            "block_for": limit.block_for,
            "ends": "same" if limit.until else "",
            "keep": limit.extends,
            "billing_date": _billing_date(limit.entity) or "",
            "counts_members": not uncounted_members(limit.entity).exists(),
            "lifts_each": limit.lifts_each or not has_counted_members(limit.entity),
        }
        return initial | initial_rows(limit)


def _billing_date(entity: str) -> date | None:
    rows = Entity.objects.using(write_alias()).filter(identifier=entity, billing_from__isnull=False)
    at = rows.values_list("billing_from", flat=True).first() if entity else None
    return None if at is None else aware(at).astimezone(timezone.get_default_timezone()).date()


def _groups_of(plan: str) -> QuerySet[PlanGroup]:
    """The rows of the groups of a plan, where users have groups in this database."""
    rows = PlanGroup.objects.using(write_alias()).filter(plan__name=plan)
    return rows if groups_have_plans(write_alias()) else rows.none()

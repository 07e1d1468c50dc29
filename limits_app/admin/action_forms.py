"""Forms of actions: why, how much, for whom, until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.choices import RowField
from limits_app.admin.client_fields import ClientInput, client_in, mean_initial
from limits_app.admin.forms import AmountFormField, Autocomplete, checked_datetime
from limits_app.admin.own_blocks import ConfirmBlock
from limits_app.engine import Amount
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Enforcement, Plan, Policy, Resource
from limits_app.models.validators import validate_identifier, validate_text
from limits_app.services.boosts import check_boost_end

_MINUTE: Final = "%Y-%m-%dT%H:%M"
_FRIDAY: Final = 4
"""Its number in `date.weekday`."""


class ReasonForm(forms.Form):
    """Why it is done."""

    required_css_class = "required"

    reason = forms.CharField(
        label=_("Reason"),
        max_length=1000,
        required=False,
        validators=[validate_text],
        help_text=_("For other administrators and for the audit log."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class BlockReasonForm(ConfirmBlock, ReasonForm):
    """The reason for a block, and the confirmation where it also affects other clients."""

    field_order = ["reason", "confirm_block"]


class BlockClientForm(BlockReasonForm):
    """Which client is blocked, and why; the client is shown as a field only where its text has a problem."""

    entity = forms.CharField(label=_("Client"), max_length=255, strip=False, widget=ClientInput)
    field_order = ["entity", *BlockReasonForm.field_order]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        mean_initial(self, "entity")

    def clean_entity(self) -> str:
        """The identifier of the client, also where its name or its address was entered."""
        return client_in(self, "entity")

    @property
    def hides_client(self) -> bool:
        """Whether the client is clear, and is only sent."""
        return not (self.is_bound and "entity" in self.errors)


class RequiredReasonForm(ReasonForm):
    """A form with a required reason."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["reason"].required = True


class EraseForm(ReasonForm):
    """Which identifier is erased, and whether its configuration is removed."""

    entity = forms.CharField(label=_("Client"), max_length=255, strip=False, validators=[validate_identifier])
    with_policies = forms.BooleanField(
        label=_("Remove its policies and the other configuration that names it too"), required=False
    )
    field_order = ["entity", "with_policies", "reason"]


class RevertForm(BlockReasonForm):
    """The reason of a revert, and whether it also undoes later changes."""

    force = forms.BooleanField(label=_("It has been changed since: undo the later changes too"), required=False)
    field_order = ["reason", "force", "confirm_block"]


class BoostForm(RequiredReasonForm):
    """How much more, and until when."""

    factor = forms.DecimalField(
        label=_("Multiply limits by"),
        min_value=Decimal("1.01"),
        max_value=1000,
        decimal_places=2,
        initial=2,
        help_text=_("Factor for each current limit."),
    )
    until = forms.DateTimeField(
        label=_("Until"), widget=forms.DateTimeInput(format=_MINUTE, attrs={"type": "datetime-local"})
    )
    field_order = ["factor", "until", "reason"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        zone = timezone.get_current_timezone_name()
        self.fields["until"].help_text = gettext("In the time zone %(zone)s.") % {"zone": zone}

    def clean_until(self) -> datetime:
        """Reject an end in the past or outside the calendar."""
        until = checked_datetime(self.cleaned_data["until"], self.fields["until"].error_messages["invalid"])
        if until <= timezone.now():
            raise ValidationError(gettext("The end must be in the future."))
        try:
            check_boost_end(until)
        except InvalidLimit as error:
            raise ValidationError(str(error)) from error
        return until


class DayEnd(models.TextChoices):
    """At the end of which day a limit ends, by the clock of the site."""

    TODAY = "today", _("tonight")
    FRIDAY = "friday", _("the end of Friday")
    DATE = "date", _("the end of a day…")


class BoostEnd(models.TextChoices):
    """When a boost ends, counted from now by the clock of the site."""

    HOUR = "hour", _("For 1 hour")
    TODAY = "today", _("Until tonight")
    FRIDAY = "friday", _("Until the end of Friday")
    DATE = "date", _("Until the end of this day")


class QuickBoostForm(ReasonForm):
    """How many times as much a client may use, and until when: `ends` is the value of the button that was pressed."""

    factor = forms.TypedChoiceField(
        label=_("Multiply limits by"),
        choices=[(factor, f"\N{MULTIPLICATION SIGN}{factor}") for factor in ("2", "5", "10")],
        coerce=Decimal,
        initial="2",
        widget=forms.RadioSelect,
    )
    limit = forms.CharField(label=_("Limit"), max_length=400, required=False, widget=forms.Select)
    number = AmountFormField(
        label=_("Set to"),
        required=False,
        min_value=Decimal("0.000001"),
        max_digits=18,
        decimal_places=6,
        widget=forms.TextInput(attrs={"size": 9, "inputmode": "decimal"}),
    )
    ends = forms.ChoiceField(label=_("Until"), choices=BoostEnd.choices)
    last_day = forms.DateField(
        label=_("Day"), required=False, widget=forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"})
    )
    field_order = ["factor", "limit", "number", "reason", "ends", "last_day"]

    def offer(self, limits: Iterable[Mapping[str, Any]], client: str) -> None:
        """Offer limits of a client, as its page shows them: those that are its own, and are counted on one resource."""
        self.fields["limit"].widget.choices = [
            (f"{limit['key']} {limit['resource']}", f"{limit['name']}: {limit['words']}")
            for limit in limits
            if limit["whose"] == client and not (limit["is_total"] or limit.get("blocked") or limit.get("shared"))
        ]

    def clean_number(self) -> Amount | None:
        """A whole number where it is one."""
        number = self.cleaned_data["number"]
        return number if number is None else int(number) if number == int(number) else float(number)

    def clean(self) -> dict[str, Any]:
        """Set `until`, a moment in the future."""
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("number") is not None and not cleaned.get("limit"):
            self.add_error("limit", self.fields["limit"].error_messages["required"])
        if "ends" not in cleaned or "last_day" not in cleaned:
            return cleaned
        day = cleaned["last_day"]
        if cleaned["ends"] == BoostEnd.DATE and day is None:
            self.add_error("last_day", self.fields["last_day"].error_messages["required"])
            return cleaned
        cleaned["until"] = end_of(cleaned["ends"], day)
        try:
            check_boost_end(cleaned["until"])
        except InvalidLimit as error:
            self.add_error("last_day" if cleaned["ends"] == BoostEnd.DATE else "ends", str(error))
        return cleaned


def end_of(choice: str, day: date | None = None) -> datetime:
    """The moment of a choice of `BoostEnd`, counted from now by the clock of the site; `day` is that of the last."""
    if choice == BoostEnd.HOUR:
        return timezone.localtime() + timedelta(hours=1)
    return end_of_day(DayEnd(choice), day)


def end_of_day(ends: DayEnd, day: date | None) -> datetime:
    """The last second of today, of the next Friday, or of a day, by the clock of the site."""
    now = timezone.localtime()
    last = now.date()
    if ends == DayEnd.FRIDAY:
        last += timedelta(days=(_FRIDAY - last.weekday()) % 7)
    if ends == DayEnd.DATE and day is not None:
        last = day
    # The last second: the end of the next day's first one would be read as that day.
    return timezone.make_aware(datetime.combine(last, time(23, 59, 59)), now.tzinfo)


class EmergencyForm(ReasonForm):
    """Why limits are switched off, and until when; `services.set_emergency` validates them together."""

    mode = forms.ChoiceField(label=_("Mode"), choices=Enforcement.choices, widget=forms.HiddenInput)
    ends = forms.ChoiceField(
        label=_("Until (then limits are enforced again)"),
        choices=[
            *((value, label) for value, label in BoostEnd.choices if value != BoostEnd.DATE),
            (BoostEnd.DATE.value, _("Until this time")),
            ("", _("Until it is switched back")),
        ],
        required=False,
        widget=forms.RadioSelect,
    )
    until = forms.DateTimeField(
        label=_("Time, for “Until this time”"),
        required=False,
        widget=forms.DateTimeInput(format=_MINUTE, attrs={"type": "datetime-local"}),
    )
    field_order = ["mode", "reason", "ends", "until"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        reason = self.fields["reason"]
        reason.help_text = _("Everybody reads it while limits are not enforced. The audit log has it too.")
        reason.required = self.data.get("mode") != Enforcement.ENFORCE
        reason.error_messages["required"] = _("Say why limits are not enforced: everybody reads it meanwhile.")

    def clean_until(self) -> datetime | None:
        """Reject a time outside the calendar."""
        until = self.cleaned_data["until"]
        return until and checked_datetime(until, self.fields["until"].error_messages["invalid"])

    def clean(self) -> dict[str, Any]:
        """Set `until`."""
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("mode") == Enforcement.ENFORCE:
            return {**cleaned, "until": None}
        ends = cleaned.get("ends")
        if ends == BoostEnd.DATE and not cleaned.get("until"):
            self.add_error("until", self.fields["until"].error_messages["required"])
        elif ends and ends != BoostEnd.DATE:
            cleaned["until"] = end_of(ends)
        return cleaned


class TopUpForm(RequiredReasonForm):
    """How much credit of which limit."""

    key = forms.CharField(
        label=_("Limit"), max_length=64, help_text=_("“requests”, or the key of the limit, such as “tpm”.")
    )
    amount = AmountFormField(label=_("Amount"), min_value=Decimal("0.000001"), max_digits=18, decimal_places=6)
    field_order = ["key", "amount", "reason"]


class Boosted(models.TextChoices):
    """Whose limits are boosted."""

    ENTITY = "entity", _("one user, key, tenant or IP address")
    RESOURCE = "resource", _("everyone on a resource")
    PLAN = "plan", _("everyone on a plan")
    EVERYBODY = "everybody", _("everyone, by all permanent policies")


class EntityForm(forms.Form):
    """The resource on which something is done for entities, and the plan of their requests."""

    resource = RowField(
        Resource.objects.all(),
        label=_("Resource"),
        required=False,
        help_text=_("Leave empty for the limits over all resources."),
        widget=Autocomplete(Policy._meta.get_field("resource"), admin.site),
    )
    plan = forms.ModelChoiceField(Plan.objects.all(), label=_("Plan"), required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if conf.get(conf.PLAN_OF_REQUEST) is None and "whom" not in self.fields:  # then rows have all plans
            self.fields["plan"].widget = forms.HiddenInput()
        self.order_fields(self.field_order or ["resource", "plan"])


class EntityResetForm(EntityForm, RequiredReasonForm):
    """Which usage of an entity is reset, and why."""


class EntityTopUpForm(EntityForm, TopUpForm):
    """How much credit of which limit of an entity."""

    field_order = ["resource", "plan", *TopUpForm.field_order]


class EntityBoostForm(EntityForm, BoostForm):
    """How much more of which resource an entity gets, and until when."""

    field_order = ["resource", "plan", *BoostForm.field_order]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["resource"].help_text = gettext("Leave empty for every resource that limits the client.")


class GrantForm(EntityBoostForm):
    """Who gets the boost, and of what."""

    whom = forms.ChoiceField(label=_("Who"), choices=Boosted.choices, initial=Boosted.ENTITY, widget=forms.RadioSelect)
    entity = forms.CharField(
        label=_("Client"),
        max_length=255,
        required=False,
        strip=False,
        validators=[validate_identifier],
        help_text=_("The identifier in requests, such as “user:42” or “tenant:acme”, or its name."),
        widget=ClientInput,
    )
    field_order = ["whom", "entity", *EntityBoostForm.field_order]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        mean_initial(self, "entity")

    def clean_entity(self) -> str:
        """The identifier of the client, also where its name was entered."""
        text: str = self.cleaned_data["entity"]
        return client_in(self, "entity") if self.cleaned_data.get("whom") == Boosted.ENTITY else text

    def clean(self) -> dict[str, Any]:
        """Require what the choice needs."""
        cleaned: dict[str, Any] = super().clean() or {}
        needed = cleaned.get("whom")
        if needed in self.fields and not cleaned.get(needed) and needed not in self.errors:
            self.add_error(needed, self.fields[needed].error_messages["required"])
        return cleaned

    def policies(self) -> QuerySet[Policy]:
        """The permanent policies that are boosted, if that is not about one entity."""
        whom = self.cleaned_data["whom"]
        policies = Policy.objects.filter(valid_from=None, weekly_hours="", effect="limits", enforcement="enforce")
        if whom == Boosted.RESOURCE:
            policies = policies.filter(resource=self.cleaned_data["resource"])
        if whom == Boosted.PLAN:
            policies = policies.filter(plan=self.cleaned_data["plan"])
        return policies.select_related("resource", "entity", "plan").prefetch_related("limits")

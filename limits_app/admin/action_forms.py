"""What an action asks before it is done."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.moments import checked_moment
from limits_app.admin.primary_keys import Autocomplete
from limits_app.models import Policy, Resource
from limits_app.models.validators import validate_identifier, validate_text

if TYPE_CHECKING:
    from datetime import datetime

    ResourceChoice = forms.ModelChoiceField[Resource]
else:
    ResourceChoice = forms.ModelChoiceField  # it takes no parameter when the code runs

__all__ = ["BoostForm", "GrantForm", "ReasonForm", "RequiredReasonForm", "RevertForm", "TopUpForm", "of_resource"]

_MINUTE: Final = "%Y-%m-%dT%H:%M"


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


class RequiredReasonForm(ReasonForm):
    """Why it is done, which has to be said."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["reason"].required = True


class RevertForm(ReasonForm):
    """Why a change is taken back, and whether later ones are too."""

    force = forms.BooleanField(label=_("Also if it was changed since, which undoes the later changes"), required=False)


class BoostForm(RequiredReasonForm):
    """How much more, and until when."""

    factor = forms.DecimalField(
        label=_("Times as much"),
        min_value=Decimal("1.01"),
        max_value=1000,
        decimal_places=2,
        initial=2,
        help_text=_("By what each limit that holds now is multiplied."),
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
        """Refuse a boost that has ended, or ends when no calendar goes on."""
        until = checked_moment(self.cleaned_data["until"], self.fields["until"].error_messages["invalid"])
        if until <= timezone.now():
            raise ValidationError(gettext("A boost ends in the future."))
        return until


class TopUpForm(RequiredReasonForm):
    """How much credit of which limit."""

    key = forms.CharField(label=_("Limit"), max_length=64, help_text=_("Its key, such as “tpm”."))
    amount = forms.DecimalField(label=_("Amount"), min_value=Decimal("0.001"), max_digits=15, decimal_places=3)
    field_order = ["key", "amount", "reason"]


class GrantForm(BoostForm):
    """Who gets the boost, and of what."""

    entity = forms.CharField(
        label=_("Entity"),
        max_length=255,
        strip=False,
        validators=[validate_identifier],
        help_text=_("As requests name it, such as “user:42” or “tenant:acme”. Case and spaces count."),
    )
    field_order = ["entity", "resource", "factor", "until", "reason"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["resource"] = _resource(required=False)
        self.order_fields(self.field_order)


def of_resource(form: type[forms.Form]) -> type[forms.Form]:
    """The same form, which asks for a resource too."""

    class OfResource(form):  # type: ignore[misc, valid-type]  # a class made of another
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.fields["resource"] = _resource(required=True)
            self.order_fields(["resource"])

    return OfResource


def _resource(*, required: bool) -> ResourceChoice:
    """Find a resource by typing."""
    return ResourceChoice(
        Resource.objects.all(),
        label=_("Resource"),
        required=required,
        help_text="" if required else _("Leave it empty for all resources."),
        widget=Autocomplete(Policy._meta.get_field("resource"), admin.site),
    )

"""Forms of the admin, their fields and widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminSplitDateTime, AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db import models
from django.forms import SplitDateTimeField
from django.forms.fields import InvalidJSONInput
from django.urls import reverse
from django.utils.html import escape
from django.utils.timezone import is_naive
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.own_blocks import BlockForm
from limits_app.engine import limit_body, parse_amount, parse_seconds
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import RateLimitAlgorithm
from limits_app.models import Limit
from limits_app.models.policy_rules import weakened
from limits_app.models.validators import nested_too_deeply, validate_json
from limits_app.services.display import amount
from limits_app.services.limit_fields import FIELDS, LimitKind, join, split
from limits_app.services.policy_warnings import left_without


class JSONField(forms.JSONField):
    """A JSON field that also rejects NaN, deep nesting and huge numbers, which Django's field does not handle."""

    def to_python(self, value: Any) -> Any:
        """Parse the text; raises ValidationError with the allowed values."""
        try:
            parsed = super().to_python(value)
        except RecursionError:
            raise nested_too_deeply() from None
        except ValueError:
            raise ValidationError(_("A number in the JSON is too long: use a string.")) from None
        validate_json(parsed)
        return parsed

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return the text as it was typed."""
        return InvalidJSONInput(data or "")


def checked_datetime(moment: datetime, problem: Any) -> datetime:
    """Give a moment in UTC, as databases keep it; ValidationError with the problem where UTC has none such."""
    try:
        return moment if is_naive(moment) else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValidationError(problem) from error


class DateTimeWidget(AdminSplitDateTime):
    """Shows a datetime outside the range of the site's time zone as the nearest one in it."""

    def decompress(self, value: datetime | None) -> tuple[date | None, time | None]:
        """Give the date and the time."""
        try:
            return super().decompress(value)
        except OverflowError:
            begins = value is not None and value.year == 1
            return (date.min, time.min) if begins else (date.max, time(23, 59, 59))


class DateTimeFormField(SplitDateTimeField):
    """A datetime in the site's time zone that databases can store."""

    def compress(self, data_list: Any) -> datetime | None:
        """Give the moment, in UTC."""
        moment = super().compress(data_list)
        return None if moment is None else checked_datetime(moment, self.error_messages["invalid_date"])


_MOST_DIGITS: Final = 18
"""A primary key has 64 bits."""


def is_primary_key(text: str) -> bool:
    """Whether a text can be the primary key of a row."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


class Autocomplete(AutocompleteSelect):
    """An autocompletion widget that can render any submitted key again, and finds rows by the names that lists show."""

    def get_url(self) -> str:
        """The address of what it finds."""
        model = self.field.remote_field.model._meta.model_name
        return reverse(f"{self.admin_site.name}:limits_app_{model}_autocomplete")

    def optgroups(self, name: str, value: Sequence[str], attrs: dict[str, Any] | None = None) -> Any:
        """Give the chosen row as an option, if the key can be one."""
        return super().optgroups(name, [key for key in value if is_primary_key(key)], attrs)


class AmountFormField(forms.DecimalField):
    """An amount as people write it, such as 1000, 1,000,000 or 1M."""

    default_error_messages = {"invalid": _("Write a number, such as 1000, 2.5, 1,000,000 or 1M.")}
    read: Callable[[str], float] = staticmethod(parse_amount)

    def to_python(self, value: Any) -> Any:
        """Read the text; ValidationError says what to write instead."""
        with suppress(InvalidLimit):
            value = str(self.read(value.strip())) if isinstance(value, str) and value.strip() else value
        return super().to_python(value)


class SecondsField(AmountFormField):
    """Seconds, such as 60, or a time such as 1 min or 2h."""

    default_error_messages = {"invalid": _("Write seconds, such as 60, or a time such as 1 min, 2h or 1d.")}
    read = staticmethod(parse_seconds)


LIMIT_FIELDS: Final[tuple[tuple[str, ...], ...]] = (
    ("kind", "key", "capacity", "window_seconds", "period", "algorithm"),
    ("burst", "time_zone", "starts", "session_seconds", "max_hold_seconds", "shared", "soft", "keep"),
)
"""The rows of fields; those that most limits need come first."""

_ALGORITHM_HELP: Final = _(
    "Sliding window: never more than the capacity in the time. Fixed window: up to twice as much where two windows "
    "meet. Token bucket, GCRA and leaky bucket: up to the capacity and the burst; they allow the same, but a leaky "
    "bucket does not refund unused amounts. Leave empty for a sliding window for requests, and a token bucket for "
    "units. Only for units and requests."
)


def _number(name: str, form_class: type[AmountFormField]) -> Any:
    widget = forms.TextInput(attrs={"size": 7, "inputmode": "decimal"})
    return FIELDS[name].formfield(form_class=form_class, widget=widget)


def _short_text() -> forms.TextInput:
    return forms.TextInput(attrs={"size": 12})


class LimitForm(forms.ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """The fields of a limit, split from its text and joined to it, with numbers as people write them."""

    kind = FIELDS["kind"].formfield()
    capacity = _number("capacity", AmountFormField)
    window_seconds = _number("window_seconds", SecondsField)
    algorithm = FIELDS["algorithm"].formfield(help_text=_ALGORITHM_HELP)
    burst = _number("burst", AmountFormField)
    max_hold_seconds = _number("max_hold_seconds", SecondsField)
    period = FIELDS["period"].formfield()
    time_zone = FIELDS["time_zone"].formfield(widget=_short_text())
    starts = FIELDS["starts"].formfield(widget=_short_text())
    session_seconds = _number("session_seconds", SecondsField)
    soft = FIELDS["soft"].formfield()
    keep = FIELDS["keep"].formfield(widget=_short_text())

    class Meta:
        widgets = {"key": _short_text()}
        help_texts = {name: field.help_text for name, field in FIELDS.items()}  # of read-only pages

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.text:
            self.initial = {**split(self.instance), **self.initial}
        if self.instance.text and self.initial["capacity"] is None and "capacity" in self.fields:
            problem = gettext("The stored limit %(limit)s is invalid and has no effect: enter it again.")
            # The admin shows help texts without escaping them.
            self.fields["capacity"].help_text = problem % {"limit": escape(self.instance.notation())}

    def clean(self) -> dict[str, Any] | None:
        """Join the fields; for requests without an algorithm and a burst to a sliding window: it never allows more."""
        cleaned = super().clean()
        values = self.cleaned_data
        if values.get("kind") == LimitKind.CALL and not values.get("algorithm") and values.get("burst") is None:
            values["algorithm"] = RateLimitAlgorithm.SLIDING_WINDOW.value
        unasked = {name: field.get_default() for name, field in FIELDS.items() if name not in self.fields}
        self.instance.text = ""
        try:
            noted = join(unasked | {name: value for name, value in values.items() if name in FIELDS})
        except ValidationError as error:
            self.add_error(None, error)
        else:
            if noted is not None:
                values["key"], self.instance.text = noted.limit.key, limit_body(noted.limit)
        return cleaned


_Readable = Callable[[Limit], Any]


def _readable(name: str) -> _Readable:
    field: Any = FIELDS[name]

    @admin.display(description=field.verbose_name, boolean=isinstance(field, models.BooleanField))
    def written(limit: Limit) -> Any:
        value = split(limit)[name]
        if isinstance(value, bool):
            return value
        if isinstance(value, Decimal):
            return amount(float(value))
        return dict(field.flatchoices).get(value, value) or "-"

    written.__name__ = name  # by which the admin finds what a field is about
    return written


READABLE: Final[Mapping[str, _Readable]] = {name: _readable(name) for name in FIELDS}
"""The fields of a limit as people read them, for users who may not change it."""


def readable(fields: Iterable[Iterable[str]]) -> tuple[tuple[str | _Readable, ...], ...]:
    """Return the fields of a limit for users who may not change it."""
    return tuple(tuple(READABLE.get(name, name) for name in line) for line in fields)


class PolicyForm(BlockForm):
    """Asks for confirmation before a policy in force is no longer enforced, or for fewer entities."""

    confirm_weaker = forms.BooleanField(
        label=_("Confirm weaker enforcement"),
        required=False,
        help_text=_("Required to stop enforcing a policy, or to reduce its rollout."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._before = {name: getattr(self.instance, name) for name in ("enforcement", "rollout_percent")}

    def clean(self) -> dict[str, Any] | None:
        """Reject the change without the confirmation."""
        cleaned = super().clean()
        values = {**self._before, **self.cleaned_data}
        if self.instance.pk and not values.get("confirm_weaker") and (why := weakened(self._before, values)):
            advice = gettext("To confirm, tick the box. To test other limits without changing these, add a candidate.")
            self.add_error("confirm_weaker", f"{why} {left_without(self.instance)} {advice}")
        return cleaned


class ResourceForm(forms.ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """A store that was removed from the settings stays selected until another one is chosen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "store" in self.fields:
            default = _("the default one (%(alias)s)") % {"alias": conf.get(conf.STORE)}
            aliases = dict.fromkeys([*conf.get(conf.STORES), *filter(None, [self.instance.store])])
            self.fields["store"].widget = forms.Select(choices=[("", default), *zip(aliases, aliases, strict=True)])

"""The rows of the form for limits: a number, a unit and a period each, which are read as the text of a limit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.admin.action_forms import ReasonForm
from limits_app.admin.forms import AmountFormField
from limits_app.engine import amount_text, parse_limit
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import LimitDefinition
from limits_app.services.limit_sentences import BILLING_MONTH, PERIODS, SimpleAmount, SimpleLimit, Who, unit_key
from limits_app.services.limit_words import burst_in_words, period_in_words

_FEWEST_ROWS: Final = 3
_MOST_ROWS: Final = 10
ROW_FIELDS: Final = ("number", "unit", "per")
_THOUSANDS: Final = re.compile(r"[0-9]{1,3}([.][0-9]{3})+", re.ASCII)
_NUMBER_ERROR: Final = _("Enter a number, such as 60, 1,000 or 1M.")


class NumberField(AmountFormField):
    """A number that says the same in every language: “1.000” is a thousand in some, and one in others."""

    def to_python(self, value: Any) -> Any:
        """Read the text; ValidationError says what to write instead."""
        if isinstance(value, str) and _THOUSANDS.fullmatch(value.strip()):
            raise ValidationError(_NUMBER_ERROR)
        return super().to_python(value)


class LimitRowsForm(ReasonForm):
    """A form with rows of a number, a unit and a period, at least as many as the limit that is changed has limits."""

    def __init__(self, *args: Any, instance: SimpleLimit | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._before = instance
        periods = [*PERIODS, *_other_periods(instance)]
        for row in range(1, self._row_count() + 1):
            self.fields[f"number_{row}"] = NumberField(
                label=_("Number"),
                required=False,
                min_value=Decimal("0.000001"),
                error_messages={"invalid": _NUMBER_ERROR, "min_value": _NUMBER_ERROR},
                widget=forms.TextInput(attrs={"size": 9, "inputmode": "decimal", "autocomplete": "off"}),
            )
            self.fields[f"unit_{row}"] = forms.CharField(
                label=_("Unit"),
                max_length=64,
                required=False,
                initial=_("requests"),
                widget=forms.TextInput(attrs={"list": "limits-units", "size": 12, "autocomplete": "off"}),
            )
            self.fields[f"per_{row}"] = forms.ChoiceField(
                label=_("Period"), choices=periods, required=False, initial="min"
            )

    def _row_count(self) -> int:
        filled = 0 if self._before is None else len(self._before.limits) + 1
        sent = [int(name[7:]) for name in self.data if name.startswith("number_") and name[7:].isdecimal()]
        return max(_FEWEST_ROWS, min(max(sent, default=0), _MOST_ROWS), filled)

    @property
    def rows(self) -> list[list[forms.BoundField]]:
        """The fields of each row: number, unit, period."""
        numbers = [name.removeprefix("number_") for name in self.fields if name.startswith("number_")]
        return [[self[f"{name}_{number}"] for name in ROW_FIELDS] for number in numbers]

    @property
    def has_more(self) -> bool:
        """Whether a row beside the first one is filled in, or has an error."""
        return any(
            number.value() or any(field.errors for field in (number, *others)) for number, *others in self.rows[1:]
        )

    def _limits(self, cleaned: Mapping[str, Any]) -> Iterator[str]:
        """The texts of the limits in the rows; each error is shown at its field."""
        keys = set[str]()
        for number, unit, per in self.rows:
            value = cleaned.get(number.name)
            if value is None or per.name not in cleaned:
                continue
            text = SimpleAmount(
                float(value) if value % 1 else int(value), cleaned.get(unit.name) or "", cleaned[per.name]
            )
            try:
                limit = parse_limit(text.text).limit
            except InvalidLimit:
                self.add_error(*self._problem(number.name, unit.name, text))
                continue
            if limit.key in keys:
                problem = gettext(
                    "There is another limit of “%(unit)s” above: change that one, or choose another unit."
                )
                self.add_error(unit.name, problem % {"unit": text.unit or gettext("requests")})
            keys.add(limit.key)
            if text.per == BILLING_MONTH and cleaned.get("who") == Who.TOGETHER:
                self.add_error(per.name, gettext("All clients together have no billing date: choose a calendar month."))
            yield text.text

    @staticmethod
    def _problem(number: str, unit: str, amount: SimpleAmount) -> tuple[str, str]:
        """The field that an invalid amount is wrong in, and what to write there."""
        with suppress(InvalidLimit):
            parse_limit(f"{unit_key(amount.unit)}=1:permits")
            if amount.number % 1:
                return number, gettext("Enter a whole number.")
            return number, gettext("Enter another number: this one is too large, or less than the burst of the limit.")
        return unit, gettext("A unit is one word of letters and digits, such as “tokens”.")


def initial_rows(limit: SimpleLimit) -> dict[str, Any]:
    """The values of the fields of rows that stand for the limits of a limit."""
    initial: dict[str, Any] = {}
    for row, noted in enumerate(limit.noted, 1):
        simple = SimpleAmount.of(noted.limit)
        initial |= {
            f"number_{row}": amount_text(simple.number),
            f"unit_{row}": simple.unit,
            f"per_{row}": simple.per,
        }
    return initial


def _other_periods(limit: SimpleLimit | None) -> Iterator[tuple[str, str]]:
    """The periods of the limits that are changed, as far as the form does not offer them anyway."""
    for noted in () if limit is None else limit.noted:
        simple = SimpleAmount.of(noted.limit)
        if simple.per not in dict(PERIODS):
            yield simple.per, _period_label(noted.limit)


def _period_label(limit: LimitDefinition) -> str:
    """For example “per minute, with bursts”: a period that was chosen elsewhere, with what makes it another one."""
    notes = [period_in_words(limit)]
    zone = getattr(limit, "time_zone", None)
    if getattr(limit, "period", None) and zone != timezone.get_default_timezone_name():
        notes.append(str(zone))
    if hasattr(limit, "algorithm"):
        notes.append(gettext("with bursts") if burst_in_words(limit) else gettext("without bursts"))
    if limit.soft:
        notes.append(gettext("only reported"))
    return ", ".join(notes)

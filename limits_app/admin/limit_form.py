"""One limit in the form of its policy, or of a member of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin

from limits_app.admin.figures import amount
from limits_app.models import Limit

if TYPE_CHECKING:
    LimitModelForm = forms.ModelForm[Limit]
else:
    LimitModelForm = forms.ModelForm  # it takes no parameter when the code runs

__all__ = ["LIMIT_FIELDS", "READABLE", "LimitForm", "readable"]

LIMIT_FIELDS: Final[tuple[tuple[str, ...], ...]] = (
    ("kind", "key", "capacity", "window_seconds", "period", "algorithm"),
    ("burst", "session_seconds", "time_zone", "max_hold_seconds", "shared", "soft"),
)
"""What stands beside each other; what most limits need comes first."""

_NUMBERS: Final = ("capacity", "window_seconds", "burst", "max_hold_seconds", "session_seconds")

_Readable = Callable[[Limit], str]


class LimitForm(LimitModelForm):
    """With numbers as people write them: 10, not 10.000."""

    class Meta:
        widgets = {name: forms.TextInput(attrs={"size": 12}) for name in ("key", "time_zone")} | {
            name: forms.TextInput(attrs={"size": 7, "inputmode": "decimal"}) for name in _NUMBERS
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in _NUMBERS:
            value = self.initial.get(name)
            if isinstance(value, Decimal):
                self.initial[name] = f"{value:f}".rstrip("0").rstrip(".")


def _readable(name: str) -> _Readable:
    def written(limit: Limit) -> str:
        number = getattr(limit, name)
        return "-" if number is None else amount(number)

    field: Any = Limit._meta.get_field(name)
    written.__name__ = name  # by which the admin finds what a field is about
    return admin.display(description=field.verbose_name)(written)


READABLE: Final[Mapping[str, _Readable]] = {name: _readable(name) for name in _NUMBERS}
"""The same for who may only look."""


def readable(fields: Iterable[Iterable[str]]) -> tuple[tuple[str | _Readable, ...], ...]:
    """Fields as they are for who may only look."""
    return tuple(tuple(READABLE.get(name, name) for name in line) for line in fields)

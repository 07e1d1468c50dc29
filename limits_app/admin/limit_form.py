"""One limit in the form of its policy."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from django import forms

from limits_app.models import Limit

if TYPE_CHECKING:
    LimitModelForm = forms.ModelForm[Limit]
else:
    LimitModelForm = forms.ModelForm  # it takes no parameter when the code runs

__all__ = ["LimitForm"]

_NUMBERS: Final = ("capacity", "window_seconds", "burst", "max_hold_seconds", "session_seconds")


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

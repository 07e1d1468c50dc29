"""A form field for JSON that answers whatever is typed with a clear error."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext as _

from limits_app.models.validators import validate_json

__all__ = ["JSONField"]


class JSONField(forms.JSONField):
    """Refuses what Django's own field lets through to the database, or fails on: NaN, endless nesting, huge numbers."""

    def to_python(self, value: Any) -> Any:
        """Parse the text; ValidationError says what to write instead."""
        try:
            parsed = super().to_python(value)
        except RecursionError:
            raise ValidationError(_("This is nested too deeply.")) from None
        except ValueError:
            raise ValidationError(_("A number in it is too long: write it as text.")) from None
        validate_json(parsed)
        return parsed

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Give the text back as it was typed where it cannot be parsed."""
        try:
            parsed = self.to_python(data)
        except ValidationError:
            return InvalidJSONInput(data)
        return InvalidJSONInput(data) if parsed is None else parsed

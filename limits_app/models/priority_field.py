"""The field of configuration that names the priority of requests."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from limits_app.models.fields import ExactTextField
from limits_app.models.validators import validate_priority


def priority_field(help_text: Any) -> ExactTextField:
    """Return a field that names one of LIMITS['PRIORITIES'], or none; the text says what precedes it."""
    return ExactTextField(
        _("priority of requests"),
        max_length=32,
        blank=True,
        default="",
        db_default="",
        validators=[validate_priority],
        help_text=help_text,
    )

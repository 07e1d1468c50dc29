"""System checks of the settings."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from limits_app import conf

__all__ = ["check_settings"]


def check_settings(**options: Any) -> list[CheckMessage]:
    """Report every unknown key and bad value of `LIMITS`."""
    found: list[CheckMessage] = [
        Error(problem.message, hint=problem.hint, id=problem.check_id) for problem in conf.problems()
    ]
    return found or _check_entity_function()


def _check_entity_function() -> list[CheckMessage]:
    try:
        conf.entity_function()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="Name a function that takes a request.", id="limits_app.E018")]
    return []

"""Secrets: what a config names instead of holding it, looked up when the config is read."""

from __future__ import annotations

import os
from collections.abc import Mapping

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from limits_app.models.validators import is_secret_reference

__all__ = ["looked_up"]


def looked_up(config: Mapping[str, object], whose: str) -> dict[str, object]:
    """A copy of a config with what it refers to; ImproperlyConfigured says what is missing, and to whom."""
    return {key: _value(value, f"{whose} needs for {key!r}") for key, value in config.items()}


def _value(value: object, need: str) -> object:
    if isinstance(value, list):
        return [_value(item, need) for item in value]
    if not isinstance(value, Mapping):
        return value
    if not is_secret_reference(value):
        return {key: _value(item, need) for key, item in value.items()}
    [(kind, name)] = value.items()
    if kind == "env":
        if name not in os.environ:
            raise ImproperlyConfigured(f"{need} the environment variable {name}, which is not set")
        return os.environ[name]
    if not hasattr(settings, name):
        raise ImproperlyConfigured(f"{need} the setting {name}, which there is not")
    return getattr(settings, name)

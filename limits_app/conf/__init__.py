"""The only reader of settings: the dict `LIMITS`, parsed into frozen values.

`get(MAP_MEGABYTES)` returns the current value, or the default if the key, the dict or Django's settings are missing.
Values are parsed again when `settings.LIMITS` is another object, so `override_settings` takes effect immediately;
changing the dict in place has no effect.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from django.conf import ENVIRONMENT_VARIABLE
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from limits_app.conf.parsers import (
    ALL_USAGE,
    Exempt,
    Exporter,
    HeaderStyle,
    Network,
    OnUnavailable,
    OnUnresolved,
    RefusalHandler,
    StoreKind,
    StoreSettings,
    UnknownKeys,
    Unpriced,
    parsed_network,
)
from limits_app.conf.table import *  # noqa: F403 - every key, which the table names once
from limits_app.conf.table import KEYS, STORE, STORES, SettingKey, T
from limits_app.engine import shown


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """An error in the settings, and how to correct it."""

    check_id: str
    message: str
    hint: str | None = None


def get(key: SettingKey[T]) -> T:
    """Return the current value of a key; ImproperlyConfigured if `LIMITS` is invalid."""
    value: T = current()[key.name]
    return value


def current() -> Mapping[str, Any]:
    """Return the current values by the names of their keys; raises ImproperlyConfigured as `get` does."""
    try:
        raw: object = django_settings.LIMITS
    except (AttributeError, ImproperlyConfigured):
        raw = _raw()
    source, values = _cache.last
    return values if raw is source else _cache.parse(raw)


def store_settings(alias: str | None = None) -> StoreSettings:
    """Return the settings of one store (`None`: the default one), completed from `LIMITS` itself.

    Raises ImproperlyConfigured if the store does not exist.
    """
    name = get(STORE) if alias is None else alias
    stores = get(STORES)
    if name not in stores:
        raise ImproperlyConfigured(_no_such_store(name, stores))
    return stores[name]


def problems() -> list[SettingsProblem]:
    """List all errors of `LIMITS`, unknown keys included."""
    raw = _raw()
    unknown = [name for name in raw if name not in KEYS] if isinstance(raw, Mapping) else []
    return _parse(raw)[1] + [_unknown_key(name) for name in unknown]


def function_of(key: SettingKey[str | T], values: Mapping[str, Any] | None = None) -> T:
    """Return the function that a key names, in `current()` or in `values` that it returned before.

    Raises ImproperlyConfigured if the function cannot be imported.
    """
    reference: str | T = (current() if values is None else values)[key.name]
    if not isinstance(reference, str):
        return reference
    function: T = _imported(key.name, reference)
    return function


@lru_cache
def _imported(name: str, path: str) -> Any:
    try:
        function = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"LIMITS[{name!r}] cannot be imported: {error}") from error
    if not callable(function):
        raise ImproperlyConfigured(f"LIMITS[{name!r}] names {path!r}, which is not a function")
    return function


def _raw() -> object:
    """`settings.LIMITS`; None if it is not set or Django is not configured."""
    try:
        return getattr(django_settings, "LIMITS", None)
    except ImproperlyConfigured:
        if django_settings.configured or os.environ.get(ENVIRONMENT_VARIABLE):
            raise
        return None


class _Cache:
    """The last `settings.LIMITS` object, and the values parsed from it."""

    def __init__(self) -> None:
        self.last: tuple[object, Mapping[str, Any]] = (None, _parse(None)[0])

    def parse(self, raw: object) -> Mapping[str, Any]:
        values, problems = _parse(raw)
        if problems:
            raise ImproperlyConfigured(problems[0].message)
        self.last = (raw, values)  # one assignment, so that threads see a consistent pair
        return values


def _parse(raw: object) -> tuple[Mapping[str, Any], list[SettingsProblem]]:
    """Values by key, with defaults for missing and invalid ones, and the errors."""
    values: dict[str, Any] = {name: key.default for name, key in KEYS.items()}
    problems = []
    settings = raw if isinstance(raw, Mapping) else {}
    if raw is not None and settings is not raw:
        problems.append(SettingsProblem("limits_app.E001", f"LIMITS must be a dict, not {shown(raw)}"))
    for name in KEYS.keys() & settings.keys():
        try:
            values[name] = KEYS[name].parse(settings[name])
        except ValueError as error:
            problems.append(SettingsProblem(KEYS[name].check_id, f"LIMITS[{name!r}]: {error}"))
    if not problems and values["STORE"] not in values["STORES"]:
        problems.append(SettingsProblem(STORE.check_id, _no_such_store(values["STORE"], values["STORES"])))
    values["STORES"] = {alias: _completed(own, values) for alias, own in values["STORES"].items()}
    return values, sorted(problems, key=attrgetter("check_id"))


def _completed(own: StoreSettings, values: Mapping[str, Any]) -> StoreSettings:
    """The settings of a store, completed by those of `LIMITS` for all stores."""
    return replace(
        own,
        state_dir=own.state_dir or values["STATE_DIR"],
        map_megabytes=own.map_megabytes or values["MAP_MEGABYTES"],
        idle_factor=own.idle_factor or values["IDLE_FACTOR"],
    )


def _no_such_store(alias: str, stores: Iterable[str]) -> str:
    return f"LIMITS['STORES'] has no {alias!r}: add it, or use one of {', '.join(map(repr, stores))}"


def _unknown_key(name: object) -> SettingsProblem:
    close = difflib.get_close_matches(str(name).upper(), KEYS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"The keys are {', '.join(KEYS)}."
    return SettingsProblem("limits_app.E002", f"LIMITS has an unknown key {shown(name)}, which has no effect", hint)


_cache: Final = _Cache()

"""What can be said of a policy from code besides its limits: the options, their defaults, and what each must be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from django.utils import timezone

from limits_app.conf import OnUnavailable
from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidLimit
from limits_app.models import Enforcement, PolicyEffect
from limits_app.models.moments import as_setting

__all__ = ["PolicyOptions", "all_options", "checked_moment"]


class PolicyOptions(TypedDict, total=False):
    """What a policy says besides its limits; the names are those of the model, where each is explained.

    `effect` is `limits`, or `blocked` or `unlimited`, which have no limits.
    `extends` adds the limits to those of the next broader policy; `shared` are the keys of which there is one bucket
    for everybody. `enforcement` is `enforce`, `shadow` or `off`, for `rollout_percent` of the entities.
    `on_unavailable` is `block`, `allow` or `local`, for while the store is down; empty: as the settings say.
    With dates or weekly hours it is a policy beside the one that always holds; with an end alone it begins now.
    """

    effect: str
    extends: bool
    shared: Collection[str]
    enforcement: str
    rollout_percent: int
    on_unavailable: str
    valid_from: datetime | None
    valid_until: datetime | None
    weekly_hours: str
    time_zone: str
    reason: str
    actor: str


_DEFAULTS: Final[Mapping[str, Any]] = PolicyOptions(
    effect="limits",
    extends=False,
    shared=(),
    enforcement="enforce",
    rollout_percent=100,
    on_unavailable="",
    valid_from=None,
    valid_until=None,
    weekly_hours="",
    time_zone="",
    reason="",
    actor="",
)


def _one_of(*words: str) -> tuple[Callable[[object], bool], str]:
    """The test of an option that is one of some words, and what it expects."""
    return lambda value: value in words, f"one of {', '.join(word or 'empty' for word in words)}"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _is_percent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100


def _are_several(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)


_EXPECTED: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "effect": _one_of(*PolicyEffect.values),
    "extends": (_is_truth, "True or False"),
    "shared": (_are_several, "several keys, such as ['tpm']"),
    "enforcement": _one_of(*Enforcement.values),
    "rollout_percent": (_is_percent, "a whole number from 0 to 100"),
    "on_unavailable": _one_of("", *map(str, OnUnavailable)),
    **dict.fromkeys(("weekly_hours", "time_zone", "reason", "actor"), (_is_text, "text")),
}
"""What options must be that are no moments."""


def all_options(options: PolicyOptions) -> dict[str, Any]:
    """Give all options, those that were not said as they are by default; an end without a beginning begins now.

    Raises InvalidLimit that names the option and what it must be, TypeError for one that there is not.
    """
    fields: dict[str, Any] = {**_DEFAULTS, **options}
    unknown = fields.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} is no option of a policy; there are {', '.join(_DEFAULTS)}")
    for name, (is_sound, expected) in _EXPECTED.items():
        if not is_sound(fields[name]):
            raise InvalidLimit(f"{name} must be {expected}, not {shown(fields[name])}")
    for name in ("valid_from", "valid_until"):
        if fields[name] is not None:
            fields[name] = checked_moment(name, fields[name])
    if fields["valid_until"] is not None and fields["valid_from"] is None:
        fields["valid_from"] = timezone.now()
    return fields


def checked_moment(name: str, moment: object) -> datetime:
    """Give a moment as the site's settings have it; InvalidLimit where it is none."""
    if not isinstance(moment, datetime):
        raise InvalidLimit(f"{name} must be a datetime, not {shown(moment)}")
    try:
        return as_setting(moment if moment.tzinfo is None else moment.astimezone(UTC))
    except OverflowError:
        raise InvalidLimit(f"{name} must be a moment of the years 1 to 9999 in UTC too, not {shown(moment)}") from None

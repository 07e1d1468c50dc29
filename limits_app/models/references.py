"""References: secrets that a config names, as `{"env": "NAME"}` or `{"setting": "NAME"}`, and never holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

__all__ = ["MEMBER", "is_reference", "validate_config"]

MEMBER: Final = "member"
"""What the name of a member stands under in the config of an acquisition."""

_KINDS: Final = ("env", "setting")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(
    r"(passwor[dt]|passwd|passphrase|pwd|secret|token|bearer|credentials?|auth|authorization|dsn|"
    r"(api|access|private|secret|signing|auth)_?key)$"
)


def is_reference(value: Mapping[str, object]) -> bool:
    """Whether an object in a config stands for a secret."""
    return len(value) == 1 and next(iter(value)) in _KINDS


def validate_config(config: object) -> None:
    """Refuse secrets that are written down, references that cannot be, and the key of the member's own name."""
    if not isinstance(config, Mapping):
        return  # which is said elsewhere
    if MEMBER in config:
        raise ValidationError(_("“member” is the name of the member itself: choose another key."))
    for key, value in _walk(config):
        if isinstance(value, Mapping) and is_reference(value):
            [name] = value.values()
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValidationError(
                    _('“%(key)s” refers to nothing: write {"env": "NAME"} or {"setting": "NAME"}.'), params={"key": key}
                )
        elif isinstance(value, str) and _SECRET.search(key.lower().replace("-", "_")):
            raise ValidationError(
                _("Do not write secrets down: name the variable or setting that has “%(key)s”, as %(how)s."),
                params={"key": key, "how": '{"env": "NAME"}'},
            )


def _walk(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Everything in a config, and the key under which it stands."""
    if isinstance(value, list):
        for item in value:
            yield key, item
            yield from _walk(item, key)
    elif isinstance(value, Mapping) and not (key and is_reference(value)):
        for name, item in value.items():
            yield name, item
            yield from _walk(item, name)

"""Where the admin takes primary keys from a request and asks the database before it looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.widgets import AutocompleteSelect

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Autocomplete", "is_primary_key"]

_MOST_DIGITS: Final = 18
"""A primary key has 64 bits."""


def is_primary_key(text: str) -> bool:
    """Whether a text can be the primary key of a row."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


class Autocomplete(AutocompleteSelect):
    """Finds a related row by typing, and shows a refused form again whatever was sent as its key."""

    def optgroups(self, name: str, value: Sequence[str], attrs: dict[str, Any] | None = None) -> Any:
        """Give the chosen row as an option, if the key can be one."""
        return super().optgroups(name, [key for key in value if is_primary_key(key)], attrs)

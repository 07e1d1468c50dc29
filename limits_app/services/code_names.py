"""Resources that decorators in code name, which need no row: forms suggest them before anything has used them."""

from __future__ import annotations

from typing import Final

_MOST: Final = 1000
"""How many are kept, since code can make names while it runs."""

_names: Final = set[str]()


def name_in_code(resource: str) -> None:
    """Note that code names a resource."""
    if len(_names) < _MOST:
        _names.add(resource)


def names_in_code() -> frozenset[str]:
    """The resources that code of this process has named, as far as its modules are imported."""
    return frozenset(_names)

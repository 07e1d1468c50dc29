"""Which limits file an object belongs to: the one that made it or took it over."""

from __future__ import annotations

from typing import Any

from limits_app.models import Manifest

__all__ = ["managed"]


def managed(name: str, using: str) -> tuple[dict[str, set[Any]], dict[tuple[str, Any], str]]:
    """The primary keys that a file manages by kind, and those of other files, with their names."""
    mine: dict[str, set[Any]] = {}
    others: dict[tuple[str, Any], str] = {}
    for manifest in Manifest._default_manager.using(using).all():
        for kind, keys in manifest.objects_of.items():
            if manifest.name == name:
                mine[kind] = {*keys}
            else:
                others |= {(kind, key): manifest.name for key in keys}
    return mine, others

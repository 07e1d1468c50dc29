"""What a change changed, one line for each field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from limits_app.models.snapshots import Snapshot

__all__ = ["Change", "Difference", "differences"]

_NOTHING: Final[tuple[Any, ...]] = (None, "", False, [], {})
_NAMES: Final = ("key", "name")


class Change(StrEnum):
    """What became of a field."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not as it was; `field` names parts too, as in `limits tpm: capacity`."""

    field: str
    change: Change
    before: Any
    after: Any


def differences(before: Snapshot | None, after: Snapshot | None) -> list[Difference]:
    """Give the fields that differ, in the order of the object; what said nothing before was added, and so on."""
    old, new = _flat(before or {}), _flat(after or {})
    found = []
    for field in old | new:
        was, became = old.get(field), new.get(field)
        if was != became and not (was in _NOTHING and became in _NOTHING):
            found.append(Difference(field, _change(was, became), was, became))
    return found


def _change(was: Any, became: Any) -> Change:
    if was is None:
        return Change.ADDED
    return Change.REMOVED if became is None else Change.CHANGED


def _flat(state: Snapshot, within: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field, value in state.items():
        if _are_parts(value):
            for part in value:
                flat |= _flat(part, f"{within}{field} {_name(part)}: ")
        else:
            flat[within + field] = value
    return flat


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and _name(one) for one in value)


def _name(part: Snapshot) -> Any:
    return next((part[name] for name in _NAMES if name in part), None)

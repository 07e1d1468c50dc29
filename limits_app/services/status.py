"""Status: the live state of limits, as one snapshot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from limits_app.core.amounts import Amount
from limits_app.core.limits import Blocked
from limits_app.core.stats import Stats
from limits_app.models import Entity
from limits_app.services.acquiring import fresh

__all__ = ["Status", "status"]


@dataclass(frozen=True, slots=True)
class Status:
    """What is used and left of each limit, by key; the fields of each are those of `LimitSet.get_stats`.

    For a resource as a whole, `entities` says how many known entities were looked at,
    and `used_by_all` what they and the site itself use together.
    """

    resource: str
    entity: str | None
    limits: dict[str, Stats]
    entities: int | None = None
    used_by_all: dict[str, Amount] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The status as plain data, for JSON."""
        return asdict(self)


def status(resource: str, *, entity: str | None = None) -> Status:
    """Read the state of an entity on a resource; without one, of the site itself and of the resource as a whole.

    Each scope is one consistent snapshot; known entities are those with a row in the database. Changes nothing.
    """
    limits = _stats(resource, entity)
    if entity is not None:
        return Status(resource, entity, limits)
    total = {key: _used(stats) for key, stats in limits.items()}
    known = 0
    for identifier in Entity.objects.values_list("identifier", flat=True).iterator():
        known += 1
        for key, stats in _stats(resource, identifier).items():
            total[key] = total.get(key, 0) + _used(stats)
    total.pop(Blocked.key, None)
    return Status(resource, None, limits, known, total)


def _stats(resource: str, entity: str | None) -> dict[str, Stats]:
    return fresh(resource, entity, (), lambda found: found.get_stats())


def _used(stats: Stats) -> Amount:
    used = stats["used"]
    return used if isinstance(used, int | float) else 0

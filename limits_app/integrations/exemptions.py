"""Exemptions: the requests that a URL rule, or LIMITS["EXEMPT"], does not charge."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Any, Final

from limits_app.conf import Exempt
from limits_app.engine.errors import Unresolved
from limits_app.integrations.identity import address_of
from limits_app.models.patterns import Patterns
from limits_app.services.unavailable import without_limits

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

_NO_PATTERNS: Final = Patterns()


@dataclass(frozen=True, slots=True)
class Exemptions:
    """The requests that are not charged, by their user, address, and identities."""

    staff: bool = False
    superusers: bool = False
    groups: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    entities: Patterns = _NO_PATTERNS

    def __bool__(self) -> bool:
        return self.staff or self.superusers or bool(self.groups or self.networks or self.entities)

    @property
    def needs_user(self) -> bool:
        """Whether the user of a request makes a difference."""
        return self.staff or self.superusers or bool(self.groups)

    def apply(self, limits: RequestLimits, names: Collection[str | None]) -> bool:
        """Whether a request is exempt; `names` are the identifiers of its identities. May query the database."""
        return any(name in self.entities for name in names) or self._has_network(limits) or self._has_user(limits)

    def _has_network(self, limits: RequestLimits) -> bool:
        address = address_of(limits.request) if self.networks and not limits.is_over else None
        return address is not None and any(address in network for network in self.networks)

    def _has_user(self, limits: RequestLimits) -> bool:
        user: Any = limits.user if self.needs_user else None
        if not getattr(user, "is_active", False):
            return False
        flags = (self.staff, "is_staff"), (self.superusers, "is_superuser")
        if any(exempt and getattr(user, name, False) for exempt, name in flags):
            return True
        try:
            return bool(self.groups) and not self.groups.isdisjoint(limits.table.access.groups_of(user).values())
        except Unresolved as error:
            without_limits(error)
            return True


@lru_cache(maxsize=8)
def has_exemptions(setting: Exempt) -> bool:
    """Whether LIMITS["EXEMPT"] exempts anyone."""
    return bool(exemptions_of(setting))


@lru_cache(maxsize=8)
def exemptions_of(setting: Exempt) -> Exemptions:
    """Compile LIMITS["EXEMPT"]."""
    return Exemptions(
        setting.staff,
        setting.superusers,
        frozenset(setting.groups),
        setting.networks,
        Patterns(setting.entities),
    )

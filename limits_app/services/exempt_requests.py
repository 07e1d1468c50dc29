"""Exemptions: the requests that a URL rule, or LIMITS["EXEMPT"], does not charge."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final, Protocol

from limits_app.conf import Exempt
from limits_app.engine.errors import Unresolved
from limits_app.models.patterns import Patterns
from limits_app.policies import AccessTable
from limits_app.services.unavailable import without_limits

_NO_PATTERNS: Final = Patterns()


class Requester(Protocol):
    """Who makes a request, as far as exemptions need it; None for a user or an address that is unknown."""

    @property
    def user(self) -> Any: ...

    @property
    def address(self) -> IPv4Address | IPv6Address | None: ...

    @property
    def access(self) -> AccessTable: ...


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

    def apply(self, requester: Requester, names: Collection[str | None]) -> bool:
        """Whether a request is exempt; `names` are the identifiers of its identities. May query the database."""
        return any(name in self.entities for name in names) or self._has_network(requester) or self._has_user(requester)

    def _has_network(self, requester: Requester) -> bool:
        address = requester.address if self.networks else None
        return address is not None and any(address in network for network in self.networks)

    def _has_user(self, requester: Requester) -> bool:
        user: Any = requester.user if self.needs_user else None
        if not getattr(user, "is_active", False):
            return False
        flags = (self.staff, "is_staff"), (self.superusers, "is_superuser")
        if any(exempt and getattr(user, name, False) for exempt, name in flags):
            return True
        try:
            return bool(self.groups) and not self.groups.isdisjoint(requester.access.groups_of(user).values())
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

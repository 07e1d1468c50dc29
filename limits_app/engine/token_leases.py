"""Leases of tokens: acquisitions that another program holds.

The lease of a token is a permit in a separate scope, also where the request takes no other permits. Whatever changes
such an acquisition does so only while its lease is there, in the same step: settling it removes the lease.
"""

from __future__ import annotations

from typing import Final

from limits_app.engine.amounts import MAX_AMOUNT
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.holders import token_holder
from limits_app.engine.keys import LEASE_LEVEL, lease_scope, scope_of
from limits_app.engine.limits import ResourceLimit
from limits_app.engine.periods import HOUR, SECOND_US
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits

LONGEST_LEASE_SECONDS: Final = HOUR
_PREFIX: Final = f"{LEASE_LEVEL}:"
_LIMIT: Final = ResourceLimit("token", MAX_AMOUNT, is_money=False)
"""An extension of a token takes another permit in the scope of its lease."""
LEASE_KEY: Final = f"{_PREFIX}{_LIMIT.key}"
"""The key by which a request takes the lease of its token."""


def lease_limits(resource: str, entity: str | None, lease_us: int) -> ScopedLimits:
    """Return the limit that is the lease of a new token for a request; its scope has the holder in its key.

    Raises InvalidRequest for a lease of less than a second or more than an hour.
    """
    if not SECOND_US <= lease_us <= LONGEST_LEASE_SECONDS * SECOND_US:
        raise InvalidRequest(f"lease must be 1 to {LONGEST_LEASE_SECONDS} seconds, not {lease_us / SECOND_US:g}")
    scope = lease_scope(scope_of(resource, entity), token_holder(lease_us))
    return ScopedLimits(scope, schema_of((_LIMIT,), LONGEST_LEASE_SECONDS * SECOND_US), LEASE_LEVEL, prefix=_PREFIX)

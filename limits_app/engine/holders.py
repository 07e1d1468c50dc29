"""Holders of permits: claims of a process, and tokens, which another program holds and any process may settle.

The holder of a token is 16 bytes, the same in every process: 8 random ones, 1 for the acquisition or 2 for an
extension, 3 random ones of an extension, and the length of the lease in milliseconds. The ninth byte of the holder that
a process makes for a claim is 0.
"""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from limits_app.engine.algorithms import Rule

HOLDER_LENGTH: Final = 16
_KIND_AT: Final = 8
_FIRST: Final = b"\1\0\0\0"
_EXTENSION: Final = 2
_LEASE_AT: Final = 12
_US_PER_MS: Final = 1000


def token_holder(lease_us: int) -> bytes:
    """Return the holder of a new token, whose leases last so many microseconds, in whole milliseconds."""
    return urandom(_KIND_AT) + _FIRST + (lease_us // _US_PER_MS).to_bytes(4, "little")


def extension_holder(holder: bytes) -> bytes:
    """Return the holder of an extension of a token."""
    return holder[:_KIND_AT] + bytes([_EXTENSION]) + urandom(3) + holder[_LEASE_AT:]


def first_holder(holder: bytes) -> bytes:
    """Return the holder of the acquisition that an extension belongs to."""
    return holder[:_KIND_AT] + _FIRST + holder[_LEASE_AT:]


def is_token_holder(holder: object) -> TypeGuard[bytes]:
    """Return whether a holder is that of a token, and not of a claim of a process."""
    return type(holder) is bytes and len(holder) == HOLDER_LENGTH and holder[_KIND_AT] != 0


def is_extension_holder(holder: bytes) -> bool:
    """Return whether the holder of a token is that of an extension."""
    return holder[_KIND_AT] == _EXTENSION


def leased_us(rule: Rule, holder: object) -> int:
    """Return how long a lease of a permit lasts for a holder, in microseconds; the longest hold ends it earlier."""
    if is_token_holder(holder):
        return min(int.from_bytes(holder[_LEASE_AT:], "little") * _US_PER_MS, rule.hold_us)
    return rule.lease_us

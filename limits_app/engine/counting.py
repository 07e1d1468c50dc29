"""Usage counts: how much of each limit was admitted, by scope and hour, counted in the step that admits it.

Stores know entities by digests, but usage is shown by name: so the names in the labels of counts are sealed with the
secret of the site. Equal names give equal texts, so that stores can add up their counts: this is AES in its SIV mode
(RFC 5297), which also detects a wrong key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from limits_app.engine.keys import Scope
from limits_app.engine.periods import HOUR
from limits_app.engine.runtime import present

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

_TAG_LENGTH: Final = 16

HOUR_US: Final = HOUR * 1_000_000

KEPT_HOURS: Final = 8 * 24
"""How many hours a store keeps counts that are not collected."""


class Count(NamedTuple):
    """The amounts admitted for the limits of one scope in one hour; there may be several for the same hour.

    A set without a name has None as `resource`, `hour` is counted from 1970.
    `amounts` are thousandths of units by key, and below 0 where more was refunded than charged since the last
    collection. `shared` marks one bucket for all entities, and `member` is the member of the pool `resource`.
    """

    resource: str | None
    entity: str | None
    shared: bool
    member: str | None
    hour: int
    amounts: Mapping[str, int]


class Batch(NamedTuple):
    """Counts that were collected together; no other batch contains them.

    `is_full` says that the batch has its maximum size, so that there may be more counts.
    """

    name: str
    counts: Sequence[Count]
    is_full: bool


def label_of(scope: Scope, *more: object) -> bytes:
    """Return the fields of a scope that a Count starts with, and further values, as JSON for stores to keep.

    The name of the entity is sealed.
    """
    return json.dumps([scope.resource, seal(scope.entity), scope.shared, scope.member, *more]).encode()


def unsealed(count: Count) -> Count:
    """Return a count that begins with the fields of a label, with the name of its entity."""
    return count._replace(entity=unseal(count.entity))


def hour_of(time_us: int) -> int:
    """Return the hour of a time in microseconds, counted from 1970."""
    return time_us // HOUR_US


def hour_ends(now: int) -> int:
    """Return when the hour of a time ends, in microseconds."""
    return (now // HOUR_US + 1) * HOUR_US


def seal(name: str | None) -> str | None:
    """Return a name as a text that only a process with the same secret can read."""
    if name is None:
        return None
    return _cipher(present().secrets()[0]).encrypt(name.encode("utf-8", "surrogatepass"), None).hex()


def unseal(sealed: str | None) -> str | None:
    """Return the name; a text that another secret has sealed is `unreadable:` and its tag, so that no count is lost."""
    if sealed is None:
        return None
    from cryptography.exceptions import InvalidTag

    stored = bytes.fromhex(sealed)
    for secret in present().secrets():
        try:
            return _cipher(secret).decrypt(stored, None).decode("utf-8", "surrogatepass")
        except InvalidTag:
            continue
    return f"unreadable:{stored[:_TAG_LENGTH].hex()}"


@lru_cache(maxsize=8)
def _cipher(secret: bytes) -> AESSIV:
    """Return the cipher whose key is derived from a secret of the site."""
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # only stores that count usage pay for its import

    return AESSIV(blake2b(secret, digest_size=32, person=b"limits_app label").digest())

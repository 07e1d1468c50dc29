"""Usage counts: how much of each limit was admitted, by scope and hour, counted in the step that admits it.

Stores know entities by digests, but usage is shown by name: so the names in the labels of counts are sealed with the
secret of the site. Equal names give equal texts, so that stores can add up their counts: this is AES in its SIV mode
(RFC 5297), which also detects a wrong key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from limits_app.engine.keys import Scope
from limits_app.engine.periods import HOUR_US
from limits_app.engine.sealing import decrypted, encrypted

_TAG_LENGTH: Final = 16
_LABEL: Final = b"limits_app label"


IDS_LENGTH: Final = 1_000
"""The length of the ids of the last rejected requests in a minute; there are spaces between them."""

BELOW: Final = "\x1f"
"""The text before the plan where amounts are counted for an entity above the client."""

KEPT_HOURS: Final = 8 * 24
"""How many hours a store keeps counts that are not collected."""


class Count(NamedTuple):
    """The amounts admitted for the limits of one scope in one hour; there may be several for the same hour.

    A set without a name has None as `resource`, `hour` is counted from 1970.
    `amounts` are thousandths of units by key, and below 0 where more was refunded than charged since the last
    collection. `shared` marks one bucket for all entities, and `member` is the member of the pool `resource`.
    `plan` is the one by which the entity was served, empty for none; BELOW before it says that the amounts were used by
    entities below this one, and are counted for these too.
    """

    resource: str | None
    entity: str | None
    shared: bool
    member: str | None
    hour: int
    amounts: Mapping[str, int]
    plan: str = ""


class Rejected(NamedTuple):
    """A limit that rejected requests in a minute, which is counted from 1970.

    `bucket` is its kind, and `entity` whose it is: of a member of a pool that member.
    """

    minute: int
    resource: str
    bucket: str
    entity: str
    key: str


class Times(NamedTuple):
    """Number of rejections, the times of the first and last, in seconds since 1970, and ids of requests."""

    number: int
    first: float
    last: float
    ids: str = ""

    def merged(self, other: Times) -> Times:
        """The combination of both; the id of a request that is rejected several times in a row is kept once."""
        ids = self.ids if other.ids == self.ids.partition(" ")[0] else f"{other.ids} {self.ids}".strip()[:IDS_LENGTH]
        return Times(self.number + other.number, min(self.first, other.first), max(self.last, other.last), ids)


RejectionCounts = Mapping[Rejected, Times]
PackedRejection = tuple[int, str, str, str, str, int, float, float, str]
"""The fields of Rejected and of Times."""


class Batch(NamedTuple):
    """Counts and rejections that were collected together; no other batch contains them.

    `is_full` says that the batch has its maximum size, so that there may be more counts.
    """

    name: str
    counts: Sequence[Count]
    is_full: bool
    rejections: RejectionCounts = MappingProxyType({})


def label_of(scope: Scope, *more: object) -> bytes:
    """Return the fields of a scope that a Count starts with, and further values, as JSON for stores to keep.

    The name of the entity is sealed. The values must be hashable.
    """
    before, after = _label_around_entity(scope.resource, scope.shared, scope.member, more)
    sealed = seal(scope.entity)
    return before + (b"null" if sealed is None else b'"%b"' % sealed.encode()) + after


@lru_cache(maxsize=1024)
def _label_around_entity(
    resource: str | None, shared: bool, member: str | None, more: tuple[object, ...]
) -> tuple[bytes, bytes]:
    """The text of a label before and after the sealed name of the entity, which many labels have in common."""
    rest = "".join([f", {json.dumps(value)}" for value in (shared, member, *more)])
    return f"[{json.dumps(resource)}, ".encode(), f"{rest}]".encode()


def unsealed(count: Count) -> Count:
    """Return a count that begins with the fields of a label, with the name of its entity."""
    return count._replace(entity=unseal(count.entity))


def rejection_label(rejected: Rejected) -> Rejected:
    """Return a rejection as stores keep it: the name of the entity is sealed."""
    return rejected._replace(entity=seal(rejected.entity) or "")


def packed_rejections(rejections: RejectionCounts) -> list[PackedRejection]:
    """Return rejections as plain data for stores to keep."""
    return [(*rejection_label(rejected), *times) for rejected, times in rejections.items()]


def unpacked_rejections(rows: Iterable[PackedRejection]) -> dict[Rejected, Times]:
    """Return rejections from plain data; those of the same limit and minute are added up."""
    rejections: dict[Rejected, Times] = {}
    for row in rows:
        minute, resource, bucket, sealed, key, *_ = row
        rejected, times = Rejected(minute, resource, bucket, unseal(sealed) or "", key), Times(*row[5:])
        rejections[rejected] = rejections[rejected].merged(times) if rejected in rejections else times
    return rejections


def hour_of(time_us: int) -> int:
    """Return the hour of a time in microseconds, counted from 1970."""
    return time_us // HOUR_US


def hour_ends(now: int) -> int:
    """Return when the hour of a time ends, in microseconds."""
    return (now // HOUR_US + 1) * HOUR_US


def seal(name: str | None) -> str | None:
    """Return a name as a text that only a process with the same secret can read."""
    return None if name is None else encrypted(name.encode("utf-8", "surrogatepass"), _LABEL).hex()


def unseal(sealed: str | None) -> str | None:
    """Return the name; a text that another secret has sealed is `unreadable:` and its tag, so that no count is lost."""
    if sealed is None:
        return None
    stored = bytes.fromhex(sealed)
    name = decrypted(stored, _LABEL)
    return f"unreadable:{stored[:_TAG_LENGTH].hex()}" if name is None else name.decode("utf-8", "surrogatepass")

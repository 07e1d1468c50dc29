"""Names of scopes: the one place where the key of stored state is built.

A key is `v1:<resource>:<entity>`: the resource's name cannot contain a colon,
and the entity is a digest of fixed length or `-`, so two scopes can never meet in one key
and nothing personal stands in a store in clear.
`*<limit>` after it names a limit that all share, `!<digest>` a request that is admitted once
(with `+<resource>` for each further one that it is for),
and `~` at the end what is only tried.
`><limit>` after it names the line of those who wait for a limit.
`v1:+<pool>:<member>` is the member of a pool, the latter as a digest too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Final

from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidLimit, InvalidRequest

__all__ = [
    "IDEMPOTENCY_LEVEL",
    "Scope",
    "check_entity",
    "check_idempotency_key",
    "check_resource",
    "idempotency_scope",
    "lease_key",
    "line_scope",
    "member_scope",
    "private_scope",
    "scope_of",
    "shadow_scope",
    "shared_scope",
    "short_key",
    "unique_name",
]

RESOURCE_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,63}")
MAX_ENTITY_LENGTH: Final = 255
IDEMPOTENCY_LEVEL: Final = "idempotency"
"""The level of what admits a request once, which is no limit that anybody has set."""
_VERSION: Final = "v1"
_NO_ENTITY: Final = "-"


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose state it is: a resource and an entity (`None`: the site itself, or everybody where it is `shared`),
    under one key. That of a pool's `member` has the name of the pool as its resource.
    """

    key: str
    resource: str | None = None
    entity: str | None = None
    shared: bool = False
    member: str | None = None


def scope_of(resource: str, entity: str | None) -> Scope:
    """Give the scope of an entity on a resource; both are taken as checked."""
    who = _NO_ENTITY if entity is None else _digest(entity)
    return Scope(f"{_VERSION}:{resource}:{who}", resource, entity)


def shared_scope(resource: str, key: str) -> Scope:
    """Give the scope of one limit of a resource that everybody shares.

    Each has a scope of its own, so that policies that share different limits never meet in one record.
    """
    site = scope_of(resource, None)
    return replace(site, key=f"{site.key}*{key}", shared=True)


def member_scope(pool: str, member: str) -> Scope:
    """Give the scope of a member of a pool, which all who are served by it share."""
    return Scope(f"{_VERSION}:+{pool}:{_digest(member)}", pool, shared=True, member=member)


def shadow_scope(scope: Scope) -> Scope:
    """Give the scope in which policies count that are only tried, beside those that are enforced."""
    return replace(scope, key=f"{scope.key}~")


def line_scope(scope: Scope, key: str) -> Scope:
    """Give the scope in which those stand in line who wait for a limit of a scope."""
    return replace(scope, key=f"{scope.key}>{key}")


def idempotency_scope(resource: str, entity: str | None, key: str, *others: str) -> Scope:
    """Give the scope in which it is noted that a request of an entity with an idempotency key was admitted.

    Of a request for several resources it is the same in whatever order they come.
    """
    first, *more = sorted({resource, *others})
    scope = scope_of(first, entity)
    return replace(scope, key=f"{scope.key}!{'+'.join([_digest(key), *more])}")


def private_scope() -> Scope:
    """Give a scope that no other limit set has."""
    return Scope(f"{_VERSION}::{unique_name()}")


def unique_name() -> str:
    """Give a name that nobody else has given or will give."""
    return os.urandom(16).hex()


def check_resource(name: object) -> str:
    """Return a resource's name, or raise InvalidLimit that says what is allowed."""
    if not isinstance(name, str) or not RESOURCE_PATTERN.fullmatch(name):
        raise InvalidLimit(
            f"resource {shown(name)} must be a letter followed by at most 63 letters, digits, '_', '.', '/' or '-'"
        )
    return name


def check_entity(identifier: object) -> str:
    """Return an entity's identifier, or raise InvalidLimit that says what is allowed."""
    if not isinstance(identifier, str) or not 0 < len(identifier) <= MAX_ENTITY_LENGTH:
        raise InvalidLimit(f"entity {shown(identifier)} must be text of 1 to {MAX_ENTITY_LENGTH} characters")
    return identifier


def check_idempotency_key(key: object) -> str:
    """Return an idempotency key, or raise InvalidRequest that says what is allowed."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_ENTITY_LENGTH:
        raise InvalidRequest(f"idempotency key {shown(key)} must be text of 1 to {MAX_ENTITY_LENGTH} characters")
    return key


def short_key(key: str) -> bytes:
    """The key of a scope as 16 bytes, for stores in which long keys cost."""
    return _hashed(key.encode())


def lease_key(scope: bytes, limit: str) -> bytes:
    """The name of the leases of a resource limit in a scope, whose short key it starts with."""
    return scope + b"l" + short_key(limit)[:8]


def _digest(entity: str) -> str:
    return _hashed(entity.encode("utf-8", "surrogatepass")).hex()


def _hashed(text: bytes) -> bytes:
    # Imported when it is wanted: it takes a twentieth of the time of the whole import.
    from hashlib import blake2b

    return blake2b(text, digest_size=16).digest()

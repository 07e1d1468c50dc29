"""Keys of scopes: the one place where the key of stored state is built.

A key is `v1:<resource>:<entity>`: the name of a resource cannot contain a colon, and the entity is a digest of fixed
length or `-`, so that two scopes never share a key, and stores have no personal data in their keys.
`*<limit>` after it names a limit with one bucket for all entities, `!<digest>` a request with an idempotency key
(with `+<resource>` for each further resource of the request, and then `#<digest>` for its amounts), and `~` at the
end policies in shadow mode. `#lease:` and the holder after it name the lease of a token.
`><limit>` after it names the queue of waiters for a limit (with `><digest>!` a change of that queue), and `^` the
cool-down of the upstream of a resource. `#slices` after it names what processes hold of its limits in slices.
`v1:+<pool>:<member>` is the member of a pool, also as a digest.
`v1:=:<entity>` is a total of an entity over all resources, and `v1:=system:<entity>` that of the system.
`#block` after it names the block of the scope for a time, and `#counted` the responses that count for it.
`#values` after it names the bound of all combinations that a URL rule counts for a client.
`@<digest>/` before it names a namespace; the keys of the empty one have nothing before them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from limits_app.engine.amounts import shown, usage_of_units
from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitsError
from limits_app.engine.runtime import present

RESOURCE_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,63}")
MAX_ENTITY_LENGTH: Final = 255
IDEMPOTENCY_LEVEL: Final = "idempotency"
"""The level of the limit that admits an idempotency key once."""
LEASE_LEVEL: Final = "lease"
"""The level of the permit that is the lease of a token."""
BLOCK_LEVEL: Final = "block"
"""The level of a block for a time, which a URL rule begins once its limit was exceeded."""
VALUES_LEVEL: Final = "combinations"
"""The level of the bound of all combinations that a URL rule counts for a client."""
UPSTREAM_LEVEL: Final = "upstream"
"""The level of the cool-down of a resource's upstream."""


class Scope(NamedTuple):
    """A resource and an entity under one key; the entity is None for the site itself, and for all where it is `shared`.

    The scope of a pool's `member` has the name of the pool as its resource. A `total` is over all resources.
    """

    key: str
    resource: str | None = None
    entity: str | None = None
    shared: bool = False
    member: str | None = None
    total: bool = False


def _head() -> str:
    """What keys in the present namespace begin with."""
    namespace = present().namespace().counters
    return f"@{namespace_digest(namespace).hex()}/v1:" if namespace else "v1:"


@lru_cache(maxsize=1024)
def namespace_digest(namespace: str) -> bytes:
    """Return a namespace as 16 bytes, by which stores keep it apart; nothing for the empty one."""
    return _hashed(namespace) if namespace else b""


def digest_in(key: str) -> bytes:
    """Return the digest of the namespace that the key of a scope is in."""
    return bytes.fromhex(key[1 : key.index("/")]) if key.startswith("@") else b""


def scope_of(resource: str, entity: str | None) -> Scope:
    """Return the scope of an entity on a resource; both must be valid."""
    return Scope(f"{_head()}{resource}:{_entity_part(entity)}", resource, entity)


def shared_scope(resource: str, key: str) -> Scope:
    """Return the scope of one limit of a resource with one bucket for all entities.

    Each such limit has its scope, so that policies that share different limits never meet in one record.
    """
    site = scope_of(resource, None)
    return site._replace(key=f"{site.key}*{key}", shared=True)


def total_scope(entity: str | None, *, of_system: bool) -> Scope:
    """Return the scope of the total of an entity over all resources, set for it or its plan, or `of_system`."""
    level = "system" if of_system else ""
    return Scope(f"{_head()}={level}:{_entity_part(entity)}", entity=entity, total=True)


def shared_total_scope(key: str) -> Scope:
    """Return the scope of one limit over all resources with one bucket for all entities."""
    return Scope(f"{total_scope(None, of_system=True).key}*{key}", shared=True, total=True)


def member_scope(pool: str, member: str) -> Scope:
    """Return the scope of a member of a pool, shared by all its requests."""
    return Scope(f"{_head()}+{pool}:{_digest(member)}", pool, shared=True, member=member)


def shadow_scope(scope: Scope) -> Scope:
    """Return the scope of policies in shadow mode, beside the enforced ones."""
    return scope._replace(key=f"{scope.key}~")


class EntityScopes:
    """The scopes of limits of one entity, from which those of any other entity are made.

    Shared ones stay as they are, and so do those of the entities `above`. Raises ValueError for that of another entity.
    """

    def __init__(
        self, scopes: Iterable[Scope], entity: str | None, above: Collection[str | None] = frozenset()
    ) -> None:
        name = _entity_part(entity)
        self._scopes: list[tuple[Scope, str, str]] = []
        for scope in scopes:
            before, after = "", ""
            if not (scope.shared or scope.entity in above):
                version, resource, rest = scope.key.split(":", 2)
                if scope.entity != entity or not rest.startswith(name):
                    raise ValueError(f"{scope!r} is not a scope of the entity {shown(entity)}")
                before, after = f"{version}:{resource}:", rest.removeprefix(name)
            self._scopes.append((scope, before, after))

    def of(self, entity: str | None) -> tuple[Scope, ...]:
        """Return the scopes of an entity, which must be valid, in the order of those given."""
        name = _entity_part(entity)
        return tuple(
            [
                Scope(before + name + after, scope.resource, entity, False, None, scope.total) if before else scope
                for scope, before, after in self._scopes
            ]
        )


def upstream_scope(resource: str) -> Scope:
    """Return the scope of the cool-down of a resource's upstream; stores keep nothing in it."""
    site = scope_of(resource, None)
    return site._replace(key=f"{site.key}^", shared=True)


def line_scope(scope: Scope, key: str) -> Scope:
    """Return the scope of the queue of waiters for a limit of a scope."""
    return scope._replace(key=f"{scope.key}>{key}")


def line_change_scope(line: Scope, state: str) -> Scope:
    """Return the scope that records a change of a queue that was computed from a state of it."""
    return line._replace(key=f"{line.key}>{_digest(state)}!")


def idempotency_scope(resource: str, entity: str | None, key: str, *others: str) -> Scope:
    """Return the scope that records an admitted request of an entity with an idempotency key.

    For several resources the scope does not depend on their order.
    """
    first, *more = sorted({resource, *others})
    scope = scope_of(first, entity)
    return scope._replace(key=f"{scope.key}!{'+'.join([_digest(key), *more])}")


def amounts_scope(key_scope: Scope, amounts: Mapping[str, object]) -> Scope:
    """Return the scope that records with which amounts a request with an idempotency key was admitted.

    `key_scope` is that of the key. Equal amounts in another order, or written as another type of number, are the same.
    """
    listed = sorted([(str(key), _plain(str(key), amount)) for key, amount in amounts.items()])
    return key_scope._replace(key=f"{key_scope.key}#{_digest(repr(listed))}")


def lease_scope(scope: Scope, holder: bytes) -> Scope:
    """Return the scope of the lease of a token; `scope` is that of its entity on its resource."""
    return scope._replace(key=f"{scope.key}#{LEASE_LEVEL}:{holder.hex()}")


def holder_in(key: str) -> bytes:
    """Return the holder in the key of the scope of a lease."""
    return bytes.fromhex(key[key.rindex(":") + 1 :])


def block_scope(scope: Scope) -> Scope:
    """Return the scope of the block for a time of the requests of another one."""
    return scope._replace(key=f"{scope.key}#block")


def counted_scope(scope: Scope) -> Scope:
    """Return the scope in which the responses are counted that begin the block of another one."""
    return scope._replace(key=f"{scope.key}#counted")


def values_scope(scope: Scope) -> Scope:
    """Return the scope in which all combinations of the client of another one are bounded."""
    return scope._replace(key=f"{scope.key}#values")


def own_keys(scope: Scope) -> list[str]:
    """Return the keys of a scope of an entity on a resource, and of those of URL rules beside it.

    Who resets them ends a block for a time, and allows other combinations.
    """
    return [scope.key, *[beside(scope).key for beside in (block_scope, counted_scope, values_scope)]]


def slices_key(key: str) -> str:
    """Return the key of the scope that records how much of the limits of another one, given by key, is in slices."""
    return f"{key}#slices"


def private_scope() -> Scope:
    """Return a scope that no other limit set has, in any namespace."""
    return Scope(f"v1::{unique_name()}")


def unique_name() -> str:
    """Return a name that is unique everywhere."""
    return os.urandom(16).hex()


class Account(Protocol):
    """A user of Django's authentication, or one that looks like it."""

    @property
    def pk(self) -> object: ...

    @property
    def is_authenticated(self) -> bool: ...


EntityName = str | Account | None
"""An entity by its identifier or as a user of Django; None is the site itself."""


def check_resource(name: object) -> str:
    """Return a resource's name, or raise InvalidLimit with the rule."""
    if not isinstance(name, str) or not RESOURCE_PATTERN.fullmatch(name):
        raise InvalidLimit(
            f"resource {shown(name)} must be a letter followed by at most 63 letters, digits, '_', '.', '/' or '-'"
        )
    return name


def check_entity(identifier: object) -> str:
    """Return an entity's identifier, or raise InvalidLimit with the rule."""
    return _checked_text("entity", identifier, InvalidLimit)


def check_idempotency_key(key: object) -> str:
    """Return an idempotency key, or raise InvalidRequest with the rule."""
    return _checked_text("idempotency key", key, InvalidRequest)


def _checked_text(name: str, text: object, error: type[LimitsError]) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= MAX_ENTITY_LENGTH:
        raise error(f"{name} {shown(text)} must be text of 1 to {MAX_ENTITY_LENGTH} characters")
    return text


def short_key(key: str) -> bytes:
    """Return the key of a scope as 16 bytes, for stores in which long keys cost.

    The first byte is that of the part before `#`: one server of a cluster has both scopes of an idempotency key, or a
    scope and its slices, and decides on them in one step.
    """
    whole = _hashed(key)
    base, is_divided, _ = key.partition("#")
    return _hashed(base)[:1] + whole[1:] if is_divided else whole


def _entity_part(entity: str | None) -> str:
    # As `_digest`, without its calls: each new client has this.
    return "-" if entity is None else blake2b(entity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest(text: str) -> str:
    return _hashed(text).hex()


def _hashed(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _plain(key: str, amount: object) -> str:
    """Return an amount in one form; an invalid one, which no limit admits, as it is."""
    try:
        return str(usage_of_units(key, amount))
    except ValueError:
        return shown(amount)

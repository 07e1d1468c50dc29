"""Tokens: what an acquisition that another program holds has charged, signed and encrypted.

The program sends the token back to settle, extend, renew or cancel the acquisition; any process of the site that shares
the store can do that. Whether the acquisition is still held is decided in the store: see `engine.token_leases`.
"""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from django.core.signing import BadSignature, Signer

from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import (
    GivenAmount,
    PermitsOnly,
    Scope,
    ScopedLimits,
    UnitPrice,
    class_named,
    decrypted,
    encrypted,
    known_priority,
    of_its_class,
)
from limits_app.engine.errors import InvalidRequest
from limits_app.models.namespaces import current_namespace
from limits_app.models.validators import MEMBER_KEY
from limits_app.policies import MemberSet
from limits_app.stores.codecs import definitions_of, schema_from
from limits_app.stores.registry import resilient_store

LONGEST_TOKEN: Final = 4096
_PURPOSE: Final = b"limits_app token"
_FORM: Final = 1
"""The form of the content; tokens of another form are invalid."""


class InvalidToken(InvalidRequest):
    """A text that is not a token of this caller: another site, tenant or user has it, or it was changed."""

    def __init__(self) -> None:
        super().__init__("the token is invalid: it must be one that this user has received here, unchanged")


@dataclass(frozen=True, slots=True)
class Token:
    """An acquisition that another program holds.

    `principal` is the user who may use it. `key` are resource, entity and plan of the request. `alias` is that of the
    store, `acquisition` is what it holds, with the extensions.
    """

    principal: str
    key: tuple[str, str | None, str | None]
    alias: str
    acquisition: Acquisition

    def __str__(self) -> str:
        """The text of the token; InvalidRequest where that would be longer than 4 KB."""
        sets = list({id(part.limit_set): part.limit_set for part in self.acquisition.parts()}.values())
        content = {
            "form": _FORM,
            "principal": self.principal,
            "namespace": _namespace(),
            "key": self.key,
            "alias": self.alias,
            "sets": [_set_content(limit_set) for limit_set in sets],
            "parts": [_part_content(part, sets) for part in self.acquisition.parts()],
        }
        packed = zlib.compress(json.dumps(content, separators=(",", ":"), default=str).encode(), 9)
        text = _signer().sign(urlsafe_b64encode(encrypted(packed, _PURPOSE)).decode())
        if len(text) > LONGEST_TOKEN:
            raise InvalidRequest(
                f"the request is charged to so many limits, or was extended so often, that its token would be longer "
                f"than {LONGEST_TOKEN} characters: nothing was charged"
            )
        return text


def read_token(text: str, principal: str) -> Token:
    """Return the token of a text; InvalidToken unless this user has received it in the present namespace."""
    try:
        packed = decrypted(urlsafe_b64decode(_signer().unsign(text)), _PURPOSE)
        content = None if packed is None else json.loads(zlib.decompress(packed))
    except (BadSignature, ValueError, zlib.error) as error:
        raise InvalidToken from error
    if content is None or [content[name] for name in ("form", "principal", "namespace")] != [
        _FORM,
        principal,
        _namespace(),
    ]:
        raise InvalidToken
    resource, entity, plan = content["key"]
    sets = [_limit_set(*fields, alias=content["alias"], resource=resource) for fields in content["sets"]]
    first, *extensions = [_part(sets, *fields) for fields in content["parts"]]
    for extension in extensions:
        first.adopt(extension)
    return Token(principal, (resource, entity, plan), content["alias"], first)


def _signer() -> Signer:
    return Signer(salt="limits_app.token")


def _namespace() -> list[str]:
    namespace = current_namespace()
    return [namespace.alias, namespace.schema, namespace.value]


def _set_content(limit_set: Any) -> list[object]:
    """The limits of a set as plain data."""
    member = limit_set.member if isinstance(limit_set, MemberSet) else None
    return [limit_set.version, member, [_scoped_content(scoped) for scoped in limit_set.scoped]]


def _scoped_content(scoped: ScopedLimits) -> list[object]:
    flags = [scoped.level, scoped.prefix, scoped.more_prefixes, scoped.levels, scoped.lasting, scoped.priority]
    flags.append(scoped.member)
    currencies = {rule.key for rule in scoped.schema.rules if rule.is_money}
    prices = [
        [astuple(price) for price in prices if price.currency in currencies] for _, prices in scoped.prices_by_prefix()
    ]
    return [list(scoped.scope), definitions_of(scoped.schema).decode(), *flags, prices if any(prices) else []]


def _limit_set(
    version: int | None, member: str | None, scoped: Sequence[Any], *, alias: str, resource: str
) -> LimitSet:
    """The set of some limits, in their store."""
    kind, config = (LimitSet, None) if member is None else (MemberSet, {MEMBER_KEY: member})
    limits = [_scoped(*fields) for fields in scoped]
    return kind.composed(limits, resilient_store(alias), config=config, version=version, resource=resource)


def _scoped(scope: Sequence[Any], definitions: str, level: str, *names: Any) -> ScopedLimits:
    prefix, more_prefixes, levels, lasting, priority, member, prices = names
    priced = [tuple([UnitPrice(*fields) for fields in of_resource]) for of_resource in prices]
    return ScopedLimits(
        Scope(*scope),
        schema_from(definitions.encode()),
        level,
        prefix,
        levels=tuple(levels),
        lasting=lasting,
        more_prefixes=tuple(more_prefixes),
        prices=priced[0] if priced else None,
        more_prices=tuple(priced[1:]),
        priority=priority,
        member=member,
    )


def _part_content(part: Acquisition, sets: Sequence[object]) -> list[object]:
    holder = part.holder.hex() if isinstance(part.holder, bytes) else ""
    set_index = next(set_index for set_index, limit_set in enumerate(sets) if limit_set is part.limit_set)
    requested = None if part.requested is None else dict(part.requested)
    is_permits_only = isinstance(part.requested, PermitsOnly)
    priority = class_named(part.requested)
    return [
        set_index,
        holder,
        part.decided_at,
        requested,
        is_permits_only,
        priority,
        part.is_repeated,
        list(part.amounts),
    ]


def _part(  # noqa: PLR0917 - the fields of the content, in their order
    sets: Sequence[LimitSet],
    set_index: int,
    holder: str,
    decided_at: int,
    requested: Mapping[str, GivenAmount],
    is_permits_only: bool,
    priority: str | None,
    is_repeated: bool,
    amounts: Sequence[int],
) -> Acquisition:
    """One acquisition as it was admitted."""
    named = PermitsOnly(requested) if is_permits_only else requested
    if priority is not None:
        named = of_its_class(named, known_priority(priority))
    holder_bytes = bytes.fromhex(holder)
    part = Acquisition.held_elsewhere(sets[set_index], named, amounts, holder=holder_bytes, decided_at=decided_at)
    if is_repeated:
        part.mark_repeated()
    return part

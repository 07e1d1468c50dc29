"""The identities of one request: the counted entity, the user, the API key and the address; all of them are checked."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from limits_app import conf
from limits_app.integrations.identity import (
    client_of,
    entity_of_api_key,
    entity_of_request,
    entity_of_user,
    identify,
    named_plan,
)
from limits_app.services.integration import KINDS_OF_NO_USER

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits


def names_of(limits: RequestLimits, kinds: Collection[str], *, needs_user: bool = False) -> list[str]:
    """Return the identifiers of a request that may be of some kinds; a kind is what precedes the colon.

    The address is always among them. A request that is over has the identifiers that it was counted by.
    May query the database for the user, and calls the functions of the site.
    """
    if limits.is_over:
        return [identity.entity for identity in limits.identities if identity.entity is not None]
    request = limits.request
    names: dict[str | None, None] = {client_of(request): None}
    if _needs_key(limits, kinds):
        names[entity_of_api_key(request)] = None
    if needs_user or _may_be_user(kinds):
        names[entity_of_user(limits.user)] = None
    if limits.identities or _needs_counted(limits, kinds):
        names[limits.entity] = None
    return [name for name in names if name is not None]


def counted_of(limits: RequestLimits) -> tuple[str | None, str | None]:
    """Return the counted entity of a request, and the plan that PLAN_OF_REQUEST names for it.

    Like `possible_user`, it looks at no user where that would only find out that the request has no session.
    """
    if limits.identities or not _is_usual(limits) or limits.user is not None:
        return identify(limits)[:2]
    return entity_of_request(limits.request), named_plan(limits.request, limits.settings)


def calls_site(limits: RequestLimits, kinds: Collection[str], *, needs_user: bool = False) -> bool:
    """Whether `names_of`, or the plan of a request, needs a function of the site, or looks at a user."""
    if limits.is_over:
        return False
    is_known = not limits.identities or limits.identities[-1].user is getattr(limits.request, "user", None)
    return (
        not is_known
        or _needs_key(limits, kinds)
        or _needs_counted(limits, kinds)
        or limits.settings[conf.PLAN_OF_REQUEST.name] is not None
        or ((needs_user or _may_be_user(kinds)) and limits.user is not None)
    )


def _needs_key(limits: RequestLimits, kinds: Collection[str]) -> bool:
    return "key" in kinds and limits.settings[conf.API_KEY_OF_REQUEST.name] is not None


def _may_be_user(kinds: Collection[str]) -> bool:
    return not KINDS_OF_NO_USER.issuperset(kinds)


def _needs_counted(limits: RequestLimits, kinds: Collection[str]) -> bool:
    """Whether a function of the site finds the counted entity, which may be of any kind then."""
    return bool(kinds) and not _is_usual(limits)


def _is_usual(limits: RequestLimits) -> bool:
    return conf.function_of(conf.ENTITY_OF_REQUEST, limits.settings) is entity_of_request

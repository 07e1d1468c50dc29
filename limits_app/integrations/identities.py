"""The identities of one request: the counted entity, the user, the API key and the address; all of them are checked."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from limits_app import conf
from limits_app.integrations.identity import client_of, entity_of_api_key, entity_of_request, entity_of_user

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

_OF_NO_USER: Final = frozenset({"account", "digest", "header", "ip", "key", "session"})
"""The kinds of identifiers that no user has."""


def names_of(limits: RequestLimits, kinds: Collection[str], *, needs_user: bool = False) -> list[str]:
    """Return the identifiers of a request that may be of some kinds; a kind is what precedes the colon.

    The address is always among them. A request that is over has the identifiers that it was counted by.
    May query the database for the user, and calls the functions of the site.
    """
    if limits.is_over:
        return [one.entity for one in limits.identities if one.entity is not None]
    request, settings = limits.request, limits.settings
    found: dict[str | None, None] = {client_of(request): None}
    if "key" in kinds and settings[conf.API_KEY_OF_REQUEST.name]:
        found[entity_of_api_key(request)] = None
    if needs_user or not _OF_NO_USER.issuperset(kinds):
        found[entity_of_user(limits.user)] = None
    # What a function of the site returns may be of any kind; the usual one returns one of those above.
    is_usual = conf.function_of(conf.ENTITY_OF_REQUEST, settings) is entity_of_request
    if limits.identities or (kinds and not is_usual):
        found[limits.entity] = None
    return [name for name in found if name is not None]

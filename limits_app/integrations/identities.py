"""The identities of one request: the counted entity, the user, the API key and the address; all of them are checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings as django_settings
from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from limits_app import conf
from limits_app.integrations.identity import (
    client_of,
    entity_of_api_key,
    entity_of_request,
    entity_of_user,
    named_plan,
)
from limits_app.models.users import KINDS_OF_NO_USER

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

_USUAL: Final = KINDS_OF_NO_USER | {"user"}


def names_of(limits: RequestLimits, kinds: Collection[str], *, needs_user: bool = False) -> list[str]:
    """Return the identifiers of a request that may be of some kinds; a kind is what precedes the colon.

    The address is always among them. May query the database for the user, where the request has credentials of one.
    """
    if limits.is_over:
        return [] if limits.entity is None else [limits.entity]
    request, settings = limits.request, limits.settings
    found: dict[str | None, None] = {client_of(request): None}
    if "key" in kinds and settings[conf.API_KEY_OF_REQUEST.name]:
        found[entity_of_api_key(request)] = None
    if needs_user or not KINDS_OF_NO_USER.issuperset(kinds):
        found[entity_of_user(limits.user)] = None
    if limits.identities or (not _is_usual(settings) and (has_credentials(request) or not _USUAL.issuperset(kinds))):
        found[limits.entity] = None
    return [name for name in found if name is not None]


def counted_of(limits: RequestLimits) -> tuple[str | None, str | None]:
    """Return the counted entity of a request, and the plan that PLAN_OF_REQUEST names for it.

    Like `possible_user`, it looks at no user where that would only find out that nobody is logged in.
    """
    request, settings = limits.request, limits.settings
    if limits.identities or not _is_usual(settings) or has_credentials(request):
        return limits.entity, limits.identities[-1].plan
    return entity_of_api_key(request) or client_of(request), named_plan(request, settings)


def _is_usual(settings: Mapping[str, Any]) -> bool:
    """Whether the default decides which entity is counted."""
    return settings[conf.ENTITY_OF_REQUEST.name] in (conf.ENTITY_OF_REQUEST.default, entity_of_request)


def possible_user(request: HttpRequest) -> Any:
    """Return `request.user`; None where looking at it would only find out that nobody is logged in.

    So a page without limits gets no `Vary: Cookie`, and makes no query.
    """
    user = getattr(request, "user", None)
    is_unknown = isinstance(user, LazyObject) and user.__dict__.get("_wrapped") is empty
    return None if is_unknown and not has_credentials(request) else user


def has_credentials(request: HttpRequest) -> bool:
    """Whether a request has a session, or other credentials of a user."""
    has_session = django_settings.SESSION_COOKIE_NAME in request.COOKIES
    return has_session or bool(request.META.get("HTTP_AUTHORIZATION") or request.META.get("REMOTE_USER"))

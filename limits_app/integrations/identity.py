"""Who makes a request: the entity that its charges go to."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from limits_app import conf
from limits_app.core.amounts import shown
from limits_app.core.keys import MAX_ENTITY_LENGTH
from limits_app.integrations.clients import client_of

__all__ = ["aidentify", "entity_of_key", "entity_of_request", "identify", "of_user", "sound", "sound_user"]

_DIGEST: Final = "digest:"
# To look for these in what has them takes as long as a call.
_ENTITY_OF_REQUEST: Final = conf.ENTITY_OF_REQUEST.name
_API_KEY_OF_REQUEST: Final = conf.API_KEY_OF_REQUEST.name
_DEFAULT: Final = conf.ENTITY_OF_REQUEST.default


def entity_of_request(request: HttpRequest) -> str:
    """Give `key:<digest>` of an API key, else `user:<primary key>` of who is logged in, else `ip:<address>`.

    No header is trusted unless the site says so: by LIMITS["API_KEY_OF_REQUEST"], which checks a key,
    and LIMITS["TRUSTED_PROXIES"]. Without the latter, visitors behind a proxy all come from the proxy.
    """
    return _of_api_key(request) or of_user(getattr(request, "user", None)) or client_of(request)


def identify(request: HttpRequest) -> str | None:
    """Ask the configured function; None is the site itself.

    An empty answer is replaced by the default one, since it would put everybody into one bucket.
    """
    settings = conf.current()
    if settings[_ENTITY_OF_REQUEST] is _DEFAULT:
        if settings[_API_KEY_OF_REQUEST] is not None:
            return sound(entity_of_request(request))
        # As that does without keys, which is three calls more.
        return sound_user(getattr(request, "user", None)) or sound(client_of(request))
    entity = conf.entity_function()(request)
    if entity is None:
        return None
    if not isinstance(entity, str):
        raise TypeError(f"LIMITS['ENTITY_OF_REQUEST'] must give text or None, not {shown(entity)}")
    return sound(entity or entity_of_request(request))


async def aidentify(request: HttpRequest) -> str | None:
    """`identify` for asyncio, in a thread, where `request.user` and configured functions may query the database."""
    return await sync_to_async(identify)(request)


def sound(entity: str) -> str:
    """Give an identifier as it is, or its digest when it is too long or nothing that a database could store."""
    # What is printable has neither NUL nor half characters, and nearly everything is.
    storable = entity.isprintable() or ("\0" not in entity and _is_text(entity))
    if storable and len(entity) <= MAX_ENTITY_LENGTH and not entity.startswith(_DIGEST):
        return entity
    return _DIGEST + _digest(entity)


def entity_of_key(key: str) -> str:
    """Give the entity of an API key, to set limits for it: its digest, since a key is a secret."""
    return f"key:{_digest(key)}"


def sound_user(user: Any) -> str | None:
    """Give `sound` of what `of_user` says; nearly all keys are numbers, which need no looking at."""
    key = getattr(user, "pk", None)
    if key.__class__ is int and user.is_authenticated:
        return f"user:{key}"
    entity = of_user(user)
    return None if entity is None else sound(entity)


def of_user(user: Any) -> str | None:
    """Give `user:<primary key>`, or None for whoever is not logged in or has no such key, as users of tokens may."""
    if user is None or not user.is_authenticated:
        return None
    key = getattr(user, "pk", None)
    return None if key is None or key == "" else f"user:{key}"


def _of_api_key(request: HttpRequest) -> str | None:
    function = conf.function_of(conf.API_KEY_OF_REQUEST)
    key = None if function is None else function(request)
    if key is not None and not isinstance(key, str):
        raise TypeError("LIMITS['API_KEY_OF_REQUEST'] must give text or None")  # and what it gave stays a secret
    return entity_of_key(key) if key else None


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _is_text(entity: str) -> bool:
    """Whether it is free of half characters."""
    try:
        entity.encode()
    except UnicodeEncodeError:
        return False
    return True

"""Who makes a request: the entity that its charges go to."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from limits_app import conf
from limits_app.core.amounts import shown
from limits_app.core.keys import MAX_ENTITY_LENGTH

__all__ = ["aidentify", "entity_of_request", "identify", "sound"]

UNKNOWN_CLIENT: Final = "ip:unknown"
"""All clients whose address the server does not tell; they share their limits, because without one they had none."""

_DIGEST: Final = "digest:"


def entity_of_request(request: HttpRequest) -> str:
    """Give `user:<primary key>` where somebody is logged in, else `ip:<address>` of the other end of the connection.

    No header is trusted, so behind a proxy everybody who is not logged in comes from the proxy.
    """
    return _of_user(getattr(request, "user", None)) or _of_client(request)


async def aentity_of_request(request: HttpRequest) -> str:
    """`entity_of_request` for asyncio."""
    auser = getattr(request, "auser", None)
    if auser is None:
        return await sync_to_async(entity_of_request)(request)
    return _of_user(await auser()) or _of_client(request)


def identify(request: HttpRequest) -> str | None:
    """Ask the configured function; None is the site itself.

    An empty answer is replaced by the default one, since it would put everybody into one bucket.
    """
    entity = conf.entity_function()(request)
    if entity is None:
        return None
    if not isinstance(entity, str):
        raise TypeError(f"LIMITS['ENTITY_OF_REQUEST'] must give text or None, not {shown(entity)}")
    return sound(entity or entity_of_request(request))


async def aidentify(request: HttpRequest) -> str | None:
    """`identify` for asyncio; a configured function is asked in a thread, where it may ask the database."""
    if conf.entity_function() is entity_of_request:
        return sound(await aentity_of_request(request))
    return await sync_to_async(identify)(request)


def sound(entity: str) -> str:
    """Give an identifier as it is, or its digest when it is too long or nothing that a database could store."""
    if len(entity) <= MAX_ENTITY_LENGTH and "\0" not in entity and _is_text(entity) and not entity.startswith(_DIGEST):
        return entity
    return _DIGEST + blake2b(entity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _of_user(user: Any) -> str | None:
    if user is None or not user.is_authenticated or user.pk in (None, ""):
        return None
    return f"user:{user.pk}"


def _of_client(request: HttpRequest) -> str:
    return _of_address(str(request.META.get("REMOTE_ADDR", "")))


@lru_cache(maxsize=4096)
def _of_address(text: str) -> str:
    """One spelling for one address; an IPv4 address written as IPv6 is the same client."""
    try:
        address = ip_address(text)
    except ValueError:
        return UNKNOWN_CLIENT
    return f"ip:{getattr(address, 'ipv4_mapped', None) or address}"


def _is_text(entity: str) -> bool:
    """Whether it is free of half characters."""
    try:
        entity.encode()
    except UnicodeEncodeError:
        return False
    return True

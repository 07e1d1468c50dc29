"""Identity: the entity that makes a request, and identifiers that every store can hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unicodedata import normalize

from django.conf import settings as django_settings
from django.http import HttpRequest
from django.utils.module_loading import import_string

from limits_app import conf
from limits_app.conf import Network
from limits_app.integrations.addresses import parse_address
from limits_app.services.integration import (
    MAX_ENTITY_LENGTH,
    MAX_PLAN_LENGTH,
    RESOURCE_PATTERN,
    identifier_of_user,
    is_logged_in,
    is_malformed_network,
    prefixes,
    shown,
)

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

UNKNOWN_CLIENT: Final = f"{prefixes.ADDRESS}unknown"
"""All clients without an address; they share their limits, because otherwise they would have none."""

_ENTITY: Final = conf.ENTITY_OF_REQUEST.name
_API_KEY: Final = conf.API_KEY_OF_REQUEST.name
PLAN: Final = conf.PLAN_OF_REQUEST.name
_LONGEST_COMPARED: Final = 1024
"""How many characters of a text are normalized, which takes a time that grows with the square of its length."""
_KEY_OF_REQUEST: Final = "_limits_app_api_key"
"""The attribute of a request with its API key."""
_OF_DJANGO: Final = "django."
_READS_USER: Final = "django.contrib.auth.middleware.AuthenticationMiddleware.process_request"
_MOST_HOPS: Final = 32
_LONGEST_CACHED: Final = 512
"""The length up to which forwarding headers are cached; longer ones would let clients fill the memory."""
_FORBIDDEN_IN_RESOURCES: Final = re.compile(r"[^A-Za-z0-9_./-]+")
_LONGEST_STEM: Final = 50
_NOT_STORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")
"""NUL and surrogates, which databases cannot store."""


def entity_of_request(request: HttpRequest) -> str:
    """Return `key:<digest>` of an API key, else `user:<primary key>` of the user, else `ip:<address>`.

    No header is trusted unless the site says so: by LIMITS["API_KEY_OF_REQUEST"], which checks a key,
    and LIMITS["TRUSTED_PROXIES"]. Without the latter, all clients behind a proxy have the address of the proxy.
    """
    return _entity_of(request, conf.current())


def _entity_of(request: HttpRequest, settings: Mapping[str, Any]) -> str:
    of_key = settings[_API_KEY] and entity_of_api_key(request)
    return of_key or identifier_of_user(possible_user(request)) or _client_of(request, settings)


class Identity(NamedTuple):
    """The entity that makes a request (None: the site itself), the plan of the request, and its user."""

    entity: str | None
    plan: str | None
    user: object


def identify(limits: RequestLimits) -> Identity:
    """Return the identity of a request, by LIMITS["ENTITY_OF_REQUEST"] and LIMITS["PLAN_OF_REQUEST"].

    They are called again when `request.user` changes, as when the REST framework authenticates inside the view. A
    request that is over keeps its identity.
    An empty identifier is replaced by the default one, since it would put all clients into one bucket. A name that is
    too long for a plan is ignored. Raises TypeError where one of them returns anything but text or None.
    """
    request, identities, settings = limits.reference(), limits.identities, limits.settings
    if identities and (request is None or getattr(request, "user", None) is identities[-1].user):
        return identities[-1]
    request = request or limits.request
    function = settings[_ENTITY]
    if isinstance(function, str):
        function = conf.function_of(conf.ENTITY_OF_REQUEST, settings)
    if function is entity_of_request:
        entity = _entity_of(request, settings)
        if entity.startswith(prefixes.ADDRESS):
            is_logged_in(getattr(request, "user", None))  # it depends on the session: let the response vary by it
    else:
        entity = function(request)
    if isinstance(entity, str):
        entity = entity or entity_of_request(request)
        entity = _normalized(entity) if len(entity) <= MAX_ENTITY_LENGTH else normalize_entity(entity)
    elif entity is not None:
        raise TypeError(f"LIMITS['ENTITY_OF_REQUEST'] must return text or None, not {shown(entity)}")
    plan = named_plan(request, settings) if settings[PLAN] is not None else None
    identity = Identity(entity, plan, getattr(request, "user", None))
    identities.append(identity)
    limits.judged_names = None  # the counted entity is one of them
    return identity


def named_plan(request: HttpRequest, settings: Mapping[str, Any]) -> str | None:
    """Return the plan that PLAN_OF_REQUEST names; None without the setting. Raises TypeError as `identify` does."""
    function = conf.function_of(conf.PLAN_OF_REQUEST, settings)
    plan = None if function is None else function(request)
    if plan is not None and not isinstance(plan, str):
        raise TypeError(f"LIMITS['PLAN_OF_REQUEST'] must return the name of a plan or None, not {shown(plan)}")
    return None if plan is not None and len(plan) > MAX_PLAN_LENGTH else plan


def normalize_entity(entity: str) -> str:
    """Return an identifier as it is, or its digest when no entity can have it: when it is too long, contains what
    databases cannot store, ends in “*” as patterns do, or is written like a network without being one.
    """
    is_reserved = entity.startswith(prefixes.DIGEST) or entity.endswith("*")
    is_malformed = entity.startswith(prefixes.ADDRESS) and is_malformed_network(entity)
    # Nearly all identifiers are printable, and printable text can be stored.
    if (
        (entity.isprintable() or is_storable(entity))
        and len(entity) <= MAX_ENTITY_LENGTH
        and not (is_reserved or is_malformed)
    ):
        return entity
    return prefixes.DIGEST + _digest(entity)


_normalized: Final = lru_cache(maxsize=4096)(normalize_entity)


def is_storable(text: str) -> bool:
    """Whether databases can store a text: it has neither NUL nor surrogates."""
    return not _NOT_STORABLE.search(text)


def without_unstorable(text: str) -> str:
    """Return a text without what databases cannot store."""
    return _NOT_STORABLE.sub("", text)


def entity_of_key(key: str) -> str:
    """Return the entity of an API key, to set limits for it: its digest, since a key is a secret."""
    return f"{prefixes.API_KEY}{_digest(key)}"


def entity_of_user(user: Any) -> str | None:
    """Return the entity of a user, such as `user:42`; None for users that are not logged in, or have no primary key.

    A user of another model than AUTH_USER_MODEL is `<model name>:<primary key>`, such as `customer:42`.
    """
    return identifier_of_user(user)


def entity_of_api_key(request: HttpRequest) -> str | None:
    """Return `key:<digest>` of the key that LIMITS["API_KEY_OF_REQUEST"] finds; None without a key or the setting.

    The function is called once for a request, and again while it finds no key when the user has changed.
    """
    function = conf.function_of(conf.API_KEY_OF_REQUEST)
    if function is None:
        return None
    inner = getattr(request, "_request", request)  # of the REST framework
    user = getattr(inner, "user", None)
    key: _KeyOfRequest | None = getattr(inner, _KEY_OF_REQUEST, None)
    if key is None or key.function is not function or (key.entity is None and key.user is not user):
        key = _KeyOfRequest(_read_api_key(function, request), function, user)
        setattr(inner, _KEY_OF_REQUEST, key)
    return key.entity


class _KeyOfRequest(NamedTuple):
    """The entity of the API key of a request, the function that found it, and the user at that time."""

    entity: str | None
    function: object
    user: object


def _read_api_key(function: Callable[[HttpRequest], str | None], request: HttpRequest) -> str | None:
    key = function(request)
    if key is not None and not isinstance(key, str):
        raise TypeError("LIMITS['API_KEY_OF_REQUEST'] must return text or None")  # the value stays a secret
    return entity_of_key(key) if key else None


def possible_user(request: HttpRequest) -> Any:
    """Return `request.user`; None where looking at it would only find out that the request has no session.

    So a page without limits gets no `Vary: Cookie`, and makes no query. Only the user that Django reads from the
    session is left alone: what another middleware puts there may come from any header.
    """
    user = getattr(request, "user", None)
    of_session = getattr(getattr(request, "limits", None), "user_without_session", None)
    return None if user is not None and user is of_session and request.session.is_empty() else user


def reads_users_of_sessions(middleware: type) -> bool:
    """Whether the user of a request is what Django reads from the session, when a middleware of the site is called.

    Another middleware that stands between Django's and this one may have replaced the user.
    """
    names = list(django_settings.MIDDLEWARE)
    own = f"{middleware.__module__}.{middleware.__qualname__}"
    for name in reversed(names[: names.index(own)] if own in names else ()):
        function = getattr(import_string(name), "process_request", None)  # which a subclass may have inherited
        if function is not None and f"{function.__module__}.{function.__qualname__}" == _READS_USER:
            return True
        if not name.startswith(_OF_DJANGO):
            return False
    return False


def entity_of_header(request: HttpRequest, name: str) -> str | None:
    """Return `header:<digest>` of the name and value of a header; None without it."""
    value = request.headers.get(name, "").strip()
    return f"{prefixes.HEADER}{_digest(f'{name.lower()}:{value}')}" if value else None


def entity_of_session(request: HttpRequest) -> str | None:
    """Return `session:<digest>` of a stored session; None without one."""
    session = getattr(request, "session", None)
    if session is None or not session.session_key or not [*session.keys()]:
        return None
    # Reading the session has removed a key that the client invented.
    return None if session.session_key is None else f"{prefixes.SESSION}{_digest(session.session_key)}"


def entity_of_account(name: str) -> str:
    """Return `account:<digest>` of the name in a log-in form, before it is known whether the account exists.

    Names that Django's forms treat as the same are the same entity: they strip a name and normalize it to NFKC.
    Upper and lower case are the same too, as they are in many databases. It is a digest, since people also type
    passwords into the field for the name.
    """
    return f"{prefixes.ACCOUNT}{_digest(normalized_text(name).casefold())}"


def normalized_text(text: str) -> str:
    """Return a text as Django's forms normalize it: stripped, and as NFKC. Of a long text it is the beginning."""
    return normalize("NFKC", text.strip()[:_LONGEST_COMPARED]).strip()


def compared_text(text: str) -> str:
    """Return a value of a request as it is counted.

    Texts that differ in case, or that Django's forms take as equal, are the same; the end of a long one stays as it is.
    """
    stripped = text.strip()
    return normalized_text(stripped).casefold() + stripped[_LONGEST_COMPARED:]


def client_of(request: HttpRequest) -> str:
    """Return `ip:<address>`, of IPv6 the network.

    That is the other end of the connection; where that is a trusted proxy, the last address in X-Forwarded-For that
    trusted proxies have added and that is not one of theirs. Any client can write what precedes it.
    """
    return _client_of(request, conf.current())


def address_of(request: HttpRequest) -> IPv4Address | IPv6Address | None:
    """Return the whole address of the client that `client_of` describes; None where it is unknown."""
    return _peer_or_forwarded(*_sources(request, conf.current()))


def is_from_trusted_proxy(request: HttpRequest) -> bool:
    """Whether the other end of the connection is a proxy in LIMITS["TRUSTED_PROXIES"]."""
    peer, _, proxies = _sources(request, conf.current())
    return _is_trusted(peer, parse_address(peer), proxies)


def client_at(address: str) -> str:
    """Return `ip:<address>`, of IPv6 the network, for an address that other code found."""
    return _client(address, "", (), conf.get(conf.IPV6_PREFIX))


@lru_cache(maxsize=4096)
def resource_named(name: str) -> str:
    """Return a valid resource for the name that another library uses: the name, or what is left of it and a digest.

    Different names never have the same resource.
    """
    if RESOURCE_PATTERN.fullmatch(name):
        return name
    stem = _FORBIDDEN_IN_RESOURCES.sub("-", name)[-_LONGEST_STEM:]
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"n{stem}-{digest}"


def _client_of(request: HttpRequest, settings: Mapping[str, Any]) -> str:
    peer, forwarded, proxies = _sources(request, settings)
    read = _client if len(forwarded) <= _LONGEST_CACHED else _client.__wrapped__
    return read(peer, forwarded, proxies, settings[conf.IPV6_PREFIX.name])


def _sources(request: HttpRequest, settings: Mapping[str, Any]) -> tuple[str, str, tuple[Network | None, ...]]:
    """Return the address of the connection, the forwarded addresses, and the trusted proxies."""
    proxies = settings[conf.TRUSTED_PROXIES.name]
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "") if proxies else ""
    return str(request.META.get("REMOTE_ADDR", "")), str(forwarded), proxies


@lru_cache(maxsize=4096)
def _client(peer: str, forwarded: str, proxies: tuple[Network | None, ...], prefix: int) -> str:
    """Return one spelling for each client."""
    address = _peer_or_forwarded(peer, forwarded, proxies)
    return UNKNOWN_CLIENT if address is None else f"{prefixes.ADDRESS}{_network(address, prefix)}"


def _peer_or_forwarded(
    peer: str, forwarded: str, proxies: tuple[Network | None, ...]
) -> IPv4Address | IPv6Address | None:
    address = parse_address(peer)
    if forwarded and _is_trusted(peer, address, proxies):
        for hop in reversed(forwarded.rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]):
            address = parse_address(hop)
            if address is None or not _is_trusted(hop, address, proxies):
                break
    return address


def _is_trusted(text: str, address: IPv4Address | IPv6Address | None, proxies: tuple[Network | None, ...]) -> bool:
    if address is None:
        return not text.strip() and None in proxies
    return any(proxy is not None and address in proxy for proxy in proxies)


def _network(address: IPv4Address | IPv6Address, prefix: int) -> str:
    """Return the network of an IPv6 address, since a customer has a whole one; the zone is chosen by the client."""
    if isinstance(address, IPv4Address):
        return str(address)
    network = IPv6Network((int(address), prefix), strict=False)
    return str(network if prefix < 128 else network.network_address)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

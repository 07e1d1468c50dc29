"""Opening a Redis store: its connections, the names of its keys, and the stores that this process has opened."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from redis.cluster import RedisCluster
from redis.connection import ConnectionPool

from limits_app.acquiring import Store
from limits_app.engine import LEASE_US, namespace_digest
from limits_app.engine.errors import NotShareable, StoreUnavailable
from limits_app.stores.steps import open_once

S = TypeVar("S", bound=Store)

DEFAULTS: Final[Mapping[str, Any]] = {
    "prefix": "limits:1:",
    "lease_seconds": LEASE_US / 1e6,
    "connect_seconds": 0.2,
    "reply_seconds": 0.1,
    "idle_factor": 7,
}
"""The options of stores."""

_TYPES: Final[Mapping[bytes, bytes]] = {
    b"log": b"string",
    b"held": b"zset",
    b"version": b"string",
    b"changes": b"string",
    b"usage": b"list",
    b"batch": b"list",
}
"""The type of the values under keys of these kinds, where the type is not a hash."""

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
TAGS: Final = [f"{number:02x}".encode() for number in range(256)]


def tag_of(scope: bytes) -> bytes:
    """Return the tag of a scope, which is given by its short key."""
    return TAGS[scope[0]]


class KeyNames:
    """The names of keys: `prefix{tag}:scope`, and what belongs to the scope.

    The tag is one of 256, so that a cluster can keep keys that belong to all scopes of a tag, such as the version of
    the configuration, on the same server as these scopes. A single server has only one of each, with the first tag.
    """

    def __init__(self, prefix: str, *, clustered: bool = False) -> None:
        self._prefix = prefix.encode()
        self.tags = TAGS if clustered else TAGS[:1]
        """All tags of shared keys."""
        self.channel = self._prefix + b"wake"
        """The channel on which returned amounts and changes are announced."""

    def scope(self, scope: bytes) -> bytes:
        """Return the key of the record of a scope."""
        # `urlsafe_b64encode`, without two calls for each new client.
        text = b2a_base64(scope, newline=False).translate(_URL_SAFE, b"=")
        return b"%s{%s}:%s" % (self._prefix, TAGS[scope[0]], text)

    def log(self, scope: bytes, limit: str) -> bytes:
        """Return the key of the log of a sliding window."""
        return b"%s:log:%s" % (self.scope(scope), limit.encode())

    def leases(self, scope: bytes, limit: str) -> bytes:
        """Return the key of the leases of a resource limit."""
        return b"%s:held:%s" % (self.scope(scope), limit.encode())

    def type_of(self, key: bytes) -> bytes:
        """Return the type of the value under a key."""
        name, *kind = key[len(self._prefix) :].partition(b"}:")[2].split(b":", 2)
        return _TYPES.get(kind[0] if kind else name, b"hash")

    def tag(self, scope: bytes | None) -> bytes:
        """Return the tag of the keys that scripts about a scope share with other scripts."""
        return TAGS[0] if scope is None or len(self.tags) == 1 else tag_of(scope)

    def version(self, tag: bytes, namespace: str = "") -> bytes:
        """Return the key of the version of the configuration of a namespace, which is stored with each tag."""
        return self._shared(tag, namespace_digest(namespace), b"version")

    def changes(self, namespace: str) -> bytes:
        """Return the key of the log of changes, which is beside the version of the first tag."""
        return self._shared(self.tags[0], namespace_digest(namespace), b"changes")

    def usage(self, tag: bytes, namespace: bytes) -> bytes:
        """Return the key of the usage of a namespace, which is given by its digest, that waits to be collected."""
        return self._shared(tag, namespace, b"usage")

    def batch(self, tag: bytes, namespace: bytes, collector: int) -> bytes:
        """Return the key of the batch of usage that a collector has collected, and that is not forgotten."""
        return self._shared(tag, namespace, b"batch%d" % collector if collector else b"batch")

    def _shared(self, tag: bytes, namespace: bytes, name: bytes) -> bytes:
        """Return a key that all scopes of a tag, or those of a namespace among them, share."""
        part = b"%s:" % urlsafe_b64encode(namespace).rstrip(b"=") if namespace else b""
        return b"%s{%s}:%s%s" % (self._prefix, tag, part, name)


class ConnectionSource:
    """Where connections come from: the alias of a cache, a URL, or a client; the alias `default` where none is given.

    The cache is one of django-redis, or Django's own `RedisCache`, whose first server is the one that is written to.
    """

    def __init__(self, alias: str | None, url: str | None, client: Any) -> None:
        named = [name for name, value in (("alias", alias), ("url", url), ("client", client)) if value is not None]
        if len(named) > 1:
            raise ValueError(f"give one of alias, url and client, not {' and '.join(named)}")
        self._alias = alias if named else "default"
        self._url = url
        self._client = client
        self.is_ours = client is None
        """Whether the client is made here, so that it has to be closed here."""

    def __str__(self) -> str:
        return repr(self._client or self._url or self._alias)

    def pool(self) -> Any:
        """Return the pool that knows how connections are made."""
        if self._client is not None:
            return self._client.connection_pool
        return _cache_pool(str(self._alias)) if self._url is None else _pool_of(self._url)

    def cluster(self) -> Any:
        """Return the client of a cluster."""
        return self._client if self._url is None else RedisCluster.from_url(self._url)

    def address(self) -> tuple[str | None, str | None]:
        """Return alias and URL, for another process."""
        if self._client is not None:
            raise NotShareable("a store over a client cannot be sent to another process: give it an alias or a url")
        return self._alias, self._url


def _cache_settings(alias: str) -> dict[str, Any]:
    # Imported on use: Django may not be set up where a store is opened by its URL.
    from django.core.cache import caches

    return dict(caches.settings.get(alias, {}))


def _pool_of(url: str, **options: Any) -> Any:
    try:
        return ConnectionPool.from_url(url, **options)
    except ValueError:  # not as the cause: its text may have a part of a password
        raise StoreUnavailable("the address of the Redis server is invalid") from None


def _cache_pool(alias: str) -> Any:
    # Imported on use, as above.
    from django.core.cache.backends.redis import RedisCache
    from django.utils.module_loading import import_string

    settings = _cache_settings(alias)
    try:
        backend = import_string(settings["BACKEND"]) if settings else None
    except ImportError as error:
        message = f"the backend of the cache {alias!r} cannot be imported: {error}"
        raise StoreUnavailable(message) from error
    if backend is not None and issubclass(backend, RedisCache):
        servers = settings["LOCATION"]
        first = servers.replace(",", ";").split(";")[0] if isinstance(servers, str) else servers[0]
        options = {name: value for name, value in settings.get("OPTIONS", {}).items() if name != "pool_class"}
        return _pool_of(first, **options)
    try:
        from django_redis import get_redis_connection  # type: ignore[import-untyped]  # it ships no types

        return get_redis_connection(alias, write=True).connection_pool
    except (ModuleNotFoundError, NotImplementedError) as error:  # without django-redis, and for other caches
        message = f"the cache {alias!r} is not a Redis cache: name one that is in CACHES, or give a url"
        raise StoreUnavailable(message) from error


def open_store(kind: Callable[..., S], alias: str | None, url: str | None, options: Mapping[str, Any]) -> S:
    """Open a store of a class, or return the one that this process has opened before."""
    all_options = {**DEFAULTS, **options} | ({} if alias is None else {"alias": alias})
    identity = (kind, url, *sorted(all_options.items()), alias and repr(_cache_settings(alias)))
    return open_once(identity, partial(kind, url=url, **all_options))


def prefix_for(site: str) -> str:
    """Return the prefix of all keys of a site, which begins with that of the site as it is, for patterns of ACLs."""
    return f"{site}:{DEFAULTS['prefix']}" if site else str(DEFAULTS["prefix"])

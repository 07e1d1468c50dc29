"""Where connections come from: an alias of django-redis, a URL, or a client that somebody else has made."""

from __future__ import annotations

from typing import Any

from limits_app.core.errors import NotShareable

__all__ = ["Source"]


class Source:
    """One of three ways to a server; the first one that is given, and the alias `default` when none is."""

    def __init__(self, alias: str | None, url: str | None, client: Any) -> None:
        given = [name for name, value in (("alias", alias), ("url", url), ("client", client)) if value is not None]
        if len(given) > 1:
            raise ValueError(f"give one of alias, url and client, not {' and '.join(given)}")
        self._alias = alias if given else "default"
        self._url = url
        self._client = client

    def __str__(self) -> str:
        return repr(self._client or self._url or self._alias)

    def client(self) -> Any:
        """A client of redis-py."""
        if self._client is not None:
            return self._client
        if self._url is not None:
            from redis import Redis

            return Redis.from_url(self._url)
        from django_redis import get_redis_connection  # type: ignore[import-untyped]  # it ships no types

        return get_redis_connection(self._alias, write=True)

    def pool(self) -> Any:
        """What knows how connections are made."""
        return self.client().connection_pool

    @property
    def is_ours(self) -> bool:
        """Whether clients are made here, so that whoever asks for one has to close it."""
        return self._client is None

    def cluster(self) -> Any:
        """A client of a cluster."""
        if self._url is None:
            return self._client
        from redis.cluster import RedisCluster

        return RedisCluster.from_url(self._url)

    def address(self) -> tuple[str | None, str | None]:
        """Alias and URL, for another process."""
        if self._client is not None:
            raise NotShareable("a store over a client cannot be sent to another process: give it an alias or a url")
        return self._alias, self._url

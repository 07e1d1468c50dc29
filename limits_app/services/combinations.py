"""Combinations of parts of a request, which URL rules count: their names, and the source of their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from limits_app.engine import MAX_ENTITY_LENGTH
from limits_app.models.prefixes import COMBINATION
from limits_app.policies import ResolutionKey, ResolvedSet, bounded
from limits_app.services.request import SetResolver

_DIGEST_SIZE: Final = 16
_LONGEST_CLIENT: Final = MAX_ENTITY_LENGTH - len(COMBINATION) - 2 * _DIGEST_SIZE - 1


def combined_name(client: str | None, words: Iterable[bytes]) -> str:
    """Return the entity that stands for a client (None: everyone) and some words, such as the values of a request."""
    digest = blake2b(digest_size=_DIGEST_SIZE)
    for word in words:
        digest.update(len(word).to_bytes(8, "little") + word)
    return f"{COMBINATION}{digest.hexdigest()}{ending_of(client)}"


def ending_of(client: str | None) -> str:
    """Return how the names of all combinations of a client end: an erasure of the client finds it after a space."""
    if client is None:
        return ""
    if len(client) > _LONGEST_CLIENT:
        client = blake2b(client.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_SIZE).hexdigest()
    return f" {client}"


def is_combination_of(name: str, client: str) -> bool:
    """Return whether a name is that of a combination of a client, and not of another one whose name ends like it."""
    ending = ending_of(client)
    is_whole = len(name) == len(COMBINATION) + 2 * _DIGEST_SIZE + len(ending)
    return is_whole and name.startswith(COMBINATION) and name.endswith(ending)


class CombinedSource:
    """A `SetResolver` whose limits of combinations have the bound of their client; `clients` has it by combination."""

    def __init__(self, source: SetResolver, clients: Mapping[str | None, str | None]) -> None:
        self._source = source
        self._clients = clients

    def cached(self, key: ResolutionKey) -> ResolvedSet | None:
        """See `SetResolver.cached`."""
        resolved = self._source.cached(key)
        return None if resolved is None else self._bounded(key, resolved)

    def read(self, key: ResolutionKey) -> ResolvedSet:
        """See `SetResolver.read`."""
        return self._bounded(key, self._source.read(key))

    def catch_up(self, key: ResolutionKey, stale: ResolvedSet | None) -> None:
        """See `SetResolver.catch_up`."""
        self._source.catch_up(key, stale)

    def follow(self, key: ResolutionKey, rejecting: ResolvedSet | None) -> bool:
        """See `SetResolver.follow`."""
        return self._source.follow(key, rejecting)

    def _bounded(self, key: ResolutionKey, resolved: ResolvedSet) -> ResolvedSet:
        resource, entity, *_ = key
        return bounded(resolved, resource, entity, self._clients[entity]) if entity in self._clients else resolved

"""The limits of pools by name."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from time import monotonic
from typing import Final

from limits_app import conf
from limits_app.policies.base_resolver import BaseResolver, most_entries
from limits_app.policies.kept import Age, Aged
from limits_app.policies.kept_configuration import ResolutionKey, configuration
from limits_app.policies.resolution import resolve_pool
from limits_app.policies.resolved_set import ResolvedSet
from limits_app.policies.sync import Seen


class PoolResolver(BaseResolver):
    """The limits of pools by name, without those of any resource.

    A key has the name of the pool, and the alias of a store (None: the default one) in place of an entity.
    """

    def _checked(self, key: ResolutionKey) -> ResolutionKey:
        return key

    def _shared(self, key: ResolutionKey) -> Hashable:
        return key

    def cached(self, key: ResolutionKey, shared: Hashable = None) -> ResolvedSet | None:  # noqa: ARG002 - the key
        """See `BaseResolver.cached`."""
        seen = self.configuration.sync.seen
        last = None if monotonic() >= self.configuration.due_at else self._last(key)
        version = None if last is None else self._usable_version(*last, seen)
        if last is None or version is None:
            return None
        return last[0] if last[0].limit_set.version == version else last[0].at_version(version)

    def _last(self, key: ResolutionKey) -> tuple[ResolvedSet, Age] | None:
        configuration = self.configuration
        aged = configuration.pools.get(key)
        if aged is None or aged.value[0] != configuration.generation:
            return None
        return aged.value[1], aged

    def _read(self, key: ResolutionKey, shared: Hashable, seen: Seen) -> tuple[ResolvedSet, bool]:  # noqa: ARG002 - the key
        configuration = self.configuration
        generation = configuration.generation
        resolved = resolve_pool(*key[:2], seen=seen, generation=generation)
        aged = Aged((generation, resolved), conf.get(conf.RESOLVER_TTL_SECONDS))
        configuration.keep(seen, partial(configuration.pools.add, key, aged, most=most_entries()))
        return resolved, False

    def _note(self, key: ResolutionKey) -> None:
        """Nothing: a pool has no limits of a call."""


pool_resolver: Final = PoolResolver(configuration)

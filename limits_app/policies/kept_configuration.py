"""What this process keeps of the configuration: templates, the limits of clients with rows, and which have rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from itertools import count
from math import inf
from time import monotonic
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.acquiring import Store
from limits_app.engine import Changes, Namespace, lasts
from limits_app.engine.errors import StoreUnavailable, Unresolved
from limits_app.models import changes, write_alias
from limits_app.models.namespaces import MOST_NAMESPACES, WHOLE_SITE, SiteNamespace, current_namespace, sources
from limits_app.policies.balancing import balancers
from limits_app.policies.identifiers import KnownIdentifiers
from limits_app.policies.kept import Aged, Kept, KeyLocks
from limits_app.policies.pools import pool_cache
from limits_app.policies.reading import IdentifierReader, entities, members_of_groups
from limits_app.policies.resolution import DefaultLimits
from limits_app.policies.resolved_set import ResolvedSet
from limits_app.policies.sync import Seen, Sync
from limits_app.policies.template import Template, Templates
from limits_app.stores.registry import resilient_store

ResolutionKey = tuple[str, str | None, DefaultLimits, str | None]
"""A resource, an entity, the `default_limits` of the call, and the name of the plan of the request."""

General = tuple[str, tuple[str, ...], DefaultLimits, str | None]
"""What the limits of a client without rows depend on: the key with the patterns that match it instead of its name."""

Alike = tuple[str, DefaultLimits, Hashable]
"""What the limits of a client with rows depend on: a resource, the `default_limits` of the call, and the content of
its rows."""

_VERSION_SECONDS: Final = 1.0
"""How old the version of a store on another machine may be for requests that charge nothing."""
_MOST_BOUND: Final = 256
"""How many clients without rows are kept by name, of those that send several requests."""
_MOST_RECENT: Final = 512
"""How many of the last clients without rows are remembered, so that the next request of one of them keeps it."""
_GENERATIONS: Final = count(1)
"""Of all namespaces, so that what was read in one is never taken for that of another one."""
_MOST_TOUCHED: Final = 4096
"""How many changed clients are known by name in one generation."""


class _VersionOfNamespace(NamedTuple):
    """A store, as far as it keeps the version of a namespace."""

    store: Store
    namespace: str

    def version(self) -> int:
        return self.store.version(self.namespace)

    def changes_since(self, version: int) -> tuple[int, Changes] | None:
        return self.store.changes_since(version, self.namespace)


class KeptConfiguration:
    """The configuration of a namespace as far as this process knows it: what is kept of it, and until which version.

    `generation` is another number after each change that belongs to no single client. See `Sync` for the order.
    """

    def __init__(self, read_soon: Callable[[], object], namespace: SiteNamespace = WHOLE_SITE) -> None:
        """`read_soon` begins to read which identifiers have rows."""
        self.namespace = namespace
        self.known = KnownIdentifiers(entities, members_of_groups)
        self.clients: Kept[ResolutionKey, ResolvedSet] = Kept()
        self.templates: Kept[General, Templates] = Kept()
        self.alike: Kept[Alike, Templates] = Kept()
        """The templates of clients with rows, which a change of a client leaves as they are."""
        self.pools: Kept[ResolutionKey, tuple[int, ResolvedSet]] = Kept()
        """The limits of pools, with the generation that each was read in."""
        self.url_rules: object = None
        """The rules for URLs that were read last, with the number of their generation; `services` read them."""
        self.noted: set[tuple[str, DefaultLimits]] = set()
        """The limits of code that were written to the database."""
        self.code_limits: Kept[str, DefaultLimits] = Kept()
        """The limits that code used last on resources, as they were read for requests of other programs."""
        self.generation = next(_GENERATIONS)
        self.touched: set[bytes] = set()
        """The digests of the clients that have changed in this generation."""
        self._bound: dict[ResolutionKey, ResolvedSet] = {}
        self._recent: set[str | None] = set()
        """Names alone, which cost the garbage collector nothing: most clients are never seen again."""
        self._read_soon = read_soon
        self.sync = Sync(self)
        self._forget_times()

    def _forget_times(self) -> None:
        self.due_at = -inf
        """When the changes of all stores are read again, by the monotonic clock."""
        self._looked_at = -inf
        """When the version of the default store was read, if it is on another machine."""

    def refresh(self) -> None:
        """Apply changes that no store has reported, every RESOLVER_TTL_SECONDS, and for stores that were unavailable.

        Begins to read which identifiers have rows, unless that is done.
        """
        is_due = monotonic() >= self.due_at
        if is_due:
            self.due_at = monotonic() + conf.get(conf.RESOLVER_TTL_SECONDS)
        if conf.get(conf.ENABLED):
            seen = self.sync.seen
            for alias in conf.get(conf.STORES):
                if is_due or alias not in seen:
                    self._catch_up(alias, seen.get(alias))
        if is_due:
            with suppress(Unresolved):
                self.known.refresh()
        if not self.known.is_complete:
            self._read_soon()

    def postpone(self, seconds: float) -> None:
        """Refresh nothing for so long, since the database cannot be read."""
        self.due_at = max(self.due_at, monotonic() + seconds)

    def catch_up(self, stale: ResolvedSet | None) -> None:
        """Apply the changes that have made a set stale; nothing while its store is unavailable."""
        if stale is not None and stale.available:
            self._catch_up(stale.alias, stale.limit_set.version)

    def follow(self) -> None:
        """Apply the changes of the default store, for a request that charges nothing.

        Of a store on another machine they are at most a second old.
        """
        alias = conf.get(conf.STORE)
        if self.is_followed(alias):
            return
        self.refresh()
        self._looked_at = monotonic()
        self._catch_up(alias, self.sync.seen.get(alias))

    def is_followed(self, alias: str) -> bool:
        """Whether `follow` has nothing to do, for the alias of the default store; calls no other machine."""
        is_fresh = monotonic() < self.due_at
        try:
            store, seen = resilient_store(alias), self.sync.seen.get(alias)
            if store.remote:
                return is_fresh and lasts(self._looked_at, _VERSION_SECONDS, monotonic())
            return is_fresh and seen is not None and store.version(self.namespace.keys.configuration) == seen
        except StoreUnavailable:
            return True

    def bound(self, key: ResolutionKey, template: Template, version: int) -> ResolvedSet:
        """The limits of a client without rows; those that are requested a second time are kept."""
        bound = self._bound.get(key)
        if bound is not None and bound.template is template.resolved and bound.limit_set.version == version:
            return bound
        entity, recent = key[1], self._recent
        bound = template.bind(entity, version)
        if entity in recent:
            if len(self._bound) >= _MOST_BOUND:
                self._bound = {}
            self._bound[key] = bound
        else:
            if len(recent) >= _MOST_RECENT:
                self._recent = recent = set()
            recent.add(entity)
        return bound

    def keep(self, seen: Seen, keep: Callable[[], object]) -> None:
        """See `Sync.keep`; nothing is kept of a transaction that may be rolled back, or reads an older snapshot."""
        if changes.may_be_kept(write_alias()):
            self.sync.keep(seen, keep)

    def clear(self) -> None:
        """Forget everything."""
        self.sync.forget()
        self._recent.clear()
        self.url_rules = None
        self.noted.clear()
        self.code_limits.clear()
        self._forget_times()

    def _catch_up(self, alias: str, seen: int | None) -> None:
        with suppress(StoreUnavailable):
            store = resilient_store(alias).open()
            self.sync.catch_up(alias, _VersionOfNamespace(store, self.namespace.keys.configuration), seen)

    # ------------------------------------------------------------------------------------------ for `Sync`

    def add_identifiers(self, digests: Collection[bytes]) -> None:
        """See `ChangeTarget`."""
        self.known.add(digests)

    def read_latest(self) -> None:
        """See `ChangeTarget`; later where it fails, in another namespace, and where a transaction may not see them."""
        try:
            if current_namespace() == self.namespace and not changes.reads_snapshot(write_alias()):
                self.known.read_latest()
                return
        except Unresolved:
            pass
        self.known.read_latest_later()

    def read_again(self) -> None:
        """See `ChangeTarget`."""
        self.known.restart()

    def drop(self, digests: Collection[bytes]) -> None:
        """See `ChangeTarget`."""
        self.touched.update(digests)
        self.clients.drop(digests)
        if len(self.touched) > _MOST_TOUCHED:
            self._begin_generation()

    def drop_clients(self) -> None:
        """See `ChangeTarget`."""
        self._begin_generation()
        self.clients.clear()

    def drop_access(self) -> None:
        """See `ChangeTarget`; it is read with the URL rules, which have the number of a generation."""
        self._begin_generation()

    def drop_cool_downs(self) -> None:
        """See `ChangeTarget`."""
        balancers.drop_cool_downs()

    def drop_all(self) -> None:
        """See `ChangeTarget`."""
        balancers.drop_cool_downs()
        self._begin_generation()
        self.clients.clear()
        self.templates.clear()
        self.alike.clear()
        self._bound = {}
        pool_cache.clear()

    def _begin_generation(self) -> None:
        self.generation = next(_GENERATIONS)
        self.touched = set()


class CurrentConfiguration:
    """The configuration of the present namespace, of those that this process keeps; others are read again."""

    def __init__(self) -> None:
        self._reader = IdentifierReader(lambda: [(kept.namespace, kept.known) for kept in self.all()])
        self.of_whole_site = KeptConfiguration(self._reader.start)
        """That of sites without namespaces."""
        self._kept: Kept[SiteNamespace, KeptConfiguration] = Kept()
        self._locks = KeyLocks()

    def current(self) -> KeptConfiguration:
        """What is kept for the present namespace."""
        if not sources.is_used:
            return self.of_whole_site
        namespace = current_namespace()
        if namespace is WHOLE_SITE:
            return self.of_whole_site
        aged = self._kept.get(namespace)
        return self._begin(namespace) if aged is None else aged.value

    def _begin(self, namespace: SiteNamespace) -> KeptConfiguration:
        with self._locks.locked(namespace):
            aged = self._kept.get(namespace)
            if aged is None:
                aged = Aged(KeptConfiguration(self._reader.start, namespace))
                self._kept.add(namespace, aged, most=MOST_NAMESPACES)
            return aged.value

    @property
    def touched(self) -> Collection[bytes]:
        """See `KeptConfiguration`."""
        return self.current().touched

    @property
    def sync(self) -> Sync:
        """See `KeptConfiguration`."""
        return self.current().sync

    def follow(self) -> None:
        """See `KeptConfiguration`."""
        self.current().follow()

    def apply(self, announced: Changes, keys: Namespace) -> None:
        """Apply changes to all that is kept of a configuration; see `Sync.apply`."""
        for kept in self.all():
            if kept.namespace.keys.configuration == keys.configuration:
                kept.sync.apply(announced)

    def all(self) -> list[KeptConfiguration]:
        """All that is kept."""
        return [self.of_whole_site, *[aged.value for aged in list(self._kept.values.values())]]

    def clear(self) -> None:
        """Forget everything."""
        for kept in self.all():
            kept.clear()
        self._kept.clear()


configuration: Final = CurrentConfiguration()

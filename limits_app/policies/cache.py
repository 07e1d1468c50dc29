"""What this process keeps of the configuration: templates, the limits of clients with rows, and which have rows."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from math import inf
from time import monotonic, time
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.acquiring.store import Store
from limits_app.engine.changes import ALL, Changes
from limits_app.engine.clock import lasts
from limits_app.engine.errors import StoreUnavailable, UnknownPool, Unresolved
from limits_app.engine.keys import MAX_ENTITY_LENGTH
from limits_app.engine.namespaces import Namespace
from limits_app.models import changes, note_code_limits, write_alias
from limits_app.models.changes import identifier_digest
from limits_app.models.namespaces import (
    MOST_NAMESPACES,
    WHOLE_SITE,
    SiteNamespace,
    current_keys,
    current_namespace,
    sources,
)
from limits_app.policies.balancing import balancers
from limits_app.policies.chain import StoredChain, Subject
from limits_app.policies.identifiers import KnownIdentifiers, identifiers_read
from limits_app.policies.kept import Age, Aged, Kept, KeyLocks
from limits_app.policies.pools import PooledSet, pool_cache
from limits_app.policies.query import can_be_stored, stored_chains
from limits_app.policies.reading import IdentifierReader, entities, members_of_groups
from limits_app.policies.resolution import (
    BATCH,
    Limits,
    check_names,
    check_plan,
    checked_defaults,
    policy_source,
    read_policies,
    resolution_of,
    resolve_pool,
)
from limits_app.policies.resolved_set import ResolvedSet
from limits_app.policies.stores import DISABLED, StoreVersions
from limits_app.policies.sync import Seen, Sync
from limits_app.policies.template import Template, Templates, is_of_no_client
from limits_app.stores.registry import aliases, resilient_store

logger = logging.getLogger("limits_app")

Key = tuple[str, str | None, Limits, str | None]
"""A resource, an entity, the `default_limits` of the call, and the name of the plan of the request."""

General = tuple[str, tuple[str, ...], Limits, str | None]
"""What the limits of a client without rows depend on: the key with the patterns that match it instead of its name."""

Alike = tuple[str, Limits, Hashable]
"""What the limits of a client with rows depend on: a resource, the `default_limits` of the call, and the content of
its rows."""

_STORE: Final = conf.STORE.name
_DATABASE_RETRY_SECONDS: Final = 1.0
"""How long expired limits are used again after the database failed."""
_VERSION_SECONDS: Final = 1.0
"""How old the version of a store on another machine may be for requests that charge nothing."""
_MOST_BOUND: Final = 256
"""How many clients without rows are kept by name, for those that send several requests in a row."""
_GENERATIONS: Final = count(1)
"""Of all namespaces, so that rows of one are never taken for those of another one."""
_MOST_ALIKE: Final = 1024
"""How many templates of clients with rows are kept; others who have the same rows need not be compiled."""
_MOST_TOUCHED: Final = 4096
"""How many changed clients are known by name in one generation."""
_MOST_NOTED: Final = 1000
"""How many resources and limits of code are known to be in the database; after that, all are written again."""


class ResolverInfo(NamedTuple):
    """Numbers of the cache of this process."""

    hits: int
    misses: int
    size: int


class _Before(NamedTuple):
    """The state before a query: the versions, the generation, and the time."""

    seen: Seen
    generation: int
    at: datetime


class _VersionOfNamespace(NamedTuple):
    """A store, as far as it keeps the version of a namespace."""

    store: Store
    namespace: str

    def version(self) -> int:
        return self.store.version(self.namespace)

    def changes_since(self, version: int) -> tuple[int, Changes] | None:
        return self.store.changes_since(version, self.namespace)


class KeptConfiguration:
    """The configuration of a namespace as far as this process knows it: the kept part, and until which version.

    `generation` is another number after each change that belongs to no single client. See `Sync` for the order.
    """

    def __init__(self, read_soon: Callable[[], object], namespace: SiteNamespace = WHOLE_SITE) -> None:
        """`read_soon` begins to read which identifiers have rows."""
        self.namespace = namespace
        self.known = KnownIdentifiers(entities, members_of_groups)
        self.clients: Kept[Key, ResolvedSet] = Kept()
        self.templates: Kept[General, Templates] = Kept()
        self.alike: Kept[Alike, Templates] = Kept()
        """The templates of clients with rows, which a change of a client leaves as they are."""
        self.pools: Kept[Key, tuple[int, ResolvedSet]] = Kept()
        """The limits of pools, with the generation that each was read in."""
        self.url_rules: object = None
        """The rules for URLs that were read last, with the number of their generation; `services` read them."""
        self.noted: set[tuple[str, Limits]] = set()
        """The limits of code that were written to the database."""
        self.generation = next(_GENERATIONS)
        self.touched: set[bytes] = set()
        """The digests of the clients that have changed in this generation."""
        self._bound: dict[Key, ResolvedSet] = {}
        self._read_soon = read_soon
        self.sync = Sync(self)
        self._forget_times()

    def _forget_times(self) -> None:
        self.due_at = -inf
        """When the changes of all stores are read again, by the monotonic clock."""
        self._looked_at = -inf
        """When the version of the default store was read, if it is on another machine."""

    def refresh(self) -> None:
        """Apply what no store has told a request: every RESOLVER_TTL_SECONDS, and for stores that were unavailable.

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
        if self.is_followed():
            return
        self.refresh()
        alias = conf.get(conf.STORE)
        self._looked_at = monotonic()
        self._catch_up(alias, self.sync.seen.get(alias))

    def is_followed(self) -> bool:
        """Whether `follow` has nothing to do; calls no other machine."""
        alias, is_fresh = conf.current()[_STORE], monotonic() < self.due_at
        try:
            store, seen = resilient_store(alias), self.sync.seen.get(alias)
            if store.remote:
                return is_fresh and lasts(self._looked_at, _VERSION_SECONDS, monotonic())
            return is_fresh and seen is not None and store.version(self.namespace.keys.configuration) == seen
        except StoreUnavailable:
            return True

    def bound(self, key: Key, template: Template, version: int) -> ResolvedSet:
        """The limits of a client without rows; those that were requested last are kept."""
        bound = self._bound.get(key)
        if bound is None or bound.template is not template.resolved or bound.limit_set.version != version:
            bound = template.bind(key[1], version)
            if len(self._bound) >= _MOST_BOUND:
                self._bound = {}
            self._bound[key] = bound
        return bound

    def keep(self, seen: Seen, keep: Callable[[], object]) -> None:
        """See `Sync.keep`; nothing is kept of a transaction that may be rolled back, or reads an older snapshot."""
        if changes.may_be_kept(write_alias()):
            self.sync.keep(seen, keep)

    def clear(self) -> None:
        """Forget everything."""
        self.sync.forget()
        self.url_rules = None
        self.noted.clear()
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
        """The configuration that is kept for the present namespace."""
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
    def generation(self) -> int:
        """See `KeptConfiguration`."""
        return self.current().generation

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

    def is_followed(self) -> bool:
        """See `KeptConfiguration`."""
        return self.current().is_followed()

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


class _Source(ABC):
    """Resolves the limits of keys, of which threads that need the same read the database once."""

    def __init__(
        self, configurations: CurrentConfiguration | None = None, *, clock: Callable[[], float] = time
    ) -> None:
        self.clock = clock
        """Returns seconds since 1970. Limits are resolved again when a date or an hour of their policies comes."""
        self._configurations = configurations or CurrentConfiguration()
        self._locks = KeyLocks()
        self._hits = 0
        self._misses = 0

    @property
    def configuration(self) -> KeptConfiguration:
        """That of the present namespace."""
        return self._configurations.current()

    def get(self, key: Key) -> ResolvedSet:
        """The limits of a key, which are read if they are not kept.

        They are not `available` while their store is down. While the database cannot be read the last ones are used,
        even if expired; Unresolved where there are none. Raises InvalidLimit for invalid arguments.
        """
        return self.cached(key) or self.read(key)

    def read(self, key: Key) -> ResolvedSet:
        """`get` for limits that are not `cached`."""
        key = self._checked(key)
        configuration = self.configuration
        configuration.refresh()
        shared = self._shared(key)
        with self._locks.locked((configuration, shared)):
            if balancers.are_used:
                self._read_cool_downs(key)
            found = self.cached(key, shared)  # another thread may have resolved them in the meantime
            if found is not None:
                return found
            found, uses_code = self._resolved(key, shared)
        if uses_code:
            self._note(key)  # without the lock: it writes, and may wait for a transaction that waits for the lock
        return found

    def latest(self, key: Key) -> ResolvedSet:
        """`get` for the current version of the configuration; StoreUnavailable while the store is down."""
        while True:
            found = self.get(key)
            limit_set = found.in_store()
            if limit_set.version == limit_set.store.version(limit_set.namespace):
                return found
            self.catch_up(key, found)

    def catch_up(self, key: Key, stale: ResolvedSet | None) -> None:  # noqa: ARG002 - other sources need the key
        """Apply the changes that have made the limits of a key stale."""
        self.configuration.catch_up(stale)

    def _read_cool_downs(self, key: Key) -> None:
        """Read those of the pool of a key, which may be all that its limits lack."""
        last = self._last(key)
        if last is not None and last[0].members is not None:
            balancers.read_cool_downs(last[0].members.name)

    def _resolved(self, key: Key, shared: Hashable) -> tuple[ResolvedSet, bool]:
        self._misses += 1
        try:
            return self._read(key, shared, self.configuration.sync.seen)
        except Unresolved:
            last = self._last(key)
            if last is None:
                raise
            last[1].keep(_DATABASE_RETRY_SECONDS, outlasts_dates=True)
            self.configuration.postpone(_DATABASE_RETRY_SECONDS)
            found = self.cached(key)
            if found is None:
                raise
            return found, False

    def _usable_version(self, resolved: ResolvedSet, age: Age, seen: Seen) -> int | None:
        """The version for which limits that are kept may be requested; None where they have to be resolved again."""
        limit_set = resolved.limit_set
        # `lasts`, without a call for each request.
        if not 0 <= monotonic() - age.kept_at < age.seconds:
            return None
        changes_at = limit_set.changes_at
        if changes_at is not None and not age.outlasts_dates and changes_at <= self.clock():
            return None
        if isinstance(limit_set, PooledSet) and balancers.must_read(limit_set.members.name):
            return None
        if not resolved.available:
            return None if _can_open(resolved.alias) else limit_set.version
        return limit_set.version if limit_set.store is DISABLED else seen.get(resolved.alias)

    @abstractmethod
    def cached(self, key: Key, shared: Hashable = None) -> ResolvedSet | None:
        """The limits of a key, if they are kept; None where they are missing, outdated, or need a query.

        That is also where the store may be available again, and where the cool-downs of a pool have to be read.
        `shared` is that of `_shared` where it is known.
        """

    @abstractmethod
    def _checked(self, key: Key) -> Key:
        """The key as it is kept; InvalidLimit for an invalid one."""

    @abstractmethod
    def _shared(self, key: Key) -> Hashable:
        """The common part of all keys whose limits are read together; the key itself without others."""

    @abstractmethod
    def _last(self, key: Key) -> tuple[ResolvedSet, Age] | None:
        """The limits of a key that were kept last, even if they are outdated."""

    @abstractmethod
    def _read(self, key: Key, shared: Hashable, seen: Seen) -> tuple[ResolvedSet, bool]:
        """Read the limits of a key, and keep them for the versions that were seen before.

        `shared` is that of `_shared`, and was looked up before the versions.
        Also returns whether they are those of the call, for `_note`.
        """

    @abstractmethod
    def _note(self, key: Key) -> None:
        """Write to the database that the limits of a call apply."""


class Resolver(_Source):
    """The limits of clients: of those without rows by templates, of others by a query, at most RESOLVER_MAX_ENTRIES.

    All are read again after RESOLVER_TTL_SECONDS. A store rejects limits that are older than the configuration; the
    caller then calls `catch_up`, and asks again.
    """

    def cached(self, key: Key, shared: Hashable = None) -> ResolvedSet | None:
        """See `_Source.cached`."""
        configurations = self._configurations
        configuration = configurations.current() if sources.is_used else configurations.of_whole_site
        seen = configuration.sync.seen  # before anything is looked up
        if monotonic() >= configuration.due_at:
            return None
        try:
            aged = configuration.clients.values.get(key)
        except TypeError:  # an unhashable argument: `get` raises the error for it
            return None
        if aged is None:
            return None if shared is key else self._of_template(configuration, key, seen)
        version = self._usable_version(aged.value, aged, seen)
        if version is None:
            return None
        aged.is_used = True
        if aged.value.limit_set.version != version:
            aged.value = aged.value.at_version(version)
        self._hits += 1
        return aged.value

    def _of_template(self, configuration: KeptConfiguration, key: Key, seen: Seen) -> ResolvedSet | None:
        general = _general(configuration, key)
        templates = None if general is None else configuration.templates.get(general)
        template = None if templates is None else templates.value.find(key[1])
        if templates is None or template is None:
            return None
        version = self._usable_version(template.resolved, templates, seen)
        if version is None:
            return None
        self._hits += 1
        return configuration.bound(key, template, version)

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Read the limits of several keys that are not kept, in one query for 100 of them, for `get`.

        What cannot be read now is left to `get`, with its errors. Raises InvalidLimit for an invalid key.
        """
        if not policy_source.is_database:
            return
        self.configuration.refresh()
        missing = [key for key in map(self._checked, keys) if self.cached(key) is None]
        of_templates = iter({self._shared(key): key for key in missing}.values())
        while some := list(islice(of_templates, BATCH)):
            before = self._before(self.configuration.sync.seen)
            subjects = [Subject(resource, entity, plan) for resource, entity, _, plan in some]
            try:
                chains = stored_chains(subjects, write_alias(), before.at)
                for key, stored in zip(some, chains, strict=True):
                    if self._compiled(key, _general(self.configuration, key), stored, before)[1]:
                        self._note(key)
            except (Unresolved, UnknownPool):
                return

    def clear(self) -> None:
        """Forget everything."""
        self._configurations.clear()

    def info(self) -> ResolverInfo:
        """Hits, misses and size, of all namespaces."""
        size = sum(len(kept.clients) + len(kept.templates) for kept in self._configurations.all())
        return ResolverInfo(self._hits, self._misses, size)

    def _checked(self, key: Key) -> Key:
        resource, entity, default_limits, plan = key
        check_names(resource, entity)
        check_plan(plan)
        return resource, entity, checked_defaults(default_limits), plan

    def _shared(self, key: Key) -> Hashable:
        return _general(self.configuration, key) or key

    def _last(self, key: Key) -> tuple[ResolvedSet, Age] | None:
        configuration = self.configuration
        aged = configuration.clients.get(key)
        if aged is not None:
            return aged.value, aged
        general = _general(configuration, key)
        templates = None if general is None else configuration.templates.get(general)
        template = None if templates is None else templates.value.find(key[1])
        return None if templates is None or template is None else (template.resolved, templates)

    def _read(self, key: Key, shared: Hashable, seen: Seen) -> tuple[ResolvedSet, bool]:
        resource, entity, default_limits, plan = key
        configuration, before = self.configuration, self._before(seen)
        # Again, since rows may have been added before the versions that were seen.
        general = None if shared is key else _general(configuration, key)
        if general is not None:
            # Read for clients whom a rollout includes, or for others.
            kept = self._template(configuration.templates.get(general), entity, before)
            if kept is not None:
                template, version = kept
                return configuration.bound(key, template, version), template.uses_code
        subject = Subject(resource, entity, plan)
        if policy_source.is_database:
            [stored] = stored_chains([subject], write_alias(), before.at)
            return self._compiled(key, general, stored, before)
        reading = read_policies(subject, before.at, StoreVersions(seen=seen), before.generation)
        resolution = resolution_of(reading, resource, default_limits, before.at)
        names = {link.entity or "" for link in reading.chain.links}.union(reading.chain.above)
        self._keep_client(key, resolution.resolved, names, seen)
        return resolution.resolved, resolution.choices[0].uses_code

    def _compiled(
        self, key: Key, general: General | None, stored: StoredChain, before: _Before
    ) -> tuple[ResolvedSet, bool]:
        """See `_read`, for the rows of a key: of all that have the same ones, the first one is compiled."""
        resource, entity, default_limits, plan = key
        configuration = self.configuration
        alike: Alike = resource, default_limits, stored.content()
        if general is None:
            kept = self._template(configuration.alike.get(alike), entity, before)
            if kept is not None:
                template, version = kept
                resolved = template.bind(entity, version)
                self._keep_client(key, resolved, stored.identifiers, before.seen)
                return resolved, template.uses_code
        versions = StoreVersions(seen=before.seen)
        subject = Subject(resource, entity, plan)
        reading = read_policies(subject, before.at, versions, before.generation, found=stored.chain())
        templates = Templates(reading, resource, default_limits)
        template, aged = templates.compiled(entity, before.at), Aged(templates, conf.get(conf.RESOLVER_TTL_SECONDS))
        if general is not None and is_of_no_client(reading.chain, plan, general[1]):
            configuration.keep(before.seen, partial(configuration.templates.add, general, aged, most=_most()))
        else:
            configuration.keep(before.seen, partial(configuration.alike.add, alike, aged, most=_MOST_ALIKE))
            self._keep_client(key, template.resolved, stored.identifiers, before.seen)
        return template.resolved, template.uses_code

    def _template(
        self, templates: Aged[Templates] | None, entity: str | None, before: _Before
    ) -> tuple[Template, int] | None:
        """The template of a client among those that are kept, and the version for which it may be used."""
        if templates is None or not lasts(templates.kept_at, templates.seconds, monotonic()):
            return None
        template = templates.value.find(entity) or templates.value.compiled(entity, before.at)
        version = self._usable_version(template.resolved, templates, before.seen)
        return None if version is None else (template, version)

    def _keep_client(self, key: Key, resolved: ResolvedSet, names: Iterable[str], seen: Seen) -> None:
        """Keep the limits of a client, which were read from rows with some identifiers."""
        entity, configuration = key[1], self.configuration
        identifiers = {*names, *(() if entity is None else identifiers_read(entity))}
        digests = frozenset(map(identifier_digest, identifiers))
        aged = Aged(resolved, conf.get(conf.RESOLVER_TTL_SECONDS), digests)
        configuration.keep(seen, partial(configuration.clients.add, key, aged, most=_most()))

    def _before(self, seen: Seen) -> _Before:
        return _Before(seen, self.configuration.generation, datetime.fromtimestamp(self.clock(), UTC))

    def _note(self, key: Key) -> None:
        resource, _, default_limits, _ = key
        noted = self.configuration.noted
        if default_limits and (resource, default_limits) not in noted:
            if len(noted) >= _MOST_NOTED:
                noted.clear()
            note_code_limits(resource, default_limits, noted)


class PoolResolver(_Source):
    """The limits of pools by name, without those of any resource.

    A key has the name of the pool, and the alias of a store (None: the default one) in place of an entity.
    """

    def _checked(self, key: Key) -> Key:
        return key

    def _shared(self, key: Key) -> Hashable:
        return key

    def cached(self, key: Key, shared: Hashable = None) -> ResolvedSet | None:  # noqa: ARG002 - the key
        """See `_Source.cached`."""
        seen = self.configuration.sync.seen
        last = None if monotonic() >= self.configuration.due_at else self._last(key)
        version = None if last is None else self._usable_version(*last, seen)
        if last is None or version is None:
            return None
        return last[0] if last[0].limit_set.version == version else last[0].at_version(version)

    def _last(self, key: Key) -> tuple[ResolvedSet, Age] | None:
        configuration = self.configuration
        aged = configuration.pools.get(key)
        if aged is None or aged.value[0] != configuration.generation:
            return None
        return aged.value[1], aged

    def _read(self, key: Key, shared: Hashable, seen: Seen) -> tuple[ResolvedSet, bool]:  # noqa: ARG002 - the key
        configuration = self.configuration
        generation = configuration.generation
        resolved = resolve_pool(*key[:2], seen=seen, generation=generation)
        aged = Aged((generation, resolved), conf.get(conf.RESOLVER_TTL_SECONDS))
        configuration.keep(seen, partial(configuration.pools.add, key, aged, most=_most()))
        return resolved, False

    def _note(self, key: Key) -> None:
        """Nothing: a pool has no limits of a call."""


def _general(configuration: KeptConfiguration, key: Key) -> General | None:
    """What the limits of a client depend on; None where it may have rows."""
    resource, entity, default_limits, plan = key
    if not policy_source.is_database:
        return None
    if entity is None:
        return resource, (), default_limits, plan
    known = configuration.known.known  # one state of it for both look-ups
    if not isinstance(entity, str) or not 0 < len(entity) <= MAX_ENTITY_LENGTH or not can_be_stored(entity):
        return None
    if known.may_have_rows(entity):
        return None
    return resource, known.patterns.matching(entity), default_limits, plan


def _most() -> int:
    return conf.get(conf.RESOLVER_MAX_ENTRIES)


def _can_open(alias: str) -> bool:
    try:
        resilient_store(alias).open()
    except StoreUnavailable:
        return False
    return True


configuration: Final = CurrentConfiguration()
resolver: Final = Resolver(configuration)
pool_resolver: Final = PoolResolver(configuration)


def advance_version(
    *,
    changes: Changes = (ALL,),
    namespace: Namespace | None = None,
    **details: object,  # noqa: ARG001 - a receiver of a signal
) -> None:
    """Announce changes of a namespace to every process that shares a store, which makes what they concern stale.

    A store that is unavailable receives them when it is back. Until then this process applies them by itself, and
    others use what they have kept until it expires.
    """
    keys = current_keys() if namespace is None else namespace
    if not conf.get(conf.ENABLED):
        configuration.apply(changes, keys)
    for alias in aliases():
        store = resilient_store(alias)
        try:
            store.open().advance_version(changes, keys.configuration)
        except StoreUnavailable as error:
            logger.warning(
                "the store %r has not received a change of limits; other processes apply the change within "
                "RESOLVER_TTL_SECONDS: %s",
                alias,
                error,
            )
            store.advance_version_later(changes, keys.configuration)
            configuration.apply(changes, keys)

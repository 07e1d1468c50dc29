"""The limits of clients: of those without rows by templates, of others by a query."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.engine import MAX_ENTITY_LENGTH, lasts
from limits_app.engine.errors import UnknownPool, Unresolved
from limits_app.models import note_code_limits, write_alias
from limits_app.models.changes import identifier_digest
from limits_app.models.namespaces import sources
from limits_app.models.users import identifiers_of_client
from limits_app.policies.base_resolver import BaseResolver, most_entries
from limits_app.policies.chain import StoredChain, Subject
from limits_app.policies.kept import Age, Aged
from limits_app.policies.kept_configuration import Alike, General, KeptConfiguration, ResolutionKey, configuration
from limits_app.policies.query import can_be_stored, stored_chains
from limits_app.policies.resolution import (
    BATCH,
    DefaultLimits,
    check_names,
    check_plan,
    checked_defaults,
    latest_code_limits,
    policy_source,
    read_policies,
    resolution_of,
)
from limits_app.policies.resolved_set import ResolvedSet
from limits_app.policies.stores import StoreVersions
from limits_app.policies.sync import Seen
from limits_app.policies.template import Template, Templates, is_of_no_client

_MOST_ALIKE: Final = 1024
"""How many templates of clients with rows are kept; others who have the same rows need not be compiled."""
_MOST_NOTED: Final = 1000
"""How many resources and limits of code are known to be in the database; after that, all are written again."""


class ResolverInfo(NamedTuple):
    """Numbers of the cache of this process."""

    hits: int
    misses: int
    size: int


class _Before(NamedTuple):
    """What was read before a query: the versions, the generation, and the time; and what is kept in the namespace."""

    configuration: KeptConfiguration
    seen: Seen
    generation: int
    at: datetime


class Resolver(BaseResolver):
    """The limits of clients: of those without rows by templates, of others by a query, at most RESOLVER_MAX_ENTRIES.

    All are read again after RESOLVER_TTL_SECONDS. A store rejects limits that are older than the configuration; the
    caller then calls `catch_up`, and asks again.
    """

    def cached(self, key: ResolutionKey, shared: Hashable = None) -> ResolvedSet | None:
        """See `BaseResolver.cached`."""
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

    def _of_template(self, configuration: KeptConfiguration, key: ResolutionKey, seen: Seen) -> ResolvedSet | None:
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

    def code_limits(self, resource: str) -> DefaultLimits:
        """The limits that code used last on a resource, read again after RESOLVER_TTL_SECONDS."""
        kept = self.configuration.code_limits
        aged = kept.get(resource)
        if aged is None or not lasts(aged.kept_at, aged.seconds, monotonic()):
            aged = Aged(latest_code_limits(resource), conf.get(conf.RESOLVER_TTL_SECONDS))
            kept.add(resource, aged, most=most_entries())
        return aged.value

    def prefetch(self, keys: Iterable[ResolutionKey]) -> None:
        """Read the limits of several keys that are not kept, in one query for 100 of them, for `get`.

        What cannot be read now is left to `get`, with its errors. Raises InvalidLimit for an invalid key.
        """
        if not policy_source.is_database:
            return
        configuration = self.configuration
        configuration.refresh()
        missing = [key for key in map(self._checked, keys) if self.cached(key) is None]
        of_templates = iter({self._shared(key): key for key in missing}.values())
        while batch := list(islice(of_templates, BATCH)):
            before = self._before(configuration, configuration.sync.seen)
            subjects = [Subject(resource, entity, plan) for resource, entity, _, plan in batch]
            try:
                chains = stored_chains(subjects, write_alias(), before.at)
                for key, stored in zip(batch, chains, strict=True):
                    if self._compiled(key, _general(configuration, key), stored, before)[1]:
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

    def _checked(self, key: ResolutionKey) -> ResolutionKey:
        resource, entity, default_limits, plan = key
        check_names(resource, entity)
        check_plan(plan)
        return resource, entity, checked_defaults(default_limits), plan

    def _shared(self, key: ResolutionKey) -> Hashable:
        return _general(self.configuration, key) or key

    def _last(self, key: ResolutionKey) -> tuple[ResolvedSet, Age] | None:
        configuration = self.configuration
        aged = configuration.clients.get(key)
        if aged is not None:
            return aged.value, aged
        general = _general(configuration, key)
        templates = None if general is None else configuration.templates.get(general)
        template = None if templates is None else templates.value.find(key[1])
        return None if templates is None or template is None else (template.resolved, templates)

    def _read(self, key: ResolutionKey, shared: Hashable, seen: Seen) -> tuple[ResolvedSet, bool]:
        resource, entity, default_limits, plan = key
        configuration = self.configuration
        before = self._before(configuration, seen)
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
        self._keep_client(key, resolution.resolved, names, before)
        return resolution.resolved, resolution.choices[0].uses_code

    def _compiled(
        self, key: ResolutionKey, general: General | None, stored: StoredChain, before: _Before
    ) -> tuple[ResolvedSet, bool]:
        """See `_read`, for the rows of a key: of all that have the same ones, the first one is compiled."""
        resource, entity, default_limits, plan = key
        configuration = before.configuration
        alike: Alike = resource, default_limits, stored.content(default_limits)
        if general is None:
            kept = self._template(configuration.alike.get(alike), entity, before)
            if kept is not None:
                template, version = kept
                resolved = template.bind(entity, version)
                self._keep_client(key, resolved, stored.identifiers, before)
                return resolved, template.uses_code
        versions = StoreVersions(seen=before.seen)
        subject = Subject(resource, entity, plan)
        reading = read_policies(subject, before.at, versions, before.generation, chain=stored.chain())
        templates = Templates(reading, resource, default_limits)
        template, aged = templates.compiled(entity, before.at), Aged(templates, conf.get(conf.RESOLVER_TTL_SECONDS))
        if general is not None and is_of_no_client(reading.chain, plan, general[1]):
            configuration.keep(before.seen, partial(configuration.templates.add, general, aged, most=most_entries()))
        else:
            configuration.keep(before.seen, partial(configuration.alike.add, alike, aged, most=_MOST_ALIKE))
            self._keep_client(key, template.resolved, stored.identifiers, before)
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

    def _keep_client(self, key: ResolutionKey, resolved: ResolvedSet, names: Iterable[str], before: _Before) -> None:
        """Keep the limits of a client, which were read from rows with some identifiers."""
        entity, configuration = key[1], before.configuration
        identifiers = {*names, *(() if entity is None else identifiers_of_client(entity))}
        digests = tuple(set(map(identifier_digest, identifiers)))
        aged = Aged(resolved, conf.get(conf.RESOLVER_TTL_SECONDS), digests)
        configuration.keep(before.seen, partial(configuration.clients.add, key, aged, most=most_entries()))

    def _before(self, configuration: KeptConfiguration, seen: Seen) -> _Before:
        return _Before(configuration, seen, configuration.generation, datetime.fromtimestamp(self.clock(), UTC))

    def _note(self, key: ResolutionKey) -> None:
        resource, _, default_limits, _ = key
        noted = self.configuration.noted
        if default_limits and (resource, default_limits) not in noted:
            if len(noted) >= _MOST_NOTED:
                noted.clear()
            note_code_limits(resource, default_limits, noted)


def _general(configuration: KeptConfiguration, key: ResolutionKey) -> General | None:
    """What the limits of a client depend on; None where it may have rows."""
    resource, entity, default_limits, plan = key
    if not policy_source.is_database:
        return None
    if entity is None:
        return resource, (), default_limits, plan
    identifiers = configuration.known.known  # one state of it for both look-ups
    if not isinstance(entity, str) or not 0 < len(entity) <= MAX_ENTITY_LENGTH or not can_be_stored(entity):
        return None
    if identifiers.may_have_rows(entity):
        return None
    return resource, identifiers.patterns.matching(entity), default_limits, plan


resolver: Final = Resolver(configuration)

"""The rules for URLs that administrators set: which of them match a request, and whether they are current."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from math import inf
from time import monotonic
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import router
from django.http import HttpRequest
from django.urls import Resolver404, resolve

from limits_app import conf
from limits_app.acquiring import LimitSet
from limits_app.engine import GivenAmount, Requested, shown
from limits_app.engine.errors import Unresolved
from limits_app.models import Endpoint, changes
from limits_app.models.in_tests import are_empty_in_test
from limits_app.models.namespaces import sources
from limits_app.models.own_queries import read
from limits_app.policies import AccessTable, configuration
from limits_app.services.amounts import RequestedAmounts, one_of_each, ones_of
from limits_app.services.exempt_requests import has_exemptions
from limits_app.services.routes import RouteTree
from limits_app.services.unavailable import without_limits
from limits_app.services.url_rules import UrlRule, compiled
from limits_app.stores.resilient import ResilientStore

logger = logging.getLogger("limits_app")

_RETRY_SECONDS: Final = 1.0
"""How long endpoints are used without another attempt while the database is unavailable."""
_STORE: Final = conf.STORE.name
_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 256
"""The length of a path and a method up to which they are cached; longer ones would let clients fill the memory."""


class OutdatedEndpoints(Exception):
    """The configuration may have changed since the endpoints were read; nothing was charged."""


class EndpointTable:
    """The enabled endpoints in their order, found by exact path, by route, and by the name of the view.

    `access` is who is blocked or exempt.
    `generation` is that of the configuration, read before the endpoints; None is for a table that is never outdated.
    The table is kept for `seconds` from `kept_at` on, by the monotonic clock, and as long as the settings are those of
    `conf.current()` that it was made with; None is for a table that was not read.
    """

    needs_verdict = True
    """Whether anyone at all may be blocked or exempt."""
    may_have_plan = True
    """Whether a request may have a plan, by PLAN_OF_REQUEST or by the groups of its user."""

    def __init__(
        self,
        rows: Iterable[Endpoint],
        generation: int | None = None,
        seconds: float = inf,
        *,
        access: AccessTable | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.generation = generation
        self.access = AccessTable() if access is None else access
        self.settings = settings
        if settings is not None:
            is_anyone_special = self.access.has_entries or has_exemptions(settings[conf.EXEMPT.name])
            self.needs_verdict = settings[conf.ENABLED.name] and is_anyone_special
            self.may_have_plan = settings[conf.PLAN_OF_REQUEST.name] is not None or bool(self.access.index.groups)
        self.keep(seconds)
        self._rules: list[UrlRule] = []
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._named: dict[str, list[int]] = defaultdict(list)
        self._routes = RouteTree()
        self.ones_if_current = self.confirming(None)
        """See `confirming`, for 1 of each limit."""
        self.known = lru_cache(maxsize=_MOST_KNOWN)(self._matching)
        """The rules that match a path, a view and a method, for those of usual length."""
        for row in rows:
            try:
                self._add(compiled(row, self._confirming), row)
            except (ImproperlyConfigured, ValidationError, ValueError, re.error):
                logger.exception("the rule %s is ignored until it is corrected", shown(row.name))

    def keep(self, seconds: float) -> None:
        """Keep the table for so long from now on."""
        self.kept_at, self.seconds = monotonic(), seconds

    def find(self, request: HttpRequest) -> tuple[UrlRule, ...]:
        """Return the rules that match a request, in their order."""
        path, method, match = request.path_info, request.method or "", request.resolver_match
        find = self.known if len(path) + len(method) <= _LONGEST_KNOWN else self._matching
        return find(path, None if match is None else match.view_name, method)

    def block_seconds(self, resource: str) -> float:
        """Return for how long rules block clients that have exceeded limits of a resource; 0 for not at all."""
        return max([rule.block_seconds for rule in self._rules if rule.resource == resource], default=0)

    def _matching(self, path: str, view_name: str | None, method: str) -> tuple[UrlRule, ...]:
        rules: list[UrlRule] = []
        for rule in self.candidates(path, view_name):
            if rule.fits(path, method):
                rules.append(rule)
                if rule.stop and not rule.exemptions:
                    break
        return tuple(rules)

    def candidates(self, path: str, view_name: str | None) -> list[UrlRule]:
        """Return the rules whose path or view may match, in their order."""
        numbers = self._routes.candidates(path.removeprefix("/"))
        if path in self._exact:
            numbers += self._exact[path]
        if view_name in self._named:
            numbers += self._named[view_name]
        if len(numbers) > 1:
            numbers.sort()
        return [self._rules[number] for number in numbers]

    def confirming(self, requested: RequestedAmounts) -> Callable[[LimitSet], Requested]:
        """Return a function of the effective limits that returns amounts, if the table is as current as these.

        None is for 1 of each limit. When the function is called the limits were looked up, and they are not charged
        yet. The store compares their version when it charges, so no query for it is needed before: what is known to
        have changed until then has changed the generation, or made the verdict on who is blocked outdated. Then the
        function raises OutdatedEndpoints.
        """
        generation, access = self.generation, self.access

        def amounts_if_current(limits: LimitSet) -> Requested:
            kept = configuration.current() if sources.is_used else configuration.of_whole_site
            # The limits that decide in place of an unavailable store are in another kind of store.
            is_outdated = generation not in {None, kept.generation}
            # A change since the last verdict may have made it another one.
            is_outdated = is_outdated or (access.seen is not kept.sync.seen and access.is_used)
            if is_outdated and isinstance(limits.store, ResilientStore):
                raise OutdatedEndpoints
            if callable(requested):
                return requested(limits)
            if requested is not None:
                return requested
            return ones_of(limits) if limits.no_money else limits.ones  # without a call for most requests

        return amounts_if_current

    def _confirming(self, named: Mapping[str, GivenAmount]) -> Callable[[LimitSet], Requested]:
        return self.confirming(partial(one_of_each, named) if named else None)

    def _add(self, rule: UrlRule, row: Endpoint) -> None:
        number = len(self._rules)
        if rule.route is not None:
            self._routes.add(rule.route, number)
        elif row.path:
            self._exact["/" + row.path.removeprefix("/")].append(number)
        else:
            self._named[row.view_name].append(number)
        self._rules.append(rule)


class Endpoints:
    """The compiled endpoints, which are kept with the configuration: until it changes, RESOLVER_TTL_SECONDS at most."""

    def __init__(self) -> None:
        self.read: Callable[[str], Iterable[Endpoint]] = _enabled
        """Returns the endpoints in a database; tests replace it."""
        self.read_access: Callable[[str], AccessTable] = AccessTable.read
        """Returns who is blocked or exempt in a database; tests replace it."""

    def current(self) -> EndpointTable:
        """Return the present endpoints, which are read when something has changed; see `KeptConfiguration.follow`."""
        configuration.follow()
        return self.cached(conf.current()) or self._load()

    def cached(self, settings: Mapping[str, Any]) -> EndpointTable | None:
        """Return the endpoints that were read last; None where they have to be read again. Queries nothing.

        `settings` are those of `conf.current()`.
        """
        kept = configuration.current() if sources.is_used else configuration.of_whole_site
        table = kept.url_rules
        if not isinstance(table, EndpointTable) or table.generation != kept.generation:
            return None
        if table.settings is not settings:
            return None
        # `lasts`, without a call for each request.
        return table if 0 <= monotonic() - table.kept_at < table.seconds else None

    def are_current(self, table: EndpointTable) -> bool:
        """Whether a table is known to be current, as a request needs that charges nothing and so cannot find it out.

        Calls no other machine. First the version is compared, then the generation, which a change makes another one
        before its version counts as seen.
        """
        kept = configuration.current() if sources.is_used else configuration.of_whole_site
        settings = table.settings or conf.current()
        return kept.is_followed(settings[_STORE]) and table.generation in {None, kept.generation}

    def clear(self) -> None:
        """Drop the endpoints."""
        for kept in configuration.all():
            kept.url_rules = None

    def _load(self) -> EndpointTable:
        kept = configuration.current()
        # Before the query: after a change in between, the endpoints are read once more.
        generation = kept.generation
        using = router.db_for_write(Endpoint)  # a replica may lack the latest change
        try:
            is_empty = are_empty_in_test([Endpoint], using)
            rows: list[Endpoint] = [] if is_empty else read(using, lambda: [*self.read(using)], [])
            access = self.read_access(using)
        except Unresolved as error:
            return _last_known(error)
        settings = conf.current()
        seconds = settings[conf.RESOLVER_TTL_SECONDS.name]
        table = EndpointTable(rows, generation, seconds, access=access, settings=settings)
        if changes.may_be_kept(using):  # rows that may be rolled back, or are outdated, are used once
            kept.url_rules = table
        return table


def _last_known(error: Unresolved) -> EndpointTable:
    """Return the endpoints that were read last, however old; without any, none unless ON_UNRESOLVED says block."""
    table = configuration.current().url_rules
    if not isinstance(table, EndpointTable):
        without_limits(error)
        return EndpointTable((), settings=conf.current())
    table.keep(_RETRY_SECONDS)
    return table


def _enabled(using: str) -> Iterable[Endpoint]:
    """Return the endpoints that are enabled, in their order."""
    return Endpoint.objects.using(using).filter(enabled=True).select_related("resource").order_by("order", "pk")


endpoints: Final = Endpoints()

UNREAD: Final = EndpointTable(())
"""The table of a request that has not needed one yet."""


def rules_for_path(path: str, method: str = "GET") -> tuple[UrlRule, ...]:
    """Return the rules that match a request to a path of the site, in their order; exemptions are not considered."""
    request = HttpRequest()
    request.path_info, request.method = path, method
    with suppress(Resolver404):
        request.resolver_match = resolve(path)
    return endpoints.current().find(request)

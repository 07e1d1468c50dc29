"""Endpoints: which rule of the administrators is about a request."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, router

from limits_app import conf
from limits_app.core.amounts import Amount, shown
from limits_app.core.errors import InvalidLimit, InvalidRequest, StoreUnavailable
from limits_app.core.keys import check_resource
from limits_app.integrations.routes import Route, RouteTree
from limits_app.models import Endpoint, changes
from limits_app.stores.guards import Guard, guard_of

__all__ = ["EndpointTable", "Endpoints", "Rule", "endpoints"]

logger = logging.getLogger("limits_app")


_BLIND_SECONDS: Final = 1.0
_route: Final = lru_cache(maxsize=4096)(Route)  # most routes are the same after a change


@dataclass(slots=True)
class Rule:
    """An endpoint, compiled; `route` is None where the path or the view was looked up by name."""

    name: str
    resource: str
    amounts: Mapping[str, Amount]
    methods: frozenset[str]
    route: Route | None
    reported: bool = False

    def fits(self, path: str, method: str) -> bool:
        """Whether a request whose path or view may fit does so.

        Without methods it is about all but OPTIONS, which browsers ask by themselves; with GET about HEAD too.
        """
        if not self.methods:
            fits_method = method != "OPTIONS"
        else:
            fits_method = method in self.methods or (method == "HEAD" and "GET" in self.methods)
        return fits_method and (self.route is None or self.route.fits(path.removeprefix("/")))

    def report(self, error: InvalidRequest) -> None:
        """Log, once, that its amounts cannot be requested of the limits that hold."""
        if not self.reported:
            self.reported = True
            logger.error("the endpoint %s takes 1 of each limit until its amounts are corrected: %s", self.name, error)


class EndpointTable:
    """The enabled endpoints in their order, found by exact path, by route, and by the name of the view."""

    def __init__(self, rows: Iterable[Endpoint]) -> None:
        self._rules: list[Rule] = []
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._named: dict[str, list[int]] = defaultdict(list)
        self._routes = RouteTree()
        for row in rows:
            try:
                self._add(row)
            except (ImproperlyConfigured, InvalidLimit, re.error):
                logger.exception("the endpoint %s is passed over until it is corrected", shown(row.name))

    def find(self, path: str, view_name: str | None, method: str) -> Rule | None:
        """The first rule that fits a request."""
        for rule in self.candidates(path, view_name):
            if rule.fits(path, method):
                return rule
        return None

    def candidates(self, path: str, view_name: str | None) -> list[Rule]:
        """The rules whose path or view may fit, in their order."""
        numbers = self._routes.candidates(path.removeprefix("/"))
        if path in self._exact:
            numbers += self._exact[path]
        if view_name in self._named:
            numbers += self._named[view_name]
        if len(numbers) > 1:
            numbers.sort()
        return [self._rules[number] for number in numbers]

    def _add(self, row: Endpoint) -> None:
        route = _route(row.path) if "<" in row.path else None
        rule = Rule(row.name, check_resource(row.resource.name), _amounts(row.amounts), row.method_set, route)
        number = len(self._rules)
        if route is not None:
            self._routes.add(route, number)
        elif row.path:
            self._exact["/" + row.path.removeprefix("/")].append(number)
        else:
            self._named[row.view_name].append(number)
        self._rules.append(rule)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A table, and until when it holds at most; without a store nobody can say that it has changed."""

    table: EndpointTable
    guard: Guard | None
    version: int
    until: float


class Endpoints:
    """Keeps the compiled endpoints of this process until the configuration changes, RESOLVER_TTL_SECONDS at most."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def current(self) -> EndpointTable:
        """The endpoints as they are now; asks the database, in one query, when something has changed."""
        return self.kept() or self._load()

    async def acurrent(self) -> EndpointTable:
        """`current` for asyncio; a thread asks the database."""
        return self.kept() or await sync_to_async(self._load)()

    def kept(self) -> EndpointTable | None:
        """The compiled endpoints if they are there and nothing has changed, as far as the store can say."""
        kept = self._kept
        if kept is None or kept.until < monotonic():
            return None
        try:
            return kept.table if kept.guard is None or kept.guard.version() == kept.version else None
        except StoreUnavailable:
            return kept.table

    def clear(self) -> None:
        """Forget the endpoints."""
        self._kept = None

    def _load(self) -> EndpointTable:
        guard, version, seconds = _now()  # before the query: a change in between makes the answer stale, never wrong
        using = router.db_for_read(Endpoint)
        rows = Endpoint.objects.using(using).filter(enabled=True).select_related("resource").order_by("order", "pk")
        try:
            table = EndpointTable(rows)
        except (OperationalError, InterfaceError) as error:
            return self._known_last(error)
        if not changes.pending(using):  # what may be rolled back is used once
            self._kept = _Kept(table, guard, version, monotonic() + seconds)
        return table

    def _known_last(self, error: Exception) -> EndpointTable:
        """The endpoints that were kept last, however old, while the database is down."""
        if self._kept is None:
            raise error
        logger.warning("the database is down, endpoints are those known last: %s", error)
        self._kept = replace(self._kept, until=monotonic() + _BLIND_SECONDS)
        return self._kept.table


def _now() -> tuple[Guard | None, int, float]:
    """The guard of the store, the version there, and how many seconds what is read now may be kept."""
    try:
        guard = guard_of()
        return guard, guard.version(), conf.get(conf.RESOLVER_TTL_SECONDS)
    except StoreUnavailable:
        return None, 0, _BLIND_SECONDS


def _amounts(value: Any) -> Mapping[str, Amount]:
    if not isinstance(value, dict):
        raise InvalidLimit(f"amounts must be an object, not {shown(value)}")
    return value


endpoints: Final = Endpoints()

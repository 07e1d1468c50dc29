"""Reads in the background which identifiers have rows: all entities, and all users in groups with plans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Final
from weakref import WeakSet

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from limits_app.conf import test_runner
from limits_app.engine import SECOND_US, Clock, monotonic_us
from limits_app.engine.errors import Unresolved
from limits_app.models import Entity, PlanGroup, write_alias
from limits_app.models.namespaces import SiteNamespace, entered, is_entered
from limits_app.models.own_queries import read
from limits_app.models.plan import groups_have_plans, memberships
from limits_app.models.users import user_identifier
from limits_app.policies.identifiers import KnownIdentifiers
from limits_app.stores.background import BackgroundTask

logger = logging.getLogger("limits_app")

_SHARE: Final = 4
"""How many times as long as a page took the next one waits: requests lose at most a fifth of the processor."""

_enabled = True


def read_in_background(enabled: bool) -> None:
    """Start threads that read identifiers, or start none, as in tests: there every client may have rows."""
    global _enabled  # noqa: PLW0603 - one switch for all readers of the process
    _enabled = enabled


def entities(above: Any, most: int) -> Sequence[tuple[Any, str]]:
    """A page of entities; see `identifiers.Read`."""
    using = write_alias()
    rows = Entity.objects.using(using).order_by("pk")
    if above is not None:
        rows = rows.filter(pk__gt=above)
    return read(using, lambda: [*rows.values_list("pk", "identifier")[:most]], [])


def members_of_groups(above: Any, most: int) -> Sequence[tuple[Any, str]]:
    """A page of users in groups with plans; see `identifiers.Read`."""
    using = write_alias()
    if not groups_have_plans(using):
        return ()
    field = memberships()
    user, group = field.m2m_field_name(), field.m2m_reverse_field_name()
    groups = PlanGroup.objects.using(using).values("group_id")
    rows = field.remote_field.through._default_manager.using(using).filter(**{f"{group}__in": groups}).order_by("pk")
    if above is not None:
        rows = rows.filter(pk__gt=above)
    page: list[tuple[Any, Any]] = read(using, lambda: [*rows.values_list("pk", f"{user}_id")[:most]], [])
    return [(key, user_identifier(person)) for key, person in page]


def _keep_no_pages() -> None:
    """Let the connection of this thread keep few pages of the database, of which each is read once."""
    using = write_alias()
    connection = connections[using]
    if connection.vendor == "sqlite":

        def keep_few() -> None:
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA cache_size = -100")  # kilobytes; by default 2,000 in each connection

        read(using, keep_few, None)


class IdentifierReader:
    """Reads identifiers page by page in a background thread, until all were read.

    `kept` returns those of each namespace that the process keeps, of which a page each is read in turn.
    """

    def __init__(self, kept: Callable[[], Iterable[tuple[SiteNamespace, KnownIdentifiers]]]) -> None:
        self._kept = kept
        self._given_up: WeakSet[KnownIdentifiers] = WeakSet()
        """Those of namespaces that this thread cannot enter."""
        self._task = BackgroundTask(self._step, SECOND_US, clock=Clock(monotonic_us))

    def start(self) -> None:
        """Read the rest soon; in tests nothing."""
        if _enabled and test_runner.current_test() is None:
            self._task.start()

    def _step(self) -> int | None:
        """Read a page of each; returns in how many microseconds to read the next ones, None after the last."""
        started, has_read, is_left = perf_counter(), False, False
        for namespace, identifiers in self._kept():
            if identifiers.is_complete or identifiers in self._given_up:
                continue
            try:
                is_left |= _read_page(namespace, identifiers)
                has_read = True
            except Unresolved as error:
                logger.debug("the identifiers that have rows are not known yet: %s", error)
                is_left = True
            except ImproperlyConfigured as error:
                logger.warning("which clients have rows is unknown, so that the rows of each are queried: %s", error)
                self._given_up.add(identifiers)
        if is_left:
            return (round((perf_counter() - started) * _SHARE * SECOND_US) or 1) if has_read else SECOND_US
        connections.close_all()
        return None


def _read_page(namespace: SiteNamespace, identifiers: KnownIdentifiers) -> bool:
    """Read the next page of a namespace; returns whether there may be more."""
    with entered(namespace):
        if is_entered(namespace):
            _keep_no_pages()
            return identifiers.read_page()
        raise ImproperlyConfigured(
            f"the database router does not choose {namespace.alias!r} in background threads: set "
            "LIMITS['NAMESPACE_CONTEXT'] to a function that takes this alias and returns a context manager in which "
            "it does"
        )

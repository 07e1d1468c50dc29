"""Rows of the service and its resolver, on the demo site's settings with a database and a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from benchmarks import django_site
from benchmarks.harness import Contender, Effort, take_turns
from benchmarks.references import REF, ref
from benchmarks.rows import Line, Row, Skipped, at_most
from benchmarks.subjects import OURS, calls

__all__ = ["ROWS"]

_RESOURCE: Final = "bench"
_ENTITY: Final = "user:42"
_IN_MEMORY: Final = {"STORES": {"default": {"KIND": "memory"}}}


def _acquire(effort: Effort) -> Iterable[Line]:
    with _site():
        from limits_app import limits

        bare = limits.limit_set(_RESOURCE, _ENTITY)

        def by_name() -> None:
            with limits.acquire(_RESOURCE, entity=_ENTITY):
                pass

        def by_set() -> None:
            with bare.try_acquire():
                pass

        assert bare.try_acquire()
        by_name()
        samples = take_turns([ref(), Contender("set", by_set), Contender(OURS, by_name)], effort)
    more = samples.ratio(OURS, REF, over="set")
    yield Line(f"{OURS}, limits.acquire(...) more than its limit set", more, "x ref more", at_most(4))
    yield Line(f"  {OURS}, limits.acquire(...)", samples.ratio(OURS, REF), "x ref")
    yield Line(f"  {OURS}, the limit set", samples.ratio("set", REF), "x ref")


def _miss(effort: Effort) -> Iterable[Line]:
    with _site():
        from django.db import connection

        from limits_app.resolver import resolve

        sent: list[tuple[str, Any]] = []

        def note(execute: Callable[..., object], sql: str, parameters: object, *rest: object) -> object:
            sent.append((sql, parameters))
            return execute(sql, parameters, *rest)

        with connection.execute_wrapper(note):
            resolve(_RESOURCE, _ENTITY)
        [(statement, values)] = sent

        def query() -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                cursor.fetchall()

        numbers = count()
        miss = Contender(OURS, lambda: resolve(_RESOURCE, f"user:{next(numbers)}"))
        samples = take_turns([Contender("query", query), miss], effort)
    yield Line(OURS, samples.ratio(OURS, "query"), "x its one query", at_most(3))


@contextmanager
def _site() -> Iterator[None]:
    """A site on which one call limit is set for everybody on one resource."""
    try:
        django_site.start()
    except (ImportError, RuntimeError) as error:
        raise Skipped(f"the site does not start: {error}") from error
    from django.test.utils import override_settings

    from limits_app.models import Limit, Policy, Resource

    with override_settings(LIMITS=_IN_MEMORY):
        resource, created = Resource.objects.get_or_create(name=_RESOURCE)
        if created:
            Limit.from_definition(Policy.objects.create(resource=resource), calls()).save()
        yield


ROWS: Final = (
    Row("resolver: limits.acquire on a warm resolver", _acquire),
    Row("resolver: a miss", _miss),
)

"""Rows of the service and its resolver, on the demo site's settings with a database and a store in memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from resource import getpagesize
from typing import TYPE_CHECKING, Any, Final

from benchmarks import django_site
from benchmarks.harness import Contender, Effort, absolute, take_turns
from benchmarks.references import REF, ref
from benchmarks.rows import Line, Row, Skipped, at_most
from benchmarks.subjects import OURS, calls

if TYPE_CHECKING:
    from datetime import datetime

    from limits_app.policies import PolicyChain

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
    yield Line(f"{OURS}, limits.acquire(...) more than its limit set", more, "x ref more", at_most(6))
    yield Line(f"  {OURS}, limits.acquire(...)", samples.ratio(OURS, REF), "x ref")
    yield Line(f"  {OURS}, the limit set", samples.ratio("set", REF), "x ref")


def _miss(effort: Effort) -> Iterable[Line]:
    with _site():
        from django.db import connection

        from limits_app.policies import resolve

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


def _memory(effort: Effort) -> Iterable[Line]:
    """What the process has grown by once the cache is full, and when as many entities have come as there are."""
    with _site():
        from limits_app import conf
        from limits_app.policies import resolver

        few = 2 * conf.get(conf.RESOLVER_MAX_ENTRIES)
        many = effort.sized(1_000_000, 2 * few)
        before, grown = _resident_bytes(), dict[int, int]()
        with _without_queries():
            for number in range(many):
                resolver.get((_RESOURCE, f"user:{number}", (), None))
                if number + 1 in {few, many}:
                    gc.collect()
                    grown[number + 1] = _resident_bytes() - before
        size = resolver.info().size
    yield Line(f"{OURS}, after {many:,} entities", absolute([grown[many] / grown[few]]), f"x {few:,}", at_most(1.2))
    yield Line(f"  {OURS}, {size:,} limit sets that are kept", absolute([grown[many] / size]), "bytes each")


@contextmanager
def _without_queries() -> Iterator[None]:
    """Everybody is told what the database says of one, who has nothing of their own: a million queries take long."""
    from django.utils import timezone

    from limits_app.models import write_alias
    from limits_app.policies import Subject, policy_source

    read, told = policy_source.read, policy_source.read(Subject(_RESOURCE, _ENTITY), write_alias(), timezone.now())

    def tell(subject: Subject, _using: str, _now: datetime) -> PolicyChain:
        return replace(told, links=[replace(link, entity=subject.entity) for link in told.links])

    policy_source.read = tell
    try:
        yield
    finally:
        policy_source.read = read


def _resident_bytes() -> int:
    """The memory of this process that is in use; Linux tells."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError as error:
        raise Skipped(f"the memory of a process is read from /proc: {error}") from error
    return int(pages) * getpagesize()


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
    Row("resolver: memory after 1,000,000 distinct entities", _memory),
)

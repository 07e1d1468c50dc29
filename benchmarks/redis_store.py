"""Rows of the Redis store: beside a script of four lines, sent by redis-py to the same server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.harness import Contender, Effort, microseconds, take_turns
from benchmarks.in_process import slope
from benchmarks.references import REF, REF_REDIS, beside_redis, ref
from benchmarks.rows import Line, Row, at_most
from benchmarks.stores import redis_store_at
from benchmarks.subjects import OURS, THREE, calls, limits_of, one_call, three_limits
from limits_app import CallLimit, LimitPool, LimitSet, RateLimit, RateLimitAlgorithm
from limits_app.acquiring.store import Store
from limits_app.engine.keys import scope_of
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits

__all__ = ["ROWS"]

_X_REDIS: Final = "x ref-redis"
_MOST_LIMITS: Final = 6
_MEMBERS: Final = 6
_BALANCERS: Final = ("round_robin", "failover", "random", "weighted", "least_loaded")


@contextmanager
def _beside() -> Iterator[tuple[Contender, Store]]:
    """The reference, and a store on its server."""
    with beside_redis() as (reference, port), redis_store_at(port) as store:
        yield reference, store


def _one_limit(effort: Effort) -> Iterable[Line]:
    with _beside() as (reference, store):
        ours = [one_call(limits_of([calls(one)], store, one), str(one)) for one in RateLimitAlgorithm]
        samples = take_turns([reference, *ours], effort)
    for algorithm in RateLimitAlgorithm:
        bar = at_most(1.15) if algorithm is RateLimitAlgorithm.TOKEN_BUCKET else None
        yield Line(f"{OURS}, {algorithm}", samples.ratio(str(algorithm), REF_REDIS), _X_REDIS, bar)
    yield Line(f"  {REF_REDIS} itself", microseconds(samples, REF_REDIS), "us")


def _four_limits(effort: Effort) -> Iterable[Line]:
    amounts = {"tokens": 10, "units": 1}
    with _beside() as (reference, store):
        schema = schema_of((calls(), RateLimit("tokens", 10**9, 3600)), store.lease_us)
        parents = schema_of((calls(), RateLimit("units", 10**9, 3600)), store.lease_us)
        scoped = [ScopedLimits(scope_of("bench", "child"), schema), ScopedLimits(scope_of("bench", "parent"), parents)]
        limits = LimitSet.composed(scoped, store)
        assert limits.try_acquire(amounts)
        samples = take_turns([reference, Contender(OURS, lambda: limits.try_acquire(amounts))], effort)
    yield Line(OURS, samples.ratio(OURS, REF_REDIS), _X_REDIS, at_most(1.4))


def _three_limits(effort: Effort) -> Iterable[Line]:
    with _beside() as (reference, store):
        samples = take_turns([reference, three_limits(limits_of(THREE, store))], effort)
    yield Line(OURS, samples.ratio(OURS, REF_REDIS), _X_REDIS, at_most(2.8))


def _refused(effort: Effort) -> Iterable[Line]:
    with _beside() as (reference, store):
        limits = limits_of([CallLimit(1, 86_400)], store)
        limits.try_acquire()
        assert not limits.try_acquire()
        samples = take_turns([ref(), reference, Contender(OURS, limits.try_acquire)], effort)
    yield Line(OURS, samples.ratio(OURS, REF), "x ref", at_most(10))
    yield Line(f"  {OURS}, beside {REF_REDIS}", samples.ratio(OURS, REF_REDIS), _X_REDIS)


def _further_limits(effort: Effort) -> Iterable[Line]:
    with _beside() as (reference, store):
        contenders = [_rates(store, count) for count in range(1, _MOST_LIMITS + 1)]
        samples = take_turns([reference, *contenders], effort)
    yield Line(f"{OURS}, each further rate limit", slope(samples, contenders, REF_REDIS), _X_REDIS, at_most(0.15))


def _rates(store: Store, count: int) -> Contender:
    limits = limits_of([RateLimit(f"rate{number}", 10**9, 3600) for number in range(count)], store, f"user:{count}")
    amounts = {limit.key: 1 for limit in limits}
    assert limits.try_acquire(amounts)
    return Contender(str(count), lambda: limits.try_acquire(amounts))


def _counted(effort: Effort) -> Iterable[Line]:
    with _beside() as (_, store):
        silent, counting = (_one_and_three(store, counts=counts) for counts in (False, True))
        samples = take_turns([*silent, *counting], effort)
    for one, other in zip(counting, silent, strict=True):
        yield Line(f"{OURS}, {one.name}", samples.ratio(one.name, other.name), "x uncounted", at_most(1.2))


def _one_and_three(store: Store, *, counts: bool) -> tuple[Contender, Contender]:
    how = "counted" if counts else "uncounted"
    scopes = [scope_of("bench", f"{how} {number}") for number in (1, 3)]
    layouts = [schema_of(limits, store.lease_us, counts) for limits in ((calls(),), THREE)]
    one, three = (LimitSet.composed([ScopedLimits(*both)], store) for both in zip(scopes, layouts, strict=True))
    return one_call(one, f"one call limit, {how}"), three_limits(three, f"three limits, {how}")


def _pools(effort: Effort) -> Iterable[Line]:
    for name in _BALANCERS:
        # Each has a store of its own: a process rarely has more than one pool of that size.
        with _beside() as (reference, store):
            samples = take_turns([reference, one_call(_pool(store, name), name)], effort)
        yield Line(f"{OURS}, {name}", samples.ratio(name, REF_REDIS), _X_REDIS, at_most(1.5))


def _pool(store: Store, load_balancing: str) -> LimitPool:
    members = [limits_of([calls()], store, f"{load_balancing} {number}") for number in range(_MEMBERS)]
    return LimitPool(members, load_balancing)


ROWS: Final = (
    Row("Redis: one call limit, acquire and release", _one_limit),
    Row("Redis: 4 limits over 2 entities", _four_limits),
    Row("Redis: three limits, update and release", _three_limits),
    Row("Redis: refused again", _refused),
    Row("Redis: each further limit", _further_limits),
    Row("Redis: counted", _counted),
    Row("Redis: pool of 6 members", _pools),
)

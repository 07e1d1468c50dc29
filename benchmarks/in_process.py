"""Rows of a single process: the memory store beside the reference and the peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import linear_regression, median
from threading import Barrier, Thread
from time import perf_counter
from typing import Final

from benchmarks import peers
from benchmarks.harness import Contender, Effort, Figure, Samples, Turn, in_turns, microseconds, take_turns
from benchmarks.references import REF, ref
from benchmarks.rows import Bar, Line, Row, at_least, at_most
from benchmarks.subjects import OURS, THREE, calls, one_call, three_limits
from limits_app import CallLimit, LimitPool, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import LimitDefinition
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore

__all__ = ["CALL_AND_PERMIT", "CALL_AND_RATE", "ROWS", "levels", "pool", "refused", "refused_by_all", "slope"]

CALL_AND_RATE: Final = (calls(), RateLimit("tokens", 1_000_000_000, 3600))
CALL_AND_PERMIT: Final = (calls(), ResourceLimit("connections", 10))
_X_REF: Final = "x ref"
_THREADS: Final = 8
_MOST_LIMITS: Final = 6
_MEMBERS: Final = 6
_BALANCERS: Final = ("round_robin", "failover", "random", "weighted", "least_loaded")


def _one_call(effort: Effort) -> Iterable[Line]:
    ours = one_call(LimitSet([calls()]))
    others = peers.admitted()
    samples = take_turns([ref(), ours, *others], effort)
    yield Line(OURS, samples.ratio(OURS, REF), _X_REF, at_most(6.5))
    best = samples.ratio(OURS, *[peer.name for peer in others])
    yield Line(f"{OURS} against the fastest peer", best, "x fastest peer", at_most(1))
    yield from _beside(samples, others)
    yield Line(f"  {REF} itself", microseconds(samples, REF), "us")


def _algorithms(effort: Effort) -> Iterable[Line]:
    sets = {str(algorithm): LimitSet([calls(algorithm)]) for algorithm in RateLimitAlgorithm}
    samples = take_turns([ref(), *[one_call(limits, name) for name, limits in sets.items()]], effort)
    for name in sets:
        yield Line(f"{OURS}, {name}", samples.ratio(name, REF), _X_REF)


def _three_limits(effort: Effort) -> Iterable[Line]:
    from benchmarks.peers import concurry

    others = concurry.three_limits()
    samples = take_turns([ref(), three_limits(LimitSet(THREE)), *others], effort)
    yield Line(OURS, samples.ratio(OURS, REF), _X_REF, at_most(22))
    best = samples.ratio(OURS, *[peer.name for peer in others])
    yield Line(f"{OURS} against Concurry's faster one", best, "x Concurry", at_most(0.125))
    yield from _beside(samples, others)


def _refused(effort: Effort) -> Iterable[Line]:
    others = peers.refused()
    samples = take_turns([ref(), refused(), *others], effort)
    yield Line(OURS, samples.ratio(OURS, REF), _X_REF, at_most(6))
    yield from _beside(samples, others)


def refused() -> Contender:
    """A limit that is used up."""
    limits = LimitSet([CallLimit(1, 86_400)])
    limits.try_acquire()
    assert not limits.try_acquire()
    return Contender(OURS, limits.try_acquire)


def _empty(effort: Effort) -> Iterable[Line]:
    from benchmarks.peers import concurry

    others = concurry.empty()
    samples = take_turns([ref(), one_call(LimitSet()), *others], effort)
    yield Line(OURS, samples.ratio(OURS, REF), _X_REF, at_most(1.5))
    yield from _beside(samples, others)


def _cascade(effort: Effort) -> Iterable[Line]:
    shapes = {"a call and a rate limit each": CALL_AND_RATE, "a call limit and a permit each": CALL_AND_PERMIT}
    cascades = [levels(limits, name) for name, limits in shapes.items()]
    samples = take_turns([ref(), *cascades], effort)
    for contender in cascades:
        yield Line(f"{OURS}, {contender.name}", samples.ratio(contender.name, REF), _X_REF, at_most(25))


def levels(limits: Sequence[LimitDefinition], name: str) -> Contender:
    """A user, a team and a tenant, each with its own limits."""
    store = MemoryStore()
    schema = schema_of(tuple(limits), store.lease_us)
    scoped = [ScopedLimits(scope_of("bench", entity), schema) for entity in ("user:1", "team:1", "tenant:1")]
    cascade = LimitSet.composed(scoped, store)
    amounts = {"tokens": 10} if cascade.rates else None

    def once() -> None:
        with cascade.try_acquire(amounts) as acquisition:
            if amounts is not None:
                acquisition.update({"tokens": 8})

    once()
    return Contender(name, once)


def _pools(effort: Effort) -> Iterable[Line]:
    contenders = [*[one_call(pool(calls(), name), name) for name in _BALANCERS], refused_by_all()]
    samples = take_turns([ref(), *contenders], effort)
    bars = {"round_robin": at_most(9), "least_loaded": at_most(25), "refused by all": at_most(35)}
    for contender in contenders:
        bar = bars.get(contender.name)
        yield Line(f"{OURS}, {contender.name}", samples.ratio(contender.name, REF), _X_REF, bar)


def refused_by_all() -> Contender:
    """A pool of which all members are used up."""
    used_up = pool(CallLimit(1, 86_400), _BALANCERS[0])
    assert [bool(used_up.try_acquire()) for _ in range(_MEMBERS + 1)] == [True] * _MEMBERS + [False]
    return Contender("refused by all", used_up.try_acquire)


def pool(limit: CallLimit, load_balancing: str) -> LimitPool:
    """Six members with a limit each."""
    store = MemoryStore()
    return LimitPool([LimitSet([limit], store=store) for _ in range(_MEMBERS)], load_balancing)


def _threads(effort: Effort) -> Iterable[Line]:
    contenders = [one_call(LimitSet([calls()])), three_limits(LimitSet(THREE), f"{OURS}, three limits"), ref()]
    bars: list[Bar | None] = [at_least(0.8), None, None]
    for contender, bar in zip(contenders, bars, strict=True):
        share = effort.sized(10_000, 2_000)
        measures = {
            "one": partial(_at_once, contender, 1, share * _THREADS),
            "all": partial(_at_once, contender, _THREADS, share),
        }
        label = f"{contender.name}, {_THREADS} threads against one"
        yield Line(label, in_turns(measures, effort.rounds).ratio("one", "all"), "x throughput", bar)


def _at_once(contender: Contender, threads: int, calls_each: int) -> Turn:
    """Seconds per call of several threads together, so that half of it is twice the throughput."""
    start = Barrier(threads + 1)

    def work() -> None:
        once = contender.once
        start.wait()
        for _ in range(calls_each):
            once()

    workers = [Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    started = perf_counter()
    for worker in workers:
        worker.join()
    return Turn((perf_counter() - started) / (threads * calls_each))


def _further_limits(effort: Effort) -> Iterable[Line]:
    shapes = {
        "rate limit, requested and reported": _rates,
        "resource limit": _resources,
        "call limit of a further entity": _entities,
    }
    for label, shape in shapes.items():
        contenders = [shape(count) for count in range(1, _MOST_LIMITS + 1)]
        samples = take_turns([ref(), *contenders], effort)
        yield Line(f"{OURS}, each further {label}", slope(samples, contenders, REF), _X_REF, at_most(2))


def _rates(count: int) -> Contender:
    limits = LimitSet([RateLimit(f"rate{number}", 1_000_000_000, 3600) for number in range(count)])
    amounts = {limit.key: 1 for limit in limits}

    def once() -> None:
        with limits.try_acquire(amounts) as acquisition:
            acquisition.update(amounts)

    return Contender(str(count), once)


def _resources(count: int) -> Contender:
    return one_call(LimitSet([ResourceLimit(f"permits{number}", 10) for number in range(count)]), str(count))


def _entities(count: int) -> Contender:
    store = MemoryStore()
    schema = schema_of((calls(),), store.lease_us)
    scoped = [ScopedLimits(scope_of("bench", f"user:{number}"), schema) for number in range(count)]
    return one_call(LimitSet.composed(scoped, store), str(count))


def slope(samples: Samples, contenders: Sequence[Contender], reference: str) -> Figure:
    """What each further limit adds: the slope of a straight line through all counts, in each round."""
    counts = [int(contender.name) for contender in contenders]
    rounds = zip(*[samples.figures(contender.name) for contender in contenders], strict=True)
    references = samples.figures(reference)
    slopes = [linear_regression(counts, times).slope / one for times, one in zip(rounds, references, strict=True)]
    return Figure(median(slopes), slopes[references.index(min(references))])


def _beside(samples: Samples, others: Iterable[Contender]) -> Iterable[Line]:
    for peer in others:
        yield Line(f"  {peer.name}", samples.ratio(peer.name, REF), _X_REF)


ROWS: Final = (
    Row("in process: one call limit, acquire and release", _one_call),
    Row("in process: one call limit, by algorithm", _algorithms),
    Row("in process: three limits, update and release", _three_limits),
    Row("in process: refused", _refused),
    Row("in process: empty set", _empty),
    Row("in process: cascade of 3 levels, 2 limits each", _cascade),
    Row("in process: pool of 6 members", _pools),
    Row("in process: 8 threads on one set", _threads),
    Row("in process: each further limit in a set", _further_limits),
)

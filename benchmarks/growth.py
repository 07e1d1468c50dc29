"""Rows about growth: what a call costs when much was seen, against what it costs when little was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count, cycle
from statistics import median
from typing import Final

from benchmarks import peers
from benchmarks.harness import Contender, Effort, Figure, take_turns
from benchmarks.rows import Line, Row, at_most
from benchmarks.site import Site
from benchmarks.stores import STORES, Opener
from benchmarks.subjects import OURS, calls, limits_of
from limits_app import CallLimit, LimitSet, RateLimitAlgorithm
from limits_app.acquiring.store import Store

__all__ = ["ROWS"]

_WINDOW_SECONDS: Final = 100
_START_US: Final = 1_000_000_000_000_000
_FEW_HITS, _SPREAD_HITS, _MANY_HITS = 10, 1_000, 5_000
_HOT_ENTITIES: Final = 1_000
_PLENTY: Final = 1_000_000_000
_TIMES_BEFORE: Final = 100
"""How often those have come before they are measured who come all the time."""


def _hits(place: str) -> Callable[[Effort], Iterable[Line]]:
    def measure(effort: Effort) -> Iterable[Line]:
        unit = f"x {_FEW_HITS} hits"
        for algorithm in RateLimitAlgorithm:
            with ExitStack() as stack:
                numbers = (_FEW_HITS, _SPREAD_HITS, _MANY_HITS)
                samples = take_turns([_steady(stack, STORES[place], algorithm, hits) for hits in numbers], effort)
            yield Line(f"{OURS}, {algorithm}", samples.ratio(str(_MANY_HITS), str(_FEW_HITS)), unit, at_most(1.1))
            if algorithm is RateLimitAlgorithm.SLIDING_WINDOW:
                # Its worst case: hits that are just too far apart to be merged.
                spread = samples.ratio(str(_SPREAD_HITS), str(_FEW_HITS))
                yield Line(f"  {OURS}, {algorithm}, {_SPREAD_HITS:,} hits", spread, unit)

    return measure


def _steady(stack: ExitStack, open_store: Opener, algorithm: RateLimitAlgorithm, hits: int) -> Contender:
    """A limit whose clock moves with each call, so that always about `hits` hits are in its window."""
    now, step = [_START_US], _WINDOW_SECONDS * 1_000_000 // hits
    store = stack.enter_context(open_store(lambda: now[0]))
    limits = LimitSet([CallLimit(2 * _MANY_HITS, _WINDOW_SECONDS, algorithm)], store=store)

    def once() -> None:
        now[0] += step
        with limits.try_acquire():
            pass

    for _ in range(hits + 1):
        once()
    assert limits.try_acquire()
    return Contender(str(hits), once)


def _hits_of_peers(effort: Effort) -> Iterable[Line]:
    few, many = (
        [replace(peer, name=f"{peer.name}, {hits} hits") for peer in peers.with_hits(hits)]
        for hits in (_FEW_HITS, _MANY_HITS)
    )
    samples = take_turns([*few, *many], replace(effort, rounds=min(effort.rounds, 5)))
    for less, more in zip(few, many, strict=True):
        label = less.name.removesuffix(f", {_FEW_HITS} hits")
        yield Line(f"  {label}", samples.ratio(more.name, less.name), f"x {_FEW_HITS} hits")


def _entities(place: str, full: int) -> Callable[[Effort], Iterable[Line]]:
    def measure(effort: Effort) -> Iterable[Line]:
        many = effort.sized(full, _HOT_ENTITIES * 20)
        seen = {"few": _HOT_ENTITIES, "many": many}
        with ExitStack() as stack:
            stores = {name: stack.enter_context(STORES[place](map_megabytes=1_024)) for name in seen}
            for name, entities in seen.items():
                _fill(stores[name], entities)
            samples = take_turns(
                [contender for name, store in stores.items() for contender in _asked(name, store, seen[name])], effort
            )
        unit = f"x {_HOT_ENTITIES:,} seen"
        regulars = samples.ratio("many", "few")
        bar = at_most(1.5 if place == "process store" else 1.2)
        yield Line(f"{OURS}, after {many:,}, one of {_HOT_ENTITIES:,}", regulars, unit, bar)
        newcomers = samples.ratio("many, newcomer", "few, newcomer")
        yield Line(f"  {OURS}, after {many:,}, one never seen before", newcomers, unit)

    return measure


def _fill(store: Store, entities: int) -> None:
    for number in range(entities):
        assert limits_of([calls()], store, f"user:{number}").try_acquire()


def _asked(name: str, store: Store, entities: int) -> Iterator[Contender]:
    """Those who come all the time, and somebody new each time."""
    regulars = [limits_of([calls()], store, f"user:{number}") for number in range(_HOT_ENTITIES)]
    for limits in regulars * _TIMES_BEFORE:
        assert limits.try_acquire()
    hot, numbers = cycle(regulars), count(entities)

    def once() -> None:
        with next(hot).try_acquire():
            pass

    def newcomer() -> None:
        with limits_of([calls()], store, f"user:{next(numbers)}").try_acquire():
            pass

    yield Contender(name, once)
    yield Contender(f"{name}, newcomer", newcomer)


def _configuration(effort: Effort) -> Iterable[Line]:
    """First and later requests on a site with much configuration, against one with little."""
    sizes = effort.sized(100_000, 2_000), effort.sized(1_000, 100), effort.sized(5_000, 100)
    clients = effort.sized(100, 20)
    with Site.on_sqlite() as few, Site.on_sqlite() as many:
        many.run("configuration", *sizes)
        for site in (few, many):
            site.run("rows_of_users", clients, _PLENTY)
        without_rows, with_rows = [], []
        for _ in range(effort.sized(5, 1)):
            without_rows.append([site.limited().run("first_requests", clients) for site in (few, many)])
            with_rows.append([site.limited().run("first_acquires", 1, clients) for site in (few, many)])
    unit = "x few rows"
    for kind, label in (("request", "request"), ("acquire", "limits.acquire")):
        for order in ("first", "second"):
            ratios = [median(more[kind][order]) / median(less[kind][order]) for less, more in without_rows]
            quietest = ratios[_quietest([median(less[kind][order]) for less, _ in without_rows])]
            yield Line(f"{OURS}, {label}, {order} of a client", Figure(median(ratios), quietest), unit, at_most(1.2))
    ratios = [median(more["whole"]) / median(less["whole"]) for less, more in with_rows]
    quietest = ratios[_quietest([median(less["whole"]) for less, _ in with_rows])]
    label = f"{OURS}, limits.acquire, first of a client with rows"
    yield Line(label, Figure(median(ratios), quietest), unit, at_most(1.2))


def _quietest(references: list[float]) -> int:
    return references.index(min(references))


ROWS: Final = (
    Row("configuration: 100,000 policies, 1,000 patterns and 5,000 resources against few", _configuration),
    Row("memory: 10 against 5,000 hits in the window", _hits("memory")),
    Row("process store: 10 against 5,000 hits in the window", _hits("process store")),
    Row("Redis: 10 against 5,000 hits in the window", _hits("Redis")),
    Row("peers: 10 against 5,000 hits in the window", _hits_of_peers),
    Row("memory: 1,000 against 1,000,000 entities seen", _entities("memory", 1_000_000)),
    Row("process store: 1,000 against 1,000,000 entities seen", _entities("process store", 1_000_000)),
    Row("Redis: 1,000 against 1,000,000 entities seen", _entities("Redis", 1_000_000)),
)

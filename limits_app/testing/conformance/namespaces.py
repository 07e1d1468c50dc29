"""Namespaces: each has its own version, log, states and counts, also where all names are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from limits_app.acquiring import CountingStore, LimitSet, Store
from limits_app.engine import (
    HOUR,
    Namespace,
    Scope,
    idempotency_scope,
    installed,
    member_scope,
    present,
    scope_of,
    shared_scope,
    shared_total_scope,
    total_scope,
)
from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    KEY,
    Contract,
    admissions,
    available,
    collected,
    counting,
    in_scope,
    limits_in,
    limits_of,
    reset,
    settle,
    taken,
)

NAMES: Final = ("", "a", "A", "a b:{c}#\U0001f9c0", "x" * 1000)


@contextmanager
def in_namespace(name: str) -> Iterator[None]:
    """Make limits in a namespace in the block."""
    with installed(replace(present(), namespace=partial(Namespace, name, name))):
        yield


def in_each(store: Store, *limits: RateLimit | CallLimit | ResourceLimit, version: int | None = None) -> list[LimitSet]:
    """Limits of the same entity in each namespace."""
    sets = []
    for name in NAMES:
        with in_namespace(name):
            sets.append(limits_of(store, *limits, version=version))
    return sets


class Namespaces(Contract):
    """States and versions by namespace."""

    def test_each_namespace_has_states_of_its_own(self, store: Store) -> None:
        for index, limits in enumerate(in_each(store, RateLimit(KEY, 10, 60))):
            taken(limits, {KEY: index + 1})
        left = [available(limits, KEY) for limits in in_each(store, RateLimit(KEY, 10, 60))]
        assert left == [9 - index for index in range(len(NAMES))]

    def test_scopes_of_every_kind_are_apart(self, store: Store) -> None:
        kinds: list[Callable[[], Scope]] = [
            lambda: scope_of("conformance", None),
            lambda: shared_scope("conformance", "call_count"),
            lambda: total_scope("someone", of_system=True),
            lambda: shared_total_scope("call_count"),
            lambda: member_scope("conformance", "first"),
            lambda: idempotency_scope("conformance", "someone", "key"),
        ]
        for kind in kinds:
            for name in NAMES:
                with in_namespace(name):
                    limits = limits_in(store, in_scope(store, kind(), CallLimit(1, HOUR)))
                assert admissions(limits, 2) == [True, False]

    def test_a_permit_of_one_namespace_is_free_in_others(self, store: Store) -> None:
        sets = in_each(store, ResourceLimit("slots", 1))
        claims = [taken(limits) for limits in sets]
        assert [claim.admitted for claim in claims] == [True] * len(NAMES)
        settle(sets[0], claims[0], {"slots": -1})
        assert [admissions(limits, 1) for limits in sets] == [[True], *[[False]] * (len(NAMES) - 1)]

    def test_a_reset_stays_in_its_namespace(self, store: Store) -> None:
        sets = in_each(store, CallLimit(1, HOUR))
        for limits in sets:
            taken(limits)
        reset(sets[1])
        assert [admissions(limits, 1) for limits in sets] == [[index == 1] for index in range(len(NAMES))]

    def test_a_claim_is_compared_with_the_version_of_its_namespace(self, store: Store) -> None:
        sets = in_each(store, RateLimit(KEY, 100, 60), version=store.version())
        for index, name in enumerate(NAMES):
            store.advance_version(namespace=name)
            with pytest.raises(StaleConfiguration):
                sets[index].try_acquire({KEY: 1})
            with pytest.raises(StaleConfiguration):
                sets[index].peek({KEY: 1})
            for other in sets[index + 1 :]:
                assert other.try_acquire({KEY: 1})
            with in_namespace(name):
                current = limits_of(store, RateLimit(KEY, 100, 60), version=store.version(name))
            assert current.try_acquire({KEY: 1})

    def test_a_set_without_limits_is_compared_with_the_version_of_its_namespace(self, store: Store) -> None:
        store.advance_version(namespace="b")
        with in_namespace("b"):
            limits = limits_in(store, version=store.version("b"))
        store.advance_version()
        assert limits.try_acquire()
        store.advance_version(namespace="b")
        with pytest.raises(StaleConfiguration):
            limits.try_acquire()

    def test_counters_may_be_apart_where_the_configuration_is_one(self, store: Store) -> None:
        version, sets = store.advance_version(), []
        for name in ("a", "b"):
            with installed(replace(present(), namespace=partial(Namespace, "", name))):
                sets.append(limits_of(store, CallLimit(1, HOUR), version=version))
        assert [admissions(limits, 2) for limits in sets] == [[True, False]] * 2
        store.advance_version()
        for limits in sets:
            with pytest.raises(StaleConfiguration):
                limits.try_acquire()


class CountingNamespaces(Contract):
    """Counts by namespace."""

    def test_each_namespace_has_counts_of_its_own(self, store: CountingStore, clock: FakeClock) -> None:
        for index, name in enumerate(NAMES):
            with in_namespace(name):
                limits = counting(store, RateLimit("tokens", 100, 60))
            taken(limits, {"tokens": 1})
            clock.advance(HOUR)
            taken(limits, {"tokens": 10 * index + 10})
        assert collected(store, "unknown") == {}
        for index, name in reversed([*enumerate(NAMES)]):
            assert sorted(collected(store, name).values()) == [1_000, 10_000 * index + 10_000]
        assert [collected(store, name) for name in NAMES] == [{}] * len(NAMES)

    def test_a_waiting_batch_is_that_of_its_namespace(self, store: CountingStore) -> None:
        for name in ("", "a"):
            with in_namespace(name):
                taken(counting(store, CallLimit(100, HOUR)))
        first = store.collect_counts("a")
        other = store.collect_counts()
        assert first is not None
        assert other is not None
        assert first.name != other.name
        assert store.collect_counts("a") == first
        store.forget_counts(other.name)
        assert store.collect_counts("a") == first
        store.forget_counts(first.name, "a")
        assert store.collect_counts("a") is None

    def test_a_scope_that_is_forgotten_keeps_its_counts_in_a_namespace(
        self, store: CountingStore, clock: FakeClock
    ) -> None:
        for name, count in (("idle", 40), ("new", 80)):
            for number in range(count):
                with in_namespace("a" if number % 2 else ""):
                    taken(counting(store, CallLimit(3, 1), entity=f"{name} {number}"))
            clock.advance(2 * HOUR)
        assert [sum(collected(store, name).values()) for name in ("", "a")] == [60_000, 60_000]

    def test_changes_and_resets_keep_counts_in_a_namespace(self, store: CountingStore) -> None:
        with in_namespace("a"):
            old = counting(store, RateLimit("tokens", 100, 60))
            taken(old, {"tokens": 30})
            taken(counting(store, RateLimit("tokens", 35, 60), RateLimit("other", 9, 60)), {"tokens": 5, "other": 1})
            reset(old)
            taken(old, {"tokens": 2})
        assert collected(store) == {}
        assert sorted(collected(store, "a").values()) == [1_000, 37_000]

    def test_many_scopes_of_a_namespace_are_collected_in_several_batches(self, store: CountingStore) -> None:
        for number in range(1_200):
            with in_namespace("a" if number % 2 else "b"):
                taken(counting(store, CallLimit(3, HOUR), entity=f"number {number}"))
        assert [len(collected(store, name)) for name in ("", "a", "b")] == [0, 600, 600]

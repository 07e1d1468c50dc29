"""Properties: random timelines over random limits, decided as the reference model decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import RateLimit, RateLimitAlgorithm
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, DRAINING, Contract, limits_in, scoped, wait_us
from limits_app.testing.conformance.machine import StoreMachine
from limits_app.testing.conformance.model import Model, model_of

__all__ = ["Properties"]

PEOPLE: Final = ("one", "two")
Verdicts = dict[tuple[str, str], bool | None]


@dataclass(frozen=True)
class Step:
    """One step of a timeline: the clock moves, and shares of the most that the limits admit are requested.

    `moved_us` None goes to the moment that the last refusal has named, less `early_us`.
    `permille` are the shares, by limit; `usage` what of them is reported as used, or None for a later step to report.
    """

    moved_us: int | None
    early_us: int
    who: int
    permille: Sequence[int]
    usage: int | None


def exact_rates(key: str, algorithm: RateLimitAlgorithm) -> st.SearchStrategy[RateLimit]:
    """Definitions that a store keeps exactly to the microsecond."""
    windows = st.integers(1, 100_000).map(lambda ms: ms / 1000)
    whole = st.integers(1, 60)
    amounts: st.SearchStrategy[Amount] = whole
    if algorithm.takes_decimals:
        amounts = st.one_of(whole, st.integers(1, 60_000).map(lambda milli: milli / 1000))
    bursts = st.one_of(st.none(), amounts) if algorithm.takes_burst else st.none()
    return st.builds(RateLimit, st.just(key), amounts, windows, st.just(algorithm), bursts)


def large_rates(key: str) -> st.SearchStrategy[RateLimit]:
    """Definitions of every size, which a store may have to keep in coarser steps."""
    windows = st.integers(1, 366 * 86_400_000).map(lambda ms: ms / 1000)
    return st.builds(RateLimit, st.just(key), st.integers(1, 700 * 10**9), windows, st.sampled_from(DRAINING))


def definitions(most: int) -> st.SearchStrategy[list[RateLimit]]:
    """Some limits of any algorithm, for one set."""
    return st.lists(st.sampled_from(ALGORITHMS), min_size=1, max_size=most).flatmap(
        lambda chosen: st.tuples(
            *[exact_rates(f"limit{number}", algorithm) for number, algorithm in enumerate(chosen)]
        ).map(list)
    )


def steps(*, back: bool) -> st.SearchStrategy[list[Step]]:
    """Timelines; the clock may go back in them."""
    moves: list[st.SearchStrategy[int | None]] = [
        st.just(None),
        st.sampled_from([0, 0, 1, 1000]),
        st.integers(0, 2_000_000),
        st.integers(0, 200_000_000),
    ]
    if back:
        moves.append(st.integers(-5_000_000, -1))
    return st.lists(
        st.builds(
            Step,
            moved_us=st.one_of(moves),
            early_us=st.integers(0, 1),
            who=st.integers(0, 2),
            permille=st.lists(st.sampled_from([0, 1, 250, 400, 500, 900, 1000]), min_size=3, max_size=3),
            usage=st.one_of(st.none(), st.sampled_from([0, 300, 1000, 1400])),
        ),
        min_size=1,
        max_size=25,
    )


class Timeline:
    """Plays steps on a store and on models at the same time."""

    def __init__(
        self, store: Store, clock: FakeClock, limits: Sequence[RateLimit], model: Callable[[RateLimit], Model]
    ):
        self.clock = clock
        self.limits = {limit.key: limit for limit in limits}
        self.models = {(who, limit.key): model(limit) for who in PEOPLE for limit in limits}
        parts = [scoped(store, *limits, entity=who) for who in PEOPLE]
        self.single = [limits_in(store, part) for part in parts]
        self.sets: list[tuple[LimitSet, Sequence[str]]] = [
            (self.single[0], PEOPLE[:1]),
            (self.single[1], PEOPLE[1:]),
            (limits_in(store, *parts), PEOPLE),
        ]
        self.named: int | None = None
        self.pending: list[tuple[Acquisition, Sequence[str], dict[str, Amount]]] = []

    def play(self, step: Step) -> None:
        """Take one step, and compare."""
        if step.moved_us is not None:
            self.clock.move(step.moved_us)
        elif self.named is not None and self.named > self.clock.now_us:
            self.clock.move(self.named - self.clock.now_us - step.early_us)
        if self.pending and step.usage is not None:
            self._report(step.usage)
        self._ask(step)
        self._compare()

    def _ask(self, step: Step) -> None:
        limit_set, people = self.sets[step.who]
        requested = {
            key: share(limit, permille)
            for (key, limit), permille in zip(self.limits.items(), step.permille, strict=False)
        }
        verdicts = self._verdicts(people, requested, self.clock.now_us)
        acquired = limit_set.try_acquire(requested)
        violated = {(status.entity, status.key) for status in acquired.outcome.violations}
        assert not violated & {bucket for bucket, verdict in verdicts.items() if verdict}
        assert violated >= {bucket for bucket, verdict in verdicts.items() if verdict is False}
        if not acquired:
            assert violated
            self.named = self.clock.now_us + wait_us(acquired)
            assert False not in self._verdicts(people, requested, self.named).values()
            assert not all(self._verdicts(people, requested, self.named - 1).values())
            return
        for who, key in verdicts:
            self.models[who, key].charge(self.clock.now_us, exact(requested[key]))
        self.pending.append((acquired, people, requested))

    def _verdicts(self, people: Sequence[str], requested: Mapping[str, Amount], now: int) -> Verdicts:
        return {
            (who, key): self.models[who, key].admits(now, exact(amount))
            for who in people
            for key, amount in requested.items()
        }

    def _report(self, permille: int) -> None:
        acquired, people, requested = self.pending.pop(0)
        usage = {key: share(self.limits[key], permille, of=amount) for key, amount in requested.items()}
        acquired.update(usage)
        acquired.release()
        for who in people:
            for key, amount in requested.items():
                change = exact(usage[key]) - exact(amount)
                if change:
                    self.models[who, key].settle(self.clock.now_us, change)

    def _compare(self) -> None:
        for who, limit_set in zip(PEOPLE, self.single, strict=True):
            stats = limit_set.get_stats()
            for key, limit in self.limits.items():
                used = self.models[who, key].used(self.clock.now_us)
                if used is not None:
                    assert exact(stats[key]["used"]) == in_thousandths(used)
                    assert exact(stats[key]["available"]) == in_thousandths(
                        max(exact(limit.ceiling) - used, Fraction(0))
                    )


class LooseModel:
    """A model of a limit that counts in steps: never early, and a step or two late."""

    def __init__(self, limit: RateLimit) -> None:
        self.exact = model_of(limit)
        self.charge, self.settle, self.reset = self.exact.charge, self.exact.settle, self.exact.reset
        self.late = 2 * max(exact(limit.capacity), Fraction(1)) / 1000

    def admits(self, now: int, amount: Fraction) -> bool | None:
        """False where the exact model refuses, True where it would admit even a little more."""
        if not self.exact.admits(now, amount):
            return False
        return True if self.exact.admits(now, amount + self.late) else None

    def used(self, now: int) -> Fraction | None:
        """Not known exactly: the store may be a step late."""


class Properties(Contract):
    """Whatever happens, in whatever order."""

    def _play(self, limits: Sequence[RateLimit], timeline: list[Step], model: Callable[[RateLimit], Model]) -> None:
        clock = FakeClock()
        store = self.make_store(clock)
        try:
            played = Timeline(store, clock, limits, model)
            for step in timeline:
                played.play(step)
        finally:
            self.close_store(store)

    def test_random_timelines_are_decided_as_the_reference_model_decides(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(definitions(1), steps(back=False))
        def check(limits: list[RateLimit], timeline: list[Step]) -> None:
            self._play(limits, timeline, model_of)

        check()

    def test_several_limits_at_once_are_decided_as_the_reference_model_decides(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(definitions(3), steps(back=False))
        def check(limits: list[RateLimit], timeline: list[Step]) -> None:
            self._play(limits, timeline, model_of)

        check()

    def test_a_clock_that_goes_back_changes_no_decision_of_the_reference_model(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(definitions(2), steps(back=True))
        def check(limits: list[RateLimit], timeline: list[Step]) -> None:
            self._play(limits, timeline, model_of)

        check()

    def test_large_limits_admit_nothing_early_and_little_late(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(large_rates("limit0"), steps(back=False))
        def check(limit: RateLimit, timeline: list[Step]) -> None:
            self._play([limit], timeline, LooseModel)

        check()

    @pytest.mark.slow
    def test_any_order_of_verbs_leaves_the_state_of_the_reference_model(self) -> None:
        run_state_machine_as_test(
            lambda: StoreMachine(self.make_store, self.close_store),  # type: ignore[arg-type]  # any callable will do
            settings=settings(deadline=None, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
        )


def share(limit: RateLimit, permille: int, of: Amount | None = None) -> Amount:
    """A share of what a limit can admit at most, or of another amount, in what the limit takes as amounts."""
    whole = exact(limit.ceiling if of is None else of)
    if limit.algorithm.takes_decimals:
        return int(whole * permille) / 1000
    return int(whole * permille / 1000)


def exact(amount: object) -> Fraction:
    """An amount as it is written."""
    return Fraction(str(amount))


def in_thousandths(amount: Fraction) -> Fraction:
    """An amount as statistics give it: rounded down to thousandths."""
    return Fraction(int(amount * 1000), 1000)

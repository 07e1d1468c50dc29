"""Every verb of a store in random order, over random limits, compared with the reference model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import SECOND_US, Amount, Claim
from limits_app.engine.limits import LimitDefinition, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    Contract,
    limits_in,
    newcomers_come,
    reset,
    scoped,
    settle,
    taken,
)
from limits_app.testing.conformance.model import LooseModel, Model, PermitModel, model_of

ENTITIES: Final = ("one", "two")
RATES: Final = ("first", "second")
PERMITS: Final = ("db", "gpu")
GPU_HOLD_US: Final = 12 * SECOND_US
SHARES: Final = st.sampled_from([0, 1, 250, 400, 500, 900, 1000])
"""Amounts, in thousandths of the most that a limit can admit."""
MOVES: Final = st.one_of(
    st.sampled_from([0, 1, 1000, 300_000, 2_500_000, 3_999_999, 10 * SECOND_US, 45 * SECOND_US]),
    st.integers(0, 200 * SECOND_US),
)


def exact_rate(key: str, algorithm: RateLimitAlgorithm) -> st.SearchStrategy[RateLimit]:
    """Definitions that a store keeps exactly to the microsecond."""
    windows = st.integers(1, 100_000).map(lambda ms: ms / 1000)
    amounts: st.SearchStrategy[Amount] = st.integers(1, 60)
    if algorithm.takes_decimals:
        amounts = st.one_of(amounts, st.integers(1, 60_000).map(lambda milli: milli / 1000))
    bursts = st.one_of(st.none(), amounts) if algorithm.takes_burst else st.none()
    return st.builds(RateLimit, st.just(key), amounts, windows, st.just(algorithm), bursts)


def exact_rates(key: str) -> st.SearchStrategy[RateLimit]:
    """Exact definitions of every algorithm."""
    return st.sampled_from(ALGORITHMS).flatmap(lambda algorithm: exact_rate(key, algorithm))


def large_rates(key: str) -> st.SearchStrategy[RateLimit]:
    """Definitions of every size, which a store may have to keep in coarser steps."""
    windows = st.integers(1, 366 * 86_400_000).map(lambda ms: ms / 1000)
    return st.builds(RateLimit, st.just(key), st.integers(1, 700 * 10**9), windows, st.sampled_from(DRAINING))


@dataclass(eq=False)
class Held:
    """An admitted claim, and its amounts by key."""

    claim: Claim
    limit_set: LimitSet
    entities: Sequence[str]
    requested: dict[str, Amount]


class StoreMachine(RuleBasedStateMachine):
    """Two entities with two rates and two resources each, or with rates only and a clock that also goes back."""

    held = Bundle[Held]("held")
    done = Bundle[Held]("done")

    def __init__(
        self,
        store: tuple[Callable[[FakeClock], Store], Callable[[Store], None]],
        rates: Callable[[str], st.SearchStrategy[RateLimit]],
        model: Callable[[RateLimit], Model],
    ) -> None:
        super().__init__()
        self.clock = FakeClock()
        make_store, self.close_store = store
        self.store = make_store(self.clock)
        self.rates_of, self.model = rates, model
        self.announced: int | None = None
        self.rounds = count()
        self.went_back = False
        self.reset_at = dict.fromkeys(ENTITIES, -1)

    def teardown(self) -> None:
        """Close the store."""
        self.close_store(self.store)

    @initialize(data=st.data(), permits=st.integers(0, 3))
    def define(self, data: st.DataObject, permits: int) -> None:
        """Choose the limits; without permits the clock may go back."""
        rates = [data.draw(self.rates_of(key)) for key in RATES]
        self.has_permits = permits > 0
        limits: list[LimitDefinition] = [*rates]
        if self.has_permits:
            limits += [ResourceLimit("db", permits), ResourceLimit("gpu", 2, max_hold_seconds=GPU_HOLD_US / SECOND_US)]
        lease_us, capacities = self.store.lease_us, {"db": permits, "gpu": 2}
        self.capacities = capacities
        self.limits = {limit.key: limit for limit in rates}
        self.models = {(who, limit.key): self.model(limit) for who in ENTITIES for limit in rates}
        self.permits = {
            (who, key): PermitModel(capacities[key], lease_us, GPU_HOLD_US if key == "gpu" else None)
            for who in ENTITIES
            for key in (PERMITS if self.has_permits else ())
        }
        parts = [scoped(self.store, *limits, entity=who) for who in ENTITIES]
        self.single = [limits_in(self.store, part) for part in parts]
        self.sets: list[tuple[LimitSet, Sequence[str]]] = [
            (self.single[0], ENTITIES[:1]),
            (self.single[1], ENTITIES[1:]),
            (limits_in(self.store, *parts), ENTITIES),
        ]

    @rule(moved_us=MOVES, back=st.booleans())
    def time_passes(self, moved_us: int, back: bool) -> None:
        """Move the clock."""
        goes_back = back and not self.has_permits
        self.went_back = self.went_back or goes_back
        self.clock.move(-moved_us if goes_back else moved_us)

    @rule(early_us=st.integers(0, 1))
    def announced_time_comes(self, early_us: int) -> None:
        """Move the clock to the time that the last refusal has announced, or to just before it."""
        if self.announced is not None and self.announced > self.clock.now_us:
            self.clock.move(self.announced - self.clock.now_us - early_us)

    @rule(
        target=held,
        who=st.integers(0, 2),
        shares=st.tuples(SHARES, SHARES),
        permit=st.sampled_from(PERMITS),
        permits=st.integers(1, 2),
    )
    def acquire(self, who: int, shares: tuple[int, int], permit: str, permits: int) -> MultipleResults[Held]:
        """Request shares of both rates, and permits of one resource."""
        limit_set, entities = self.sets[who]
        requested = {key: share(self.limits[key], thousandths) for key, thousandths in zip(RATES, shares, strict=True)}
        if self.has_permits:
            requested[permit] = min(permits, self.capacities[permit])
        now = self.clock.now_us
        verdicts = self._verdicts(entities, requested, now)
        claim = taken(limit_set, requested, left_out={*PERMITS} - {permit} if self.has_permits else ())
        if not claim.admitted:
            self._check_refusal(claim, entities, requested, verdicts)
            return multiple()
        assert False not in verdicts.values()
        for (name, key), amount in self._buckets(entities, requested):
            if key in self.limits:
                self.models[name, key].charge(now, amount)
            else:
                self.permits[name, key].lend(claim.number, now, amount)
        return multiple(Held(claim, limit_set, entities, requested))

    @rule(target=done, held=consumes(held), usage=st.sampled_from([0, 300, 1000, 1400]))
    def settle(self, held: Held, usage: int) -> Held:
        """Report thousandths of the rates as used, and return the permits."""
        changes: dict[str, Amount] = {}
        for key, amount in held.requested.items():
            used = share(self.limits[key], usage, of=amount) if key in self.limits else 0
            changes[key] = round(used - amount, 3)
        settle(held.limit_set, held.claim, changes)
        for (name, key), change in self._buckets(held.entities, changes):
            if key not in self.limits:
                self.permits[name, key].give_back(held.claim.number)
            elif change > 0 or (change and held.claim.decided_at > self.reset_at[name]):
                self.models[name, key].settle(self.clock.now_us, change)
        return held

    @rule(held=done)
    def settle_again(self, held: Held) -> None:
        """Settle a claim again: nothing changes, as the next comparison shows."""
        settle(held.limit_set, held.claim, dict.fromkeys(held.requested, -1))

    @rule(acquisitions=st.lists(held, unique_by=id, max_size=4))
    def renew(self, acquisitions: list[Held]) -> None:
        """Renew some leases in one call."""
        lost = self.store.renew([acquisition.claim for acquisition in acquisitions])
        now, expected = self.clock.now_us, []
        for acquisition in acquisitions:
            permits = [
                self.permits[who, key]
                for who in acquisition.entities
                for key in acquisition.requested
                if key in PERMITS
            ]
            renewed = [model.renew(acquisition.claim.number, now) for model in permits]
            if not all(renewed):
                expected.append(acquisition.claim)
        assert lost == expected

    @rule(who=st.sampled_from([0, 1]), keys=st.sampled_from([None, ("first",), ("db", "second")]))
    def reset(self, who: int, keys: tuple[str, ...] | None) -> None:
        """Forget all use; what was charged until now is not refunded. Only a record that is in use notes that."""
        if not any(self.models[ENTITIES[who], key].used(self.clock.now_us) for key in RATES):
            return
        reset(self.single[who], keys)
        self.reset_at[ENTITIES[who]] = self.clock.now_us
        for key in RATES:
            if keys is None or key in keys:
                self.models[ENTITIES[who], key] = self.model(self.limits[key])

    @rule(number=st.sampled_from([1, 5, 30]))
    def newcomers_come(self, number: int) -> None:
        """Use other scopes, so that the store looks for idle ones, which may move states to a clock that went back."""
        if not self.went_back:
            newcomers_come(self.store, f"round {next(self.rounds)}", number)

    @invariant()
    def statistics_are_those_of_the_model(self) -> None:
        """Compare the use of everything."""
        now = self.clock.now_us
        for who, limit_set in zip(ENTITIES, self.single, strict=True):
            stats = limit_set.get_stats()
            for key, limit in self.limits.items():
                used = self.models[who, key].used(now)
                if used is not None:
                    assert exact(stats[key]["used"]) == in_thousandths(used)
                    left = max(exact(limit.ceiling) - used, Fraction(0))
                    assert exact(stats[key]["available"]) == in_thousandths(left)
            for key in PERMITS if self.has_permits else ():
                assert stats[key]["used"] == self.permits[who, key].used(now)

    def _check_refusal(
        self, claim: Claim, entities: Sequence[str], requested: dict[str, Amount], verdicts: dict[Any, bool | None]
    ) -> None:
        """Compare which limits refuse with the model, and the announced wait."""
        scopes = {part.scope.key: part.scope.entity for limits, _ in self.sets for part in limits.scoped}
        refusing, wait = claim.refusal()
        violated = {(scopes[scope], key) for scope, key in refusing}
        assert violated
        assert not violated & {bucket for bucket, verdict in verdicts.items() if verdict}
        assert violated >= {bucket for bucket, verdict in verdicts.items() if verdict is False}
        if wait is not None and all(key in self.limits for _, key in violated):
            rates = {key: amount for key, amount in requested.items() if key in self.limits}
            self.announced = self.clock.now_us + wait
            assert False not in self._verdicts(entities, rates, self.announced).values()
            assert not all(self._verdicts(entities, rates, self.announced - 1).values())

    def _verdicts(
        self, entities: Sequence[str], requested: dict[str, Amount], now: int
    ) -> dict[tuple[str, str], bool | None]:
        models: dict[tuple[str, str], Model | PermitModel] = {**self.models, **self.permits}
        return {bucket: models[bucket].admits(now, amount) for bucket, amount in self._buckets(entities, requested)}

    @staticmethod
    def _buckets(entities: Sequence[str], amounts: dict[str, Amount]) -> list[tuple[tuple[str, str], Fraction]]:
        return [((who, key), exact(amount)) for who in entities for key, amount in amounts.items()]


class RandomVerbs(Contract):
    """Random verbs over exact limits, and over limits of every size."""

    @pytest.mark.parametrize(
        ("rates", "model"), [(exact_rates, model_of), (large_rates, LooseModel)], ids=["exact", "large"]
    )
    def test_any_order_of_verbs_agrees_with_the_reference_model(
        self, rates: Callable[[str], st.SearchStrategy[RateLimit]], model: Callable[[RateLimit], Model]
    ) -> None:
        run_state_machine_as_test(
            lambda: StoreMachine((self.make_store, self.close_store), rates, model),  # type: ignore[arg-type]
            settings=settings(deadline=None, stateful_step_count=15, suppress_health_check=list(HealthCheck)),
        )


def share(limit: RateLimit, thousandths: int, of: Amount | None = None) -> Amount:
    """A share of what a limit can admit at most, or of another amount, as the limit takes amounts."""
    whole = exact(limit.ceiling if of is None else of)
    if limit.algorithm.takes_decimals:
        return int(whole * thousandths) / 1000
    return int(whole * thousandths / 1000)


def exact(amount: object) -> Fraction:
    """An amount as it is written."""
    return Fraction(str(amount))


def in_thousandths(amount: Fraction) -> Fraction:
    """An amount as statistics give it: rounded down to thousandths."""
    return Fraction(int(amount * 1000), 1000)

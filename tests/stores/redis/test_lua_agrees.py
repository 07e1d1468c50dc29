"""The scripts in Lua decide as the rules in Python do, on random timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine import HOUR_US
from limits_app.engine.algorithms import compile_rule
from limits_app.engine.claims import Claim
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import LimitDefinition, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.outcome import Outcome
from limits_app.engine.periods import QuotaPeriod
from limits_app.engine.readings import outcome_of
from limits_app.engine.record import Schema, schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.redis.states import LUA_ALGORITHMS, tag_of_rule
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of, credit_of
from tests.servers.redis import RedisServer
from tests.stores.redis.support import store_on

ALGORITHMS = tuple(RateLimitAlgorithm)
PEOPLE = ("one", "two")


@dataclass(frozen=True)
class Step:
    """The clock moves; then credit is given, a claim is settled, or limits change, or somebody asks for one or for the
    first of all.
    """

    moved_us: int
    who: int
    permille: int
    permits: int
    settles: int | None
    changes: bool
    chooses: str | None
    credits: int | None
    priority: str | None


KINDS: Sequence[Mapping[str, Any]] = [
    {},
    {"keep": {"low": 60, "normal": 20}},
    {"keep": {"normal": 33.333}},
    {"soft": True},
]
"""Hard limits without a share that is kept free, hard ones with one, and soft ones."""
PRIORITIES = [None, "high", "normal", "low"]


def definitions(key: str) -> st.SearchStrategy[RateLimit | QuotaLimit]:
    """Rates and quotas of every size, hard and soft."""
    sizes = st.one_of(st.integers(1, 50), st.integers(1, 10**12))
    seconds = st.one_of(st.integers(1, 100_000), st.integers(1, 366 * 86_400_000)).map(lambda ms: ms / 1000)
    kinds = st.sampled_from(KINDS)
    periods = st.tuples(st.sampled_from(QuotaPeriod), st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"]))
    return st.one_of(
        st.builds(
            lambda size, window, algorithm, kind: RateLimit(key, size, window, algorithm, **kind),
            sizes,
            seconds,
            st.sampled_from(ALGORITHMS),
            kinds,
        ),
        st.builds(lambda size, period, kind: QuotaLimit(key, size, *period, **kind), sizes, periods, kinds),
        st.builds(
            lambda size, session, kind: QuotaLimit.per_session(key, size, session, **kind), sizes, seconds, kinds
        ),
    )


UNDO = -1
"""In place of the share of an amount that was used: the claim is undone."""

STEPS = st.lists(
    st.builds(
        Step,
        moved_us=st.one_of(
            st.sampled_from([0, 1, 1000, 300_000, 10_000_000]),
            st.integers(-5_000_000, 0),
            st.integers(-(10**11), 10**11),
        ),
        who=st.integers(0, 2),
        permille=st.sampled_from([0, 1, 250, 500, 900, 1000]),
        permits=st.integers(0, 2),
        settles=st.one_of(st.none(), st.sampled_from([UNDO, 0, 300, 1000, 1700])),
        changes=st.sampled_from([False, False, False, False, True]),
        chooses=st.sampled_from([None, None, None, "in_order", "emptiest_first"]),
        credits=st.sampled_from([None, None, None, None, 1, 300, 1000]),
        priority=st.sampled_from(PRIORITIES),
    ),
    min_size=1,
    max_size=30,
)


class Player:
    """One store, and the same definitions, as one of several players of a timeline."""

    def __init__(self, store: Store, first: list[LimitDefinition], second: list[LimitDefinition]) -> None:
        self.store = store
        self.schemas = [schema_of(tuple(limits), store.lease_us) for limits in (first, second)]
        self.held: list[tuple[LimitSet, Claim]] = []

    def play(self, step: Step, which: int) -> object:
        """Take a step; returns everything that can be seen of it."""
        parts = [ScopedLimits(scope_of("agrees", who), self.schemas[which]) for who in PEOPLE]
        if step.changes:
            # A store need not look at limits that are not requested, or are in a scope after one that rejects.
            nothing = {key: 0 for key in self.schemas[which].index if key != "db"}
            for part in parts:
                self.store.acquire(claim_of(LimitSet.composed([part], self.store), nothing, ("db",)))
        if step.credits is not None:
            return self._credit(parts[step.who % len(parts)], step.credits)
        if step.settles is not None and self.held:
            return self._settle(*self.held.pop(0), step.settles, self.schemas[which])
        sets = [LimitSet.composed(some, self.store) for some in (parts, parts[:1], parts[1:])]
        least = {rule.key: rule.limit.ceiling for rule in self.schemas[which].rules}
        wanted = {key: int(most * step.permille // 1000) for key, most in least.items() if key != "db"}
        if step.permits:
            wanted["db"] = step.permits
        left_out = () if step.permits else ("db",)
        claims = [claim_of(one, wanted, left_out, priority=step.priority) for one in sets]
        asked = claims if step.chooses else claims[step.who : step.who + 1]
        if step.chooses:
            admitted = self.store.acquire_first(claims, emptiest_first=step.chooses == "emptiest_first")
        else:
            admitted = asked[0] if self.store.acquire(asked[0]) else None
        if admitted is not None:
            self.held.append((sets[claims.index(admitted)], admitted))
        return [None if claim.admitted is None else _seen(claim) for claim in asked]

    def _credit(self, part: ScopedLimits, permille: int) -> object:
        limits = LimitSet.composed([part], self.store)
        for rule in part.schema.rules:
            if not rule.is_permit:
                self.store.settle(credit_of(limits, rule.key), [-max(rule.ceiling_parts * permille // 1000, 1)])
        return [(key, stats["used"]) for key, stats in limits.get_stats().items()]

    def _settle(self, limits: LimitSet, claim: Claim, permille: int, latest: Schema) -> object:
        claim.undoes = permille == UNDO
        self.store.settle(
            claim,
            [
                -amount if limit.rule.is_permit or claim.undoes else amount * permille // 1000 - amount
                for limit, amount, _ in claim.decisions()
            ],
        )
        return [(key, stats["used"]) for key, stats in limits.get_stats().items() if key in latest.index]


def _seen(claim: Claim) -> object:
    """Return what can be seen of a decision, but for the permits that are left: stores reclaim them at other times."""
    outcome = outcome_of(claim)
    waits = [(status.key, status.entity, status.retry_after) for status in outcome.violations]
    permits = claim.shape.permit_keys
    left = [(status.key, status.remaining, status.overdrawn) for status in outcome.passed if status.key not in permits]
    return claim.admitted, claim.decided_at, waits, left


@settings(suppress_health_check=list(HealthCheck))
@given(
    # The use of a limit that was removed is forgotten at other times: that is for the conformance suite.
    rates=st.tuples(definitions("first"), definitions("second"), definitions("first"), definitions("second")),
    steps=STEPS,
    goes_back=st.booleans(),
)
def test_random_traces_are_decided_as_the_memory_store_decides_them(
    redis: RedisServer, rates: tuple[RateLimit | QuotaLimit, ...], steps: list[Step], goes_back: bool
) -> None:
    _play_both(redis, rates, steps, goes_back=goes_back)


def _play_both(
    redis: RedisServer, rates: tuple[RateLimit | QuotaLimit, ...], steps: list[Step], *, goes_back: bool
) -> None:
    clock = FakeClock()
    first: list[LimitDefinition] = [rates[0], rates[1], ResourceLimit("db", 2)]
    second: list[LimitDefinition] = [ResourceLimit("db", 3, keep=(("low", 40),)), rates[2], rates[3]]
    ours, reference = store_on(redis, clock=clock), MemoryStore(clock=clock)
    players = [Player(store, first, second) for store in (ours, reference)]
    which, latest = 0, clock.now_us
    try:
        for one in steps:
            # A lease that one store has seen run out may run on in another one when the clock goes back.
            step = replace(one, permits=0) if goes_back else replace(one, moved_us=abs(one.moved_us))
            clock.move(step.moved_us)
            latest = max(latest, clock.now_us)
            if latest - clock.now_us > HOUR_US:  # scripts know no boundaries of calendars that are further ahead
                step = replace(step, changes=False)
            which = 1 - which if step.changes else which
            seen, expected = [player.play(step, which) for player in players]
            assert seen == expected
    finally:
        ours.close()


DECISIONS = [1000, pytest.param(20_000, marks=pytest.mark.release)]
SIZES: list[Callable[[Random], int]] = [lambda random: random.randint(1, 20), lambda random: random.randint(1, 10**12)]
SECONDS: list[Callable[[Random], float]] = [
    lambda random: random.randint(1, 5000) / 1000,
    lambda random: random.randint(1, 366 * 86_400_000) / 1000,
]


def rate(algorithm: RateLimitAlgorithm) -> Callable[[Random], LimitDefinition]:
    """Return what makes random rates of an algorithm."""

    def make(random: Random) -> LimitDefinition:
        size, seconds = random.choice(SIZES)(random), random.choice(SECONDS)(random)
        return RateLimit("units", size, seconds, algorithm, **random.choice(KINDS))

    return make


def quota(random: Random) -> LimitDefinition:
    """Return a random quota."""
    size, kind = random.choice(SIZES)(random), random.choice(KINDS)
    if random.random() < 0.5:
        return QuotaLimit.per_session("units", size, random.choice(SECONDS)(random), **kind)
    period, zone = random.choice(list(QuotaPeriod)), random.choice(["UTC", "Europe/Berlin"])
    starts = random.choice(["", *{"day": ["6h"], "week": ["sun+6h"], "month": ["15", "31+6h"]}.get(period, [])])
    return QuotaLimit("units", size, period, zone, starts=starts, **kind)


def permits(random: Random) -> LimitDefinition:
    """Return a random resource limit."""
    hold = random.choice([None, random.randint(1, 60)])
    return ResourceLimit("units", random.randint(1, 6), max_hold_seconds=hold, **random.choice(KINDS[:3]))


@pytest.mark.parametrize(
    "make",
    [*[pytest.param(rate(one), id=str(one)) for one in ALGORITHMS], quota, permits],
)
@pytest.mark.parametrize("most", DECISIONS)
def test_thousands_of_decisions_of_each_algorithm_are_those_of_the_memory_store(
    redis: RedisServer, make: Callable[[Random], LimitDefinition], most: int
) -> None:
    random, decisions = Random(most), 0
    while decisions < most:
        clock, limit = FakeClock(), make(random)
        ours, reference = store_on(redis, clock=clock), MemoryStore(clock=clock)
        scope = scope_of("agrees", str(decisions))
        sets = [
            LimitSet.composed([ScopedLimits(scope, schema_of((limit,), one.lease_us))], one)
            for one in (ours, reference)
        ]
        held: list[list[Claim]] = []
        span = int(1_000_000 * (getattr(limit, "window_seconds", None) or 5))
        # A lease that one store has seen run out may run on in another one when the clock goes back.
        longest_back = 0 if isinstance(limit, ResourceLimit) else 3 * span
        for _ in range(100):
            forward = random.choice(
                [0, 1, random.randint(0, 2000), random.randint(0, span // 3), random.randint(0, span)]
            )
            clock.move(-random.randint(0, longest_back) if random.random() < 0.1 else forward)
            if held and random.random() < 0.3:
                _settle_alike(sets, held.pop(random.randrange(len(held))), random.choice([UNDO, 0, 300, 1000, 1500]))
            wanted = random.choice([0, 1, int(limit.ceiling * random.random()), int(limit.ceiling)])
            priority = random.choice(PRIORITIES)
            claims = [claim_of(one, {"units": wanted}, priority=priority) for one in sets]
            for one, claim in zip(sets, claims, strict=True):
                one.store.acquire(claim)
            assert _seen(claims[0]) == _seen(claims[1])
            decisions += 1
            if claims[0].admitted:
                held.append(claims)
        ours.close()


def _settle_alike(sets: list[LimitSet], claims: list[Claim], permille: int) -> None:
    """Settle a claim in each store, with a share of what was charged as used."""
    for one, claim in zip(sets, claims, strict=True):
        amount, is_permit, claim.undoes = claim.amounts[0], bool(claim.shape.permits), permille == UNDO
        one.store.settle(claim, [-amount if is_permit or claim.undoes else amount * permille // 1000 - amount])


@pytest.mark.parametrize(
    "limit",
    [
        RateLimit("units", 3, 60, RateLimitAlgorithm.GCRA, soft=True),
        RateLimit("units", 3, 60, RateLimitAlgorithm.TOKEN_BUCKET, soft=True),
        RateLimit("units", 3, 60, RateLimitAlgorithm.LEAKY_BUCKET, soft=True),
        RateLimit("units", 3, 60, RateLimitAlgorithm.FIXED_WINDOW, soft=True),
        RateLimit("units", 3, 60, RateLimitAlgorithm.SLIDING_WINDOW, soft=True),
        QuotaLimit.per_session("units", 3, 5, soft=True),
    ],
    ids=lambda limit: str(getattr(limit, "algorithm", "quota")),
)
def test_nothing_that_is_asked_of_an_overdrawn_limit_is_no_moment_from_which_on_a_clock_that_goes_back_counts(
    redis: RedisServer, limit: RateLimit | QuotaLimit
) -> None:
    clock = FakeClock()
    stores = [store_on(redis, clock=clock), MemoryStore(clock=clock)]
    scoped = [[ScopedLimits(scope_of("agrees", None), schema_of((limit,), store.lease_us))] for store in stores]
    sets = [LimitSet.composed(some, store) for some, store in zip(scoped, stores, strict=True)]

    def take(amount: int) -> list[Claim]:
        claims = [claim_of(one, {"units": amount}) for one in sets]
        for store, claim in zip(stores, claims, strict=True):
            store.acquire(claim)
        assert all(claim.admitted for claim in claims)
        return claims

    def used() -> list[object]:
        return [one.get_stats()["units"]["used"] for one in sets]

    early = take(1)
    clock.move(10_000_000)
    take(5)
    clock.move(1_000_000)
    take(0)
    clock.move(-13_000_000)
    take(0)
    ours, reference = used()
    assert ours == reference
    for store, claim in zip(stores, early, strict=True):
        store.settle(claim, [-amount for amount in claim.amounts])
    ours, reference = used()
    assert ours == reference
    stores[0].close()  # type: ignore[attr-defined]  # the one on the server


@pytest.mark.parametrize("new", ALGORITHMS)
@pytest.mark.parametrize("old", ALGORITHMS)
def test_use_is_carried_alike_between_each_pair_of_algorithms(
    redis: RedisServer, old: RateLimitAlgorithm, new: RateLimitAlgorithm
) -> None:
    clock = FakeClock()
    stores = [store_on(redis, clock=clock), MemoryStore(clock=clock)]

    def outcomes(algorithm: RateLimitAlgorithm, units: int) -> list[Outcome]:
        schema = schema_of((RateLimit("units", 10, 60, algorithm),), stores[0].lease_us)
        scoped = [ScopedLimits(scope_of("agrees", f"{old}:{new}"), schema)]
        return [LimitSet.composed(scoped, store).try_acquire({"units": units}).outcome for store in stores]

    outcomes(old, 7)
    for moved_us, units in [(1_000_000, 0), (1_000_000, 4), (20_000_000, 3), (39_000_000, 9)]:
        clock.move(moved_us)
        ours, reference = outcomes(new, units)
        assert ours == reference
    stores[0].close()  # type: ignore[attr-defined]  # the one on the server


def test_algorithm_without_a_script_names_the_missing_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LUA_ALGORITHMS, "quota")
    with pytest.raises(LookupError, match="algorithm 'quota' has no Lua implementation: add it to LUA_ALGORITHMS"):
        tag_of_rule(compile_rule(QuotaLimit.per_session("units", 3, 5), 1))


def _agree(redis: RedisServer, limit: RateLimit, steps: Iterable[tuple[int, int]]) -> None:
    """Move the clock and acquire, step by step: both stores decide alike."""
    clock = FakeClock()
    ours, reference = store_on(redis, clock=clock), MemoryStore(clock=clock)
    sets = [
        LimitSet.composed([ScopedLimits(scope_of("agrees", None), schema_of((limit,), store.lease_us))], store)
        for store in (ours, reference)
    ]
    for moved_us, units in steps:
        clock.move(moved_us)
        seen, expected = [limits.try_acquire({"units": units}).outcome for limits in sets]
        assert seen == expected
    ours.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_log_that_has_wrapped_many_times_still_counts_exactly(
    redis: RedisServer, algorithm: RateLimitAlgorithm
) -> None:
    steps = [(1001 if number % 7 else 90_000, 1 + number % 3 * 900) for number in range(4000)]
    _agree(redis, RateLimit("units", 3000, 1.024, algorithm), steps)


def test_totals_that_grow_without_end_stay_exact(redis: RedisServer) -> None:
    limit = RateLimit("units", 10**12, 1, RateLimitAlgorithm.SLIDING_WINDOW)
    _agree(redis, limit, [(400_000, 4 * 10**11)] * 6000)

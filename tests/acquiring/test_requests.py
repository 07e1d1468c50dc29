"""What a request takes, and what it may ask for: the rules of acquiring, one by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import product
from types import MappingProxyType
from typing import Any, NoReturn

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet, Unlimited
from limits_app.engine.amounts import NOTHING
from limits_app.engine.claims import Claim
from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitExceeded, NeverAdmissible
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.stores.memory import MemoryStore
from tests.acquiring.sets import CALLS, DB, RPM, TPM, ChangeRuntime, limit_set, used
from tests.engine.test_definitions import BAD_FRACTIONS, BAD_NUMBERS

LEAKY_BUCKET = RateLimitAlgorithm.LEAKY_BUCKET
SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW
FIXED_WINDOW = RateLimitAlgorithm.FIXED_WINDOW
BUDGET = QuotaLimit.per_day("budget", 5)

Verb = Callable[[LimitSet, Mapping[str, float] | None], Acquisition]


def acquire(limits: LimitSet, requested: Mapping[str, float] | None) -> Acquisition:
    """Acquire without waiting."""
    return limits.acquire(requested, timeout=0)


VERBS: list[Verb] = [LimitSet.try_acquire, acquire]


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_requested_takes_one_of_every_limit(verb: Verb, store: MemoryStore) -> None:
    limits = limit_set(store, CALLS, DB)
    assert verb(limits, None)
    assert used(limits) == {"call_count": 1, "db": 1}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("others", [(), (CALLS,), (DB,), (CALLS, DB)])
def test_a_rate_or_quota_without_an_amount_is_an_error(
    verb: Verb, others: tuple[LimitDefinition, ...], store: MemoryStore
) -> None:
    limits = limit_set(store, RPM, BUDGET, *others)
    with pytest.raises(InvalidRequest, match=r"nothing is requested of rpm, budget: .*\{key: amount\}"):
        verb(limits, None)
    assert set(used(limits).values()) == {0}
    assert limits.rates == ["rpm", "budget"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("rates", [(RPM,), (RPM, TPM), (TPM, BUDGET)])
def test_a_request_that_takes_nothing_is_an_error(
    verb: Verb, rates: tuple[LimitDefinition, ...], store: MemoryStore
) -> None:
    limits = limit_set(store, *rates)
    with pytest.raises(InvalidRequest, match="nothing is requested of "):
        verb(limits, {})
    assert verb(limits, {"typo": 1}).acquisitions == {}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        pytest.param({"tpm": 30}, {"tpm": 30, "rpm": 0, "call_count": 1, "db": 1}, id="a_rate_and_the_rest"),
        pytest.param({"rpm": 1, "tpm": 2}, {"tpm": 2, "rpm": 1, "call_count": 1, "db": 1}, id="two_rates"),
        pytest.param({"call_count": 4}, {"tpm": 0, "rpm": 0, "call_count": 4, "db": 1}, id="calls"),
        pytest.param({"db": 3}, {"tpm": 0, "rpm": 0, "call_count": 1, "db": 3}, id="permits"),
        pytest.param(NOTHING, {"tpm": 0, "rpm": 0, "call_count": 1, "db": 1}, id="no_rate"),
        pytest.param({"db": 0}, {"tpm": 0, "rpm": 0, "call_count": 1, "db": 0}, id="no_permit"),
        pytest.param({"call_count": 0}, {"tpm": 0, "rpm": 0, "call_count": 0, "db": 1}, id="no_call"),
        pytest.param({"tpm": 0}, {"tpm": 0, "rpm": 0, "call_count": 1, "db": 1}, id="nothing_of_a_rate"),
        pytest.param({"tpm": 0.5}, {"tpm": 0.5, "rpm": 0, "call_count": 1, "db": 1}, id="decimals"),
        pytest.param({"tpm": Decimal("2.5")}, {"tpm": 2.5, "rpm": 0, "call_count": 1, "db": 1}, id="decimal_numbers"),
        pytest.param({"tpm": 100, "rpm": 10, "call_count": 5, "db": 3}, None, id="all_of_everything"),
    ],
)
def test_what_is_requested_is_taken_and_one_of_every_call_and_resource_limit_that_is_not(
    verb: Verb, requested: dict[str, float], expected: dict[str, float] | None, store: MemoryStore
) -> None:
    limits = limit_set(store)
    for _ in range(2):  # the second time by the plan of the first
        store.reset([scoped.scope.key for scoped in limits.scoped])
        acquisition = verb(limits, requested)
        assert acquisition
        assert used(limits) == (requested if expected is None else expected)
        acquisition.cancel()


def test_a_request_may_be_any_mapping(store: MemoryStore) -> None:
    limits = limit_set(store, TPM)
    assert limits.try_acquire(MappingProxyType({"tpm": 5}))
    assert used(limits) == {"tpm": 5}


@pytest.mark.parametrize("requested", [["tpm"], ("tpm",), {"tpm"}, "tpm", "", 5, 0, b"tpm", [("tpm", 5)], object()])
def test_a_request_must_be_a_mapping(requested: Any, store: MemoryStore) -> None:
    for before in ({"tpm": 1}, {"x": 1}, {"t": 1, "p": 1, "m": 1}):
        limits = limit_set(store, TPM, RateLimit("t", 5, 1), RateLimit("p", 5, 1), RateLimit("m", 5, 1))
        limits.try_acquire(before).cancel()
        with pytest.raises(InvalidRequest, match="requested must map keys to amounts, not "):
            limits.try_acquire(requested)
        with pytest.raises(InvalidRequest):
            limits.acquire(requested)


@pytest.mark.parametrize(("amount", "rule"), [bad for bad in BAD_NUMBERS + BAD_FRACTIONS if "zero" not in str(bad.id)])
def test_an_invalid_amount_names_key_and_rule(amount: Any, rule: str, store: MemoryStore) -> None:
    limits = limit_set(store)
    rule = "must not be negative" if rule == "more than 0" else rule
    is_fraction = isinstance(amount, float | Decimal)
    for key, verb in product(("tpm", "call_count") if is_fraction else ("tpm", "call_count", "db"), VERBS):
        with pytest.raises(ValueError, match=f"amount of '{key}' ") as caught:
            verb(limits, {"rpm": 1, key: amount})
        assert isinstance(caught.value, InvalidRequest)
        assert rule in str(caught.value)
        assert len(str(caught.value)) < 250
    assert set(used(limits).values()) == {0}


WHOLE = [BUDGET, *[RateLimit("budget", 5, 60, algorithm) for algorithm in (LEAKY_BUCKET, SLIDING_WINDOW, FIXED_WINDOW)]]


@pytest.mark.parametrize("limit", WHOLE, ids=repr)
@pytest.mark.parametrize("amount", [0.5, 1.001, float("nan"), float("inf")])
def test_amounts_of_whole_limits_are_whole(limit: LimitDefinition, amount: float, store: MemoryStore) -> None:
    with pytest.raises(InvalidRequest, match="amount of 'budget' must be a whole number"):
        limit_set(store, limit).try_acquire({"budget": amount})
    assert limit_set(store, limit).try_acquire({"budget": 5.0})


def test_an_unknown_key_warns_once_per_set(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits, other = limit_set(store, TPM, RPM, CallLimit(50, 60), DB), limit_set(store, TPM)
    for _ in range(3):
        assert limits.try_acquire({"tpm": 1, "typo": 5, "db": 0})
        assert limits.try_acquire({"tpm": 1, "tipo": 0, "typo": 0.5})
    assert other.try_acquire({"tpm": 1, "typo": 5})
    assert [(record.name, record.levelno) for record in caplog.records] == [("limits_app", logging.WARNING)] * 3
    assert caplog.messages[:2] == [
        f"key '{key}' is not one of the limits of this request and is skipped; the set has: tpm, rpm, call_count, db"
        for key in ("typo", "tipo")
    ]
    assert used(limits)["tpm"] == 6


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (-1, "not be negative"),
        ("5", "be a number"),
        (True, "be a number, not a boolean"),
        (float("nan"), "be a finite number"),
    ],
)
def test_amounts_are_validated(amount: Any, said: str, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    for verb, limits in product(VERBS, [(), (TPM,), (CALLS, DB), (TPM, CALLS, DB)]):
        made = limit_set(store, *limits) if limits else LimitSet(store=store)
        with pytest.raises(InvalidRequest, match=f"amount of 'typo' must {said}, not "):
            verb(made, {"typo": amount})
        assert set(used(made).values()) <= {0}
    assert caplog.messages == []


@pytest.mark.parametrize("key", ["", "\0", "👤", "\ud800", "k" * 10_000, 5, None, ("tpm",), 1.5])
def test_a_key_may_be_unknown_in_every_way(key: Any, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, TPM)
    assert limits.try_acquire({"tpm": 1, key: 1})
    assert used(limits) == {"tpm": 1}
    assert len(caplog.messages) == 1
    assert len(caplog.messages[0]) < 250


def test_warnings_of_unknown_keys_are_bounded(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, TPM)
    for number in range(1000):
        assert limits.try_acquire({f"made up {number}": 1})
    assert len(caplog.messages) <= 256


def test_an_unknown_key_can_be_an_error(
    store: MemoryStore, change_runtime: ChangeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limit_set(store)
    assert limits.try_acquire({"tpm": 1, "typo": 5})
    change_runtime(unknown_keys_raise=lambda: True)
    said = "^key 'typo' is not one of the limits of this request; the set has: "
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=said):
            limits.try_acquire({"tpm": 1, "typo": 5})
    assert used(limits)["tpm"] == 1
    assert len(caplog.messages) == 1


NEVER = [
    *[pytest.param(RateLimit("k", 5, 60, algorithm), {"k": 6}, 5, id=algorithm) for algorithm in RateLimitAlgorithm],
    pytest.param(RateLimit("k", 5, 60, burst=2), {"k": 3}, 2, id="more_than_the_burst"),
    pytest.param(RateLimit("k", 5, 60), {"k": 5.001}, 5, id="a_thousandth_more"),
    pytest.param(RateLimit("k", 5, 60), {"k": 10**12}, 5, id="very_much_more"),
    pytest.param(CallLimit(5, 60), {"call_count": 6}, 5, id="calls"),
    pytest.param(CallLimit(0.5, 60), {}, 0.5, id="the_one_call_that_nobody_named"),
    pytest.param(CallLimit(0.5, 60), None, 0.5, id="the_one_call_of_nothing_requested"),
    pytest.param(ResourceLimit("k", 5), {"k": 6}, 5, id="permits"),
    pytest.param(BUDGET, {"budget": 6}, 5, id="a_quota"),
]


@pytest.mark.parametrize(("limit", "requested", "most"), NEVER)
def test_more_than_a_limit_can_ever_admit_is_refused_immediately(
    limit: LimitDefinition, requested: dict[str, float] | None, most: float, store: MemoryStore
) -> None:
    limits = limit_set(store, limit, ResourceLimit("other", 1))
    for verb in (*VERBS, LimitSet.acquire, LimitSet.peek):
        with pytest.raises(ValueError, match=rf"'{limit.key}' can never admit .*: its most is {most}") as caught:
            verb(limits, requested)  # type: ignore[operator]
        error = caught.value
        assert isinstance(error, NeverAdmissible)
        assert isinstance(error, LimitExceeded)
        assert not error.outcome.allowed
        assert error.outcome.never
        assert error.outcome.retry_after is None
        assert [status.key for status in error.outcome.violations] == [limit.key]
        assert set(used(limits).values()) == {0}


class Untouchable(MemoryStore):
    """A store that must not be asked anything."""

    def acquire(self, claim: Claim) -> NoReturn:
        raise AssertionError("touched")

    def peek(self, claim: Claim) -> NoReturn:
        raise AssertionError("touched")

    def settle(self, claim: Claim, changes: object) -> NoReturn:
        raise AssertionError("touched")


@pytest.mark.parametrize("requested", [None, {}, {"tpm": 5}, {"tpm": 0.5, "db": 10**12}])
@pytest.mark.parametrize("verb", [LimitSet.try_acquire, LimitSet.acquire, acquire])
def test_an_empty_set_admits_everything_without_touching_a_store(verb: Verb, requested: Any) -> None:
    limits = LimitSet(store=Untouchable())
    for _ in range(3):
        with verb(limits, requested) as acquisition:
            assert acquisition
            assert acquisition.successful
            acquisition.update({})
        assert acquisition.outcome.allowed
        assert acquisition.outcome.passed == ()
        assert acquisition.acquisitions == {}
        acquisition.release()
        acquisition.cancel()
        assert acquisition


EMPTY_ERRORS = [
    ({"tpm": -5}, "amount of 'tpm' must not be negative, not -5"),
    ({"tpm": 1, "rpm": Decimal("-0.5")}, "amount of 'rpm' must not be negative"),
    ({"tpm": "5"}, "amount of 'tpm' must be a number, not '5'"),
    ({"tpm": True}, "amount of 'tpm' must be a number, not a boolean, not True"),
    ({"tpm": 10**12 + 1}, "amount of 'tpm' must not be more than 10"),
    ({"tpm": float("nan")}, "amount of 'tpm' must be a finite number, not nan"),
    (["tpm"], r"must map keys to amounts, not \['tpm'\]"),
    (5, "must map keys to amounts, not 5"),
]


@pytest.mark.parametrize(("amounts", "rule"), EMPTY_ERRORS)
def test_an_empty_set_rejects_invalid_requests_and_usage(amounts: Any, rule: str) -> None:
    limits = LimitSet(store=Untouchable())
    for use in (limits.try_acquire, limits.acquire, limits.try_acquire().update):
        with pytest.raises(InvalidRequest, match=rule):
            use(amounts)


@pytest.mark.parametrize("verb", VERBS)
def test_to_an_empty_set_every_key_is_unknown(
    verb: Verb, change_runtime: ChangeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    limits = LimitSet(store=Untouchable())
    for _ in range(3):
        assert verb(limits, {"tpm": 5})
    assert caplog.messages == ["key 'tpm' is not one of the limits of this request and is skipped; the set has: none"]
    change_runtime(unknown_keys_raise=lambda: True)
    with pytest.raises(InvalidRequest, match="key 'tpm' is not one of the limits of this request"):
        verb(limits, {"tpm": 5})
    assert verb(limits, {})
    assert verb(limits, None)


@pytest.mark.parametrize("verb", VERBS)
def test_without_limits_no_key_is_unknown(
    verb: Verb, change_runtime: ChangeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    change_runtime(unknown_keys_raise=lambda: True)
    assert verb(Unlimited(), {"tpm": 5})
    with pytest.raises(InvalidRequest, match="must not be negative"):
        verb(Unlimited(), {"tpm": -5})
    assert caplog.messages == []


def test_usage_of_an_empty_set_is_reported_to_its_own_observers_only(caplog: pytest.LogCaptureFixture) -> None:
    limits = LimitSet(store=Untouchable())
    limits.try_acquire().update({"tpm": 5})
    assert limits.acquire().acquisitions == {}
    assert caplog.messages == []


def test_an_empty_set_rejects_an_invalid_timeout() -> None:
    limits = LimitSet(store=Untouchable())
    for acquire_until in (limits.acquire, lambda timeout: asyncio.run(limits.aacquire(timeout=timeout))):
        with pytest.raises(InvalidRequest, match="timeout must be None or seconds, 0 or more"):
            acquire_until(timeout=-5)


def test_an_empty_set_has_nothing_in_it() -> None:
    limits = LimitSet(store=Untouchable(), config={"region": "eu"})
    assert len(limits) == 0
    assert list(limits) == []
    assert limits.rates == []
    assert limits.acquire().config == {"region": "eu"}
    with pytest.raises(KeyError, match="the set has no limit 'tpm', only: none"):
        limits["tpm"]


def test_an_empty_set_lets_the_errors_of_its_blocks_through() -> None:
    with pytest.raises(KeyboardInterrupt), LimitSet().acquire():
        raise KeyboardInterrupt


def test_a_set_is_a_collection_of_its_limits(store: MemoryStore) -> None:
    limits = limit_set(store)
    assert list(limits) == [TPM, RPM, CALLS, DB]
    assert len(limits) == 4
    assert limits["tpm"] == TPM
    assert limits["call_count"] == CALLS
    assert "tpm" in limits
    assert TPM in limits
    assert "typo" not in limits
    assert RateLimit("tpm", 5, 5) not in limits
    with pytest.raises(KeyError, match="the set has no limit 'typo', only: tpm, rpm, call_count, db"):
        limits["typo"]
    assert repr(TPM) in repr(limits)


def test_a_set_is_made_of_text(store: MemoryStore) -> None:
    limits = (CallLimit(100, 60), RateLimit("tokens", 10**6, 86_400), ResourceLimit("db", 3))
    text = "100/min, tokens = 1M/day; db=3"
    lists: list[list[Any]] = [[limits[0], "tokens=1,000,000/day", "db=3"], [limits[0], "tokens=1M/day db=3"]]
    for given in (text, text.replace(",", ""), *lists):
        assert tuple(LimitSet(given, store=store)) == limits
    for invalid, message in {
        "": "at least one",
        "100/min 5/h": "call_count' appears twice",
        "tpm": "must look like",
        "tpm=5/min:shared": "only limits of a policy can be shared",
        "x" * 5000: "at most 4096 characters",
    }.items():
        with pytest.raises(InvalidLimit, match=message):
            LimitSet(invalid, store=store)


def test_peeking_returns_the_decision_and_charges_nothing(store: MemoryStore) -> None:
    limits = limit_set(store)
    assert limits.peek({"tpm": 100}).allowed
    assert set(used(limits).values()) == {0}
    taken = limits.try_acquire({"tpm": 60, "db": 3})
    outcome = limits.peek({"tpm": 50, "rpm": 1})
    assert not outcome.allowed
    assert {status.key for status in outcome.violations} == {"tpm", "db"}
    assert outcome == limits.try_acquire({"tpm": 50, "rpm": 1}).outcome
    with taken:
        within = limits.peek({"tpm": 50, "rpm": 1})
        taken.update({"tpm": 60})
    assert {status.key for status in within.violations} == {"tpm"}, "permits of the block around it are not taken again"

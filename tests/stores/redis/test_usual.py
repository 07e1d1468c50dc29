"""Most requests of one limit are decided in a shorter way, which leaves everything as the long one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

import pytest
from redis import Redis
from redis.client import Pipeline

from limits_app.core.algorithms.sliding_window import STEPS
from limits_app.core.amounts import Amount
from limits_app.core.plan import Claim
from limits_app.core.errors import StaleConfiguration, StoreUnavailable
from limits_app.core.keys import scope_of
from limits_app.core.record import schema_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.outcome import outcome_of
from limits_app.core.plan import ScopedLimits
from limits_app.stores.redis import scripts, straightening
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of, credit_of
from tests.servers.redis import RedisServer
from tests.stores.redis.support import store_on

HOUR_US = 3_600_000_000
SHORTER = tuple(algorithm for algorithm in RateLimitAlgorithm if algorithm != RateLimitAlgorithm.GCRA)
TOLERANCE_MS = 5_000


class Timeline:
    """Draws what happens: the clock moves, somebody asks for a share of a limit, and may give part of it back."""

    def __init__(self, seed: str, algorithm: RateLimitAlgorithm) -> None:
        self._random = Random(seed)
        self._algorithm = algorithm
        self.first, self.second = self._rate(), self._rate()
        others = RateLimit("others", 5, 60, algorithm)
        self._sets = [[self.first], [self.second], [self.first, ResourceLimit("db", 2)], [others, self.first]]

    def limits(self) -> Sequence[AnyLimit]:
        """Most of the time the same."""
        return self._random.choices(self._sets, [20, 1, 1, 1])[0]

    def moved_us(self, rate: RateLimit) -> int:
        """Parts of the period of a rate and a little more or less; now and then an hour."""
        periods = self._random.choice([0, 0, 0, 0.3 / STEPS, 0.9 / STEPS, 1.5 / STEPS, 0.01, 0.1, 0.5, 0.9, 1, 3.4])
        little = self._random.choice([0] * 9 + [1, -1, -5_000_000, self._random.randrange(10**6), HOUR_US])
        return round(periods * rate.window_seconds * 1_000_000) + little

    def amount(self, rate: RateLimit) -> int:
        """Nothing, a few, or a part of the capacity."""
        return self._random.choice([0, 1, 1, 1, 2, int(rate.capacity * self._random.choice([0.01, 0.3, 0.6]))])

    def settles(self) -> float | None:
        """Which part of an amount was used in the end, where somebody says so."""
        return self._random.choice([None, None, None, None, 0, 0, 0.3, 1.7])

    def _rate(self) -> RateLimit:
        capacity = self._random.choice([self._random.randint(2, 60), self._random.randint(100, 10**9)])
        seconds = self._random.choice([1, 60, 3600, 86_400, self._random.randint(1, 10**7) / 1000])
        return RateLimit("units", capacity, seconds, self._algorithm, soft=self._random.random() < 0.2)


_READ: Final[Mapping[bytes, Callable[[Pipeline, bytes], object]]] = {
    b"hash": lambda pipe, key: pipe.hgetall(key),
    b"zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    b"string": lambda pipe, key: pipe.get(key),
}


class Player:
    """A store that plays a timeline, and what is left of that on its server."""

    def __init__(self, redis: RedisServer, clock: FakeClock, *, short: bool, idle_factor: float = 7) -> None:
        self.store = store_on(redis, clock=clock, idle_factor=idle_factor)
        self._client = Redis(port=redis.port)
        self._limits = straightening._MOST_LIMITS if short else 0

    def ask(
        self, limits: Sequence[AnyLimit], amount: Amount, *, lasting: bool = False, version: int | None = None
    ) -> Claim:
        """Ask for an amount; without the short way where this is not for that."""
        limit_set = self._set_of(limits, lasting=lasting, version=version)
        claim = claim_of(limit_set, {"units": amount}, ("db",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(straightening, "_MOST_LIMITS", self._limits)
            self.store.acquire(claim)
        return claim

    def give_back(self, limits: Sequence[AnyLimit], amount: int) -> None:
        """As an administrator does."""
        self.store.settle(credit_of(self._set_of(limits), "units"), [-amount])

    def left(self) -> dict[str, tuple[str, int]]:
        """What is in the keys of the store, without its prefix and the name of its link, and how long they live."""
        keys: list[bytes] = self._client.keys(f"{self.store.prefix}*")  # type: ignore[assignment]  # it is no task
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.type(key).pttl(key)
            found = pipe.execute()
            for key, kind in zip(keys, found[::2], strict=True):
                _READ[kind](pipe, key)
            values = [sorted(value.items()) if isinstance(value, dict) else value for value in pipe.execute()]
        lives = found[1::2]
        return dict(zip(map(self._plain, keys), zip(map(self._plain, values), lives, strict=True), strict=True))

    def reads(self) -> int:
        """How often the server has read a record or a version so far."""
        stats: Mapping[str, Mapping[str, int]] = self._client.info("commandstats")  # type: ignore[assignment]
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hmget", "get"))

    def close(self) -> None:
        """Leave."""
        self._client.close()
        self.store.close()

    def _set_of(self, limits: Sequence[AnyLimit], *, lasting: bool = False, version: int | None = None) -> LimitSet:
        layout = schema_of(tuple(limits), self.store.lease_us, counts=True)
        scoped = ScopedLimits(scope_of("usual", "somebody"), layout, lasting=lasting)
        return LimitSet.composed([scoped], self.store, version=version)

    def _plain(self, value: object) -> str:
        return repr(value).replace(self.store.prefix, "").partition(":reply:")[0]


def seen(claim: Claim) -> object:
    """What was decided, as far as somebody can tell."""
    outcome = outcome_of(claim)
    waits = [status.retry_after for status in outcome.violations]
    return claim.admitted, claim.decided_at, waits, [(one.remaining, one.overdrawn) for one in outcome.passed]


def both(redis: RedisServer, clock: FakeClock, idle_factor: float = 7) -> list[Player]:
    """Who may take the short way, and who may not."""
    return [Player(redis, clock, short=short, idle_factor=idle_factor) for short in (True, False)]


def alike(players: Sequence[Player]) -> None:
    """Both leave the same behind, which lives as long."""
    short, long = [player.left() for player in players]
    assert {name: value for name, (value, _) in short.items()} == {name: value for name, (value, _) in long.items()}
    for name, (_, lives) in short.items():
        assert abs(lives - long[name][1]) < TOLERANCE_MS


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
@pytest.mark.parametrize("seed", range(12))
def test_random_timelines_leave_the_same_behind(redis: RedisServer, algorithm: RateLimitAlgorithm, seed: int) -> None:
    clock, timeline = FakeClock(), Timeline(f"{algorithm} {seed}", algorithm)
    players = both(redis, clock, idle_factor=1 + 6 * (seed % 2))
    for turn in range(60):
        limits = timeline.limits()
        rate = next(limit for limit in limits if isinstance(limit, RateLimit) and limit.key == "units")
        clock.move(timeline.moved_us(rate))
        amount, settles = timeline.amount(rate), timeline.settles()
        # Now and then a scope is said to last, or not to any more.
        claims = [player.ask(limits, amount, lasting=turn % 20 == 7) for player in players]
        assert len({repr(seen(claim)) for claim in claims}) == 1
        if settles is not None:
            for player, claim in zip(players, claims, strict=True):
                player.store.settle(claim, [int(part * settles) - part for part in claim.amounts])
        alike(players)
    for player in players:
        player.close()


WINDOW_US: Final = 600_000_000
STEP_US: Final = WINDOW_US // STEPS
LOGGED: Final = RateLimit("units", 100, WINDOW_US // 1_000_000, RateLimitAlgorithm.SLIDING_WINDOW)


def asked(players: Sequence[Player], clock: FakeClock, *moved_us: int) -> None:
    """Each asks for one after each of these moves, in an hour that has just begun."""
    clock.move(-clock.now_us % HOUR_US)
    for moved in moved_us:
        clock.move(moved)
        for player in players:
            assert player.ask([LOGGED], 1).admitted
        alike(players)


@pytest.mark.parametrize("older_us", [0, 1, STEP_US * 3 // 10])
def test_what_expires_within_a_step_is_forgotten(redis: RedisServer, clock: FakeClock, older_us: int) -> None:
    players = both(redis, clock)
    asked(players, clock, 0, WINDOW_US - STEP_US // 2, STEP_US // 2 + older_us)
    for player in players:
        player.close()


def test_a_log_lives_on_when_half_its_life_is_over_within_a_step(redis: RedisServer, clock: FakeClock) -> None:
    players, nearly = both(redis, clock), WINDOW_US * 9 // 10
    # It lives for seven windows.
    asked(players, clock, 0, nearly, nearly, nearly, WINDOW_US * 8 // 10 - 1_000_000, 900_000, STEP_US // 2)
    for player in players:
        player.close()


def test_a_log_of_which_all_was_given_back_starts_anew(redis: RedisServer, clock: FakeClock) -> None:
    players = both(redis, clock)
    asked(players, clock, 0)
    for player in players:
        player.give_back([LOGGED], 1)
    clock.move(STEP_US // 3)
    for player in players:
        assert player.ask([LOGGED], 1).admitted
    alike(players)
    for player in players:
        player.close()


@pytest.fixture
def block_long_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From when it is called on, scripts have no long way to decide any more."""

    def read(name: str) -> str:
        return "do return redis.error_reply('the long way') end\n" if name == "acquire" else known(name)

    def block() -> None:
        monkeypatch.setattr(scripts, "_read", read)
        scripts.script.cache_clear()

    known = scripts._read
    yield block
    monkeypatch.undo()
    scripts.script.cache_clear()


@pytest.mark.parametrize("algorithm", SHORTER)
def test_only_who_finds_no_room_goes_the_long_way(
    redis: RedisServer, clock: FakeClock, algorithm: RateLimitAlgorithm, block_long_way: Callable[[], None]
) -> None:
    player = Player(redis, clock, short=True)
    limits = [RateLimit("units", 100, 60, algorithm)]
    player.ask(limits, 1)
    block_long_way()
    for _ in range(20):
        clock.move(1000)
        assert player.ask(limits, 1).admitted
    with pytest.raises(StoreUnavailable, match="the long way"):
        player.ask(limits, 90)
    player.close()


@pytest.mark.parametrize("algorithm", SHORTER)
def test_who_is_refused_has_nothing_read_twice(
    redis: RedisServer, clock: FakeClock, algorithm: RateLimitAlgorithm
) -> None:
    player = Player(redis, clock, short=True)
    limits, version = [RateLimit("units", 100, 60, algorithm)], player.store.version()
    player.ask(limits, 1, version=version)
    before = player.reads()
    assert not player.ask(limits, 100, version=version).admitted
    assert player.reads() == before + 2  # the version, and the record
    player.close()


@pytest.mark.parametrize("algorithm", [RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA])
def test_thousandths_are_counted_alike(redis: RedisServer, clock: FakeClock, algorithm: RateLimitAlgorithm) -> None:
    players, limits = both(redis, clock), [RateLimit("units", 9.5, 7, algorithm)]
    for amount in (0.1, 1.001, 1.003, 0.029, 1.005):
        for player in players:
            assert player.ask(limits, amount).admitted
        alike(players)
    for player in players:
        player.close()


def test_what_was_decided_by_a_configuration_that_has_changed_is_stale(redis: RedisServer, clock: FakeClock) -> None:
    player = Player(redis, clock, short=True)
    limits, version = [RateLimit("units", 100, 60)], player.store.version()
    for _ in range(2):
        assert player.ask(limits, 1, version=version).admitted
    player.store.advance_version()
    with pytest.raises(StaleConfiguration):
        player.ask(limits, 1, version=version)
    newer = player.ask(limits, 0, version=player.store.version())
    assert [status.remaining for status in outcome_of(newer).passed] == [98]
    player.close()

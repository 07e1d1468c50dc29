"""Most requests of one limit are decided in a shorter way, which leaves everything as the long one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from limits_app.core.claim import Claim
from limits_app.core.errors import StaleConfiguration
from limits_app.core.keys import scope_of
from limits_app.core.layout import layout_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.outcome import outcome_of
from limits_app.core.parts import ScopedLimits
from limits_app.stores.redis import straightening
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of
from tests.servers.redis import RedisServer
from tests.stores.redis.support import store_on

HOUR_US = 3_600_000_000
SHORTER = tuple(algorithm for algorithm in RateLimitAlgorithm if algorithm != RateLimitAlgorithm.GCRA)
TOLERANCE_MS = 5_000


@dataclass(frozen=True)
class Step:
    """The clock moves, then somebody asks for a share of one of several limits, and may give part of it back."""

    moved_us: int
    permille: int
    which: int
    settles: int | None


STEPS = st.lists(
    st.builds(
        Step,
        moved_us=st.one_of(st.sampled_from([0, 1, 1000, 300_000, HOUR_US]), st.integers(-5_000_000, 10**7)),
        permille=st.sampled_from([0, 1, 10, 10, 10, 250, 600]),
        which=st.sampled_from([0, 0, 0, 0, 1, 2]),
        settles=st.sampled_from([None, None, None, 0, 300, 1700]),
    ),
    min_size=5,
    max_size=40,
)


def rates() -> st.SearchStrategy[RateLimit]:
    """Rates of every size, hard and soft."""
    sizes = st.one_of(st.integers(1, 50), st.integers(100, 10**9))
    seconds = st.one_of(st.integers(1, 100_000), st.integers(1, 86_400_000)).map(lambda ms: ms / 1000)
    return st.builds(
        RateLimit, st.just("units"), sizes, seconds, st.sampled_from(RateLimitAlgorithm), soft=st.booleans()
    )


class Player:
    """A store that plays a timeline, and what is left of that on its server."""

    def __init__(self, redis: RedisServer, clock: FakeClock, *, short: bool) -> None:
        self.store = store_on(redis, clock=clock)
        self._client = Redis(port=redis.port)
        self._limits = straightening._MOST_LIMITS if short else 0

    def ask(
        self, limits: Sequence[AnyLimit], amount: int, *, lasting: bool = False, version: int | None = None
    ) -> Claim:
        """Ask for an amount; without the short way where this is not for that."""
        layout = layout_of(tuple(limits), self.store.lease_us, counts=True)
        scoped = ScopedLimits(scope_of("usual", "somebody"), layout, lasting=lasting)
        claim = claim_of(LimitSet.composed([scoped], self.store, version=version), {"units": amount}, ("db",))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(straightening, "_MOST_LIMITS", self._limits)
            self.store.acquire(claim)
        return claim

    def left(self) -> dict[str, str]:
        """What is in the keys of the store, without its prefix and the name of its link."""
        return {self._plain(key): self._plain(_value(self._client, key)) for key in self._keys()}

    def living(self) -> dict[str, int]:
        """For how many milliseconds each of these keys lives."""
        return {self._plain(key): int(self._client.pttl(key)) for key in self._keys()}  # type: ignore[arg-type]  # it is no task

    def reads(self) -> int:
        """How often the server has read a record so far."""
        return int(self._client.info("commandstats").get("cmdstat_hmget", {"calls": 0})["calls"])  # type: ignore[union-attr]

    def close(self) -> None:
        """Leave."""
        self._client.close()
        self.store.close()

    def _keys(self) -> list[bytes]:
        return list(self._client.scan_iter(f"{self.store.prefix}*"))

    def _plain(self, value: object) -> str:
        return repr(value).replace(self.store.prefix, "").partition(":reply:")[0]


def _value(client: Redis, key: bytes) -> object:
    kind = client.type(key)
    if kind == b"hash":
        return sorted(client.hgetall(key).items())  # type: ignore[union-attr]  # it is no task
    return client.zrange(key, 0, -1, withscores=True) if kind == b"zset" else client.get(key)


def seen(claim: Claim) -> object:
    """What was decided, as far as somebody can tell."""
    outcome = outcome_of(claim)
    waits = [status.retry_after for status in outcome.violations]
    return claim.admitted, claim.decided_at, waits, [(one.remaining, one.overdrawn) for one in outcome.passed]


def both(redis: RedisServer, clock: FakeClock) -> list[Player]:
    """Who may take the short way, and who may not."""
    return [Player(redis, clock, short=short) for short in (True, False)]


def alike(players: Sequence[Player]) -> None:
    """Both leave the same behind, which lives as long."""
    short, long = players
    assert short.left() == long.left()
    others = long.living()
    assert {name: abs(lives - others[name]) < TOLERANCE_MS for name, lives in short.living().items()} == dict.fromkeys(
        others, True
    )


@settings(suppress_health_check=list(HealthCheck))
@given(first=rates(), second=rates(), steps=STEPS, lasting=st.booleans())
def test_random_timelines_leave_the_same_behind(
    redis: RedisServer, first: RateLimit, second: RateLimit, steps: Sequence[Step], *, lasting: bool
) -> None:
    clock = FakeClock()
    players = both(redis, clock)
    sets = [(first,), (second,), (first, ResourceLimit("db", 2))]
    for step in steps:
        clock.move(step.moved_us)
        limits = sets[step.which]
        amount = int(limits[0].capacity) * step.permille // 1000
        # Now and then a scope is said to last, or not to any more.
        lasts = lasting and step.permille != 250
        claims = [player.ask(limits, amount, lasting=lasts) for player in players]
        assert len({repr(seen(claim)) for claim in claims}) == 1
        if step.settles is not None:
            for player, claim in zip(players, claims, strict=True):
                player.store.settle(claim, [part * step.settles // 1000 - part for part in claim.amounts])
        alike(players)
    for player in players:
        player.close()


@pytest.mark.parametrize("algorithm", SHORTER)
def test_only_who_finds_no_room_goes_the_long_way(
    redis: RedisServer, clock: FakeClock, algorithm: RateLimitAlgorithm
) -> None:
    player = Player(redis, clock, short=True)
    limits = [RateLimit("units", 100, 60, algorithm)]
    player.ask(limits, 1)
    before = player.reads()
    for _ in range(20):
        clock.move(1000)
        assert player.ask(limits, 1).admitted
    assert player.reads() == before + 20
    assert not player.ask(limits, 90).admitted
    assert player.reads() == before + 22
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

"""The Redis store: its verbs for threads, over connections of redis-py, and for tasks, over those of redis.asyncio.

Each verb is one script, which the server executes in one step; on a cluster one for each group of scopes with one tag.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from struct import Struct, iter_unpack
from typing import Any, Final

from limits_app.acquiring import MOST_COLLECTORS, Renewer, on_fork
from limits_app.engine import ALL, SECOND_US, Amounts, Change, Changes, Claim, Clock, as_clock, lease_us_of, short_key
from limits_app.engine.errors import LeaseEnded, NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.engine.locks import RLock
from limits_app.stores.in_thread import AskedInThread
from limits_app.stores.redis.calls import Calls, ForeignCalendars
from limits_app.stores.redis.commands import RedisCommand
from limits_app.stores.redis.connections import Connections
from limits_app.stores.redis.errors import Unanswered
from limits_app.stores.redis.hints import Rejections, ScriptClock
from limits_app.stores.redis.opening import DEFAULTS, ConnectionSource, KeyNames, open_store
from limits_app.stores.redis.prepared import AcquireCall
from limits_app.stores.redis.states import TIME
from limits_app.stores.redis.task_connections import TaskConnections
from limits_app.stores.redis.usage import UsageCollector
from limits_app.stores.redis.versions import StoredVersions
from limits_app.stores.redis.waking import RedisWaking
from limits_app.stores.steps import GRACE_US

logger = logging.getLogger("limits_app")

_POLL_US: Final = (SECOND_US, SECOND_US)
_MOST_ATTEMPTS: Final = 50

_STALE: Final = ord("S")
_OTHER_RULE: Final = ord("C")
_REJECTED: Final = ord("R")
_LEASE_LOST: Final = ord("L")
_LEASE_ENDED: Final = ord("E")
_DECIDED: Final = b"RA"
_SETTLED: Final = b"ALE"
"""How replies and decisions start; see acquire.lua and settle.lua."""

_DECISION: Final = Struct("<Bdd")
"""The status, the turn (the place of the claim in the call), and the time."""


class RedisStore(AskedInThread):
    """Keeps state on a Redis or Valkey server, for all machines that reach it.

    Its server is given by the `alias` of a cache of Django or django-redis, a `url`, or a `client` of redis-py.
    All keys start with `prefix`. `clock` returns microseconds and replaces the clock of the server, for tests.
    Open it with `open_redis_store`: one store for each process and server is enough.
    Verbs raise StoreUnavailable when the server cannot be reached within `connect_seconds`, or does not answer within
    `reply_seconds`. No call is sent twice: one whose reply was lost may have charged its amounts.
    """

    remote = True
    counting = True
    collectors = MOST_COLLECTORS
    clustered = False
    """Whether scopes are on several servers, so that those of several plans cannot be decided on in one step."""

    def __init__(
        self,
        alias: str | None = None,
        *,
        url: str | None = None,
        client: Any = None,
        clock: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        unknown = options.keys() - DEFAULTS.keys()
        if unknown:
            raise TypeError(f"RedisStore has no option {min(unknown)!r}; it has {', '.join(DEFAULTS)}")
        self._source = ConnectionSource(alias, url, client)
        self._options = {**DEFAULTS, **options}
        self.prefix: str = self._options["prefix"]
        self.poll_us: tuple[int, int] | None = _POLL_US
        self._clock = ScriptClock(clock, self._options["idle_factor"], GRACE_US)
        self.clock = Clock(self._clock.estimate) if clock is None else as_clock(clock)
        self.lease_us = lease_us_of(self._options["lease_seconds"])
        self._names = KeyNames(self.prefix, clustered=self.clustered)
        self._calls = Calls(self._names, self._clock, clustered=self.clustered)
        self._connections = self._connect(
            **{name: self._options[name] for name in ("connect_seconds", "reply_seconds")}
        )
        self._tasks = TaskConnections(self._connections)
        self.rejections = Rejections()
        self._versions = StoredVersions(self._connections.run, self._calls)
        usage = UsageCollector(self._connections.run, self._calls)
        self.collect_counts, self.forget_counts = usage.collect, usage.forget
        self.add_rejections, self.oldest_hour = usage.add_rejections, usage.oldest_hour
        self._waking = RedisWaking(self._connections, self._calls, self.rejections.forget)
        self.line = self._waking.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start with a free lock in a child process."""
        # Reentrant, because a finalizer may settle another claim meanwhile.
        self._lock = RLock()

    def _connect(self, **seconds: float) -> Any:
        return Connections(self._source.pool(), self._calls.set_aside, **seconds)

    def __reduce__(self) -> tuple[object, ...]:
        if self._clock.now is not None:
            raise NotShareable("a store with its own clock cannot be sent to another process: leave clock= out")
        return open_store, (type(self), *self._source.address(), self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source})"

    # The verbs for threads.

    def acquire(self, claim: Claim) -> bool:
        claim.repeated_us = None
        if claim.version is None and self.rejections.reject(claim):
            return False
        return self._acquire_one(claim)

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        how = {"emptiest_first": emptiest_first, "failover": failover}
        claims = self._without_rejected(claims, **how)
        if not claims:
            return None
        acquire = self._calls.choice(claims, **how)
        if acquire is not None:
            return self._decide(claims, acquire)
        if emptiest_first:
            for claim in claims:
                self.peek(claim)
            claims = sorted(claims, key=Claim.load)
        for claim in claims if failover else claims[:1]:
            if self._acquire_one(claim):
                return claim
        return None

    def settle(self, claim: Claim, changes: Amounts) -> None:
        if not self._begin_settling(claim):
            return
        try:
            kept_leases = self._settle(claim, changes)
        except BaseException as error:
            self._fail_settling(claim, error)
            raise
        self._end_settling(claim, kept_leases=kept_leases)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        lost = set[Claim]()
        tags = {self._names.tag(short) for claim in claims for short in claim.plan.short_keys()}
        of_tokens = {
            self._names.tag(claim.plan.short_keys()[claim.shape.token_lease.scope_index])
            for claim in claims
            if claim.shape.token_lease is not None
        }
        # The lease of a token first: its permits are not renewed without it.
        for tag in sorted(tags, key=lambda tag: (tag not in of_tokens, tag)):
            call, leases = self._calls.renew([claim for claim in claims if claim not in lost], tag)
            reply = self._connections.run(call) if leases else b""
            for (claim, limit), (since,) in zip(leases, iter_unpack("<d", reply), strict=True):
                if since:
                    claim.note_held_since(limit, int(since))
                else:
                    lost.add(claim)
        return [claim for claim in claims if claim in lost]

    def peek(self, claim: Claim) -> None:
        looking = self._calls.prepared(claim.plan).looking()
        self._read((claim,), looking, self._ask((claim,), looking))
        claim.admitted = None

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        for scope in scopes:
            key = self._names.scope(short_key(scope))
            fields = [name.encode() for name in keys] if keys is not None else self._fields(key)
            self._connections.run(self._calls.reset(scope, fields))
            self._waking.announce(key)
        self.rejections.forget()
        self.line.notify(scopes)

    def _fields(self, key: bytes) -> list[bytes]:
        """Return the fields of the limits in the hash of a scope."""
        return [field for field in self._connections.run(RedisCommand("HKEYS", key)) if field[:1].isalpha()]

    def version(self, namespace: str = "") -> int:
        return self._versions.current(namespace)

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        version = self._versions.advance(changes, namespace)
        self.rejections.forget()
        self.line.notify_all()
        self._waking.announce()
        return version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        return self._versions.changes_since(version, namespace)

    def eviction_policy(self) -> str | None:
        """Return what the server evicts when its memory is full, such as `noeviction`; None where it is unknown."""
        lines = bytes(self._connections.run(RedisCommand("INFO", "memory"))).decode().splitlines()
        return dict(line.partition(":")[::2] for line in lines).get("maxmemory_policy")

    def close(self) -> None:
        """Close idle connections; later calls open others."""
        self._waking.close()
        self._tasks.after_fork()
        self._connections.close()

    # The verbs for tasks. In a cluster and with Sentinel, and in rare cases, threads do the same.

    async def aacquire(self, claim: Claim) -> bool:
        return await self.aacquire_first((claim,)) is not None

    async def aacquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        how = {"emptiest_first": emptiest_first, "failover": failover}
        if self._connections.task_class is None:
            return await super().aacquire_first(claims, **how)
        claims = self._without_rejected(claims, **how)
        if not claims:
            return None
        acquire = self._calls.choice(claims, **how)
        if acquire is None:
            return await super().aacquire_first(claims, **how)
        forgotten = self.rejections.forgotten
        abandoned = partial(self._release_abandoned, claims, acquire)
        reply = await self._tasks.run(self._calls.acquire(claims, acquire), abandoned)
        if reply[0] not in _DECIDED:
            return await super().aacquire_first(claims, **how)
        return self._read(claims, acquire, reply, forgotten)

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        if self._connections.task_class is None:
            await super().asettle(claim, changes)
            return
        if not self._begin_settling(claim):
            return
        if not self._is_charged(claim):
            self._end_settling(claim)
            return
        call = self._calls.settle(claim, changes, self._calls.prepared(claim.plan))
        try:
            reply = await self._tasks.run(call, partial(self._settle_abandoned, claim, changes))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail_settling(claim, error)
            raise
        if reply[0] not in _SETTLED:
            claim.settled = False
            await super().asettle(claim, changes)
            return
        self._end_settling(claim, kept_leases=reply[0] != _LEASE_LOST)

    # Deciding.

    def _without_rejected(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Sequence[Claim]:
        """Return the claims that may be admitted, as far as that is known."""
        for claim in claims:
            claim.repeated_us = None
        if not failover:
            return claims if emptiest_first else claims[:1]
        if not self.rejections:
            return claims
        return [claim for claim in claims if claim.version is not None or not self.rejections.reject(claim)]

    def _acquire_one(self, claim: Claim) -> bool:
        if claim.shape.is_blocked:
            # The records stay as they are, with the use that counts when the block ends.
            self.peek(claim)
            claim.admitted = False
            return False
        return self._decide((claim,), self._calls.prepared(claim.plan).acquire) is not None

    def _decide(self, claims: Sequence[Claim], acquire: AcquireCall, now: int | None = None) -> Claim | None:
        """Charge the first of the claims that fits, in one step; `now` is that of `Calls.acquire`."""
        forgotten = self.rejections.forgotten
        return self._read(claims, acquire, self._ask(claims, acquire, now), forgotten)

    def _ask(self, claims: Sequence[Claim], acquire: AcquireCall, now: int | None = None) -> bytes:
        """Return the decision of the server, which is repeated with what it needs to know of calendars.

        A call that is repeated has changed nothing.
        """
        foreign: ForeignCalendars | None = None
        for _ in range(_MOST_ATTEMPTS):
            reply: bytes = self._connections.run(self._calls.acquire(claims, acquire, foreign, now))
            if reply[0] in _DECIDED:
                return reply
            if reply[0] == _STALE:
                raise StaleConfiguration
            if reply[0] == _LEASE_ENDED:
                raise LeaseEnded("the lease of the token has ended, or it was settled before")
            foreign = self._learned(reply, foreign)
        raise _keep_changing()

    def _learned(self, reply: bytes, foreign: ForeignCalendars | None) -> ForeignCalendars | None:
        """Return what a script needs to know before it decides, which its reply asks for."""
        if reply[0] == _OTHER_RULE:
            return (foreign or ForeignCalendars()).learned(reply)
        self._clock.learn(int(TIME.unpack_from(reply, 1)[0]))
        return foreign

    def _read(self, claims: Sequence[Claim], acquire: AcquireCall, reply: bytes, forgotten: int = -1) -> Claim | None:
        """Fill in the decisions of a reply; return the claim that was admitted.

        `forgotten` is that of the rejections before the call, so that its rejections may be remembered.
        """
        at, size = 0, len(reply)
        while at < size:
            status, turn, now = _DECISION.unpack_from(reply, at)
            claim, shape, is_rejected = claims[int(turn)], acquire.shapes[int(turn)], status == _REJECTED
            claim.decided_at, claim.admitted = int(now), not is_rejected
            claim.states, at = shape.reader.read(reply, at + _DECISION.size, is_rejected=is_rejected)
            if shape.has_blocked:
                claim.states = shape.with_blocked(claim.states)
            if claim.admitted:
                return claim
            self._clock.learn(claim.decided_at)
            if self._clock.now is None and claim.version is None:
                self.rejections.learn(claim, forgotten)
        return None

    def _release_abandoned(self, claims: Sequence[Claim], acquire: AcquireCall, outcome: object) -> None:
        """Release what a cancelled task was charged."""
        if isinstance(outcome, bytes) and outcome[0] in _DECIDED:
            self._release_in_thread(self._read(claims, acquire, outcome))

    def _release_in_thread(self, claim: Claim | None) -> None:
        if claim is not None:
            self._settle_in_thread(claim, [-amount for amount in claim.amounts])

    # Settling.

    def _begin_settling(self, claim: Claim) -> bool:
        """Return whether the caller has to settle a claim, which no other caller does from now on."""
        with self._lock:
            is_ours = not claim.settled
            claim.settled = True
        return is_ours

    def _fail_settling(self, claim: Claim, error: BaseException) -> None:
        """Let other callers settle a claim: without refunds and usage, unless it was surely not settled."""
        if isinstance(error, Unanswered) or not isinstance(error, StoreUnavailable):
            claim.unanswered = True
        claim.settled = False

    def _end_settling(self, claim: Claim, *, kept_leases: bool = True) -> None:
        if not kept_leases and not claim.unanswered:
            claim.lose_lease()
        self.rejections.forget()
        if self.line.busy:
            self.line.notify(claim.plan.scope_keys)

    def _is_charged(self, claim: Claim) -> bool:
        return bool(claim.admitted or claim.shape.is_credit)

    def _settle(self, claim: Claim, changes: Amounts) -> bool:
        """Settle a claim, or undo its charges; return False where a lease had run out."""
        if not self._is_charged(claim):
            return True
        plan = self._calls.prepared(claim.plan)
        foreign: ForeignCalendars | None = None
        for _ in range(_MOST_ATTEMPTS):
            reply = self._connections.run(self._calls.settle(claim, changes, plan, foreign))
            if reply[0] in _SETTLED:
                claim.is_over = reply[0] == _LEASE_ENDED
                return bool(reply[0] != _LEASE_LOST)
            foreign = self._learned(reply, foreign)
        raise _keep_changing()

    def _settle_abandoned(self, claim: Claim, changes: Amounts, outcome: object) -> None:
        """End the settlement of a cancelled task."""
        if isinstance(outcome, bytes) and outcome[0] in _SETTLED:
            self._end_settling(claim, kept_leases=outcome[0] != _LEASE_LOST)
        elif isinstance(outcome, StoreUnavailable):
            self._fail_settling(claim, outcome)
            self._put_off(claim, changes, outcome)
        else:
            claim.settled = False
            self._settle_in_thread(claim, changes)

    def _settle_in_thread(self, claim: Claim, changes: Amounts) -> None:
        def run() -> None:
            try:
                self.settle(claim, changes)
            except StoreUnavailable as error:
                self._put_off(claim, changes, error)

        asyncio.get_running_loop().run_in_executor(None, run)

    def _put_off(self, claim: Claim, changes: Amounts, error: StoreUnavailable) -> None:
        if self.settle_later is None:
            logger.warning("a cancelled request could not be settled: %s", error)
        else:
            self.settle_later(claim, changes)


def _keep_changing() -> StoreUnavailable:
    return StoreUnavailable(f"gave up after {_MOST_ATTEMPTS} attempts: the limits of this scope keep changing")

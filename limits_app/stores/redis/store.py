"""The Redis store: each verb is one script, which the server executes in one step.

The verbs are written once, as generators that yield calls and receive the replies. Threads send the calls over
connections of redis-py, tasks over those of redis.asyncio.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from struct import Struct
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from limits_app.core.clock import Clock, as_clock
from limits_app.core.errors import NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.core.keys import short_key
from limits_app.core.leases import Renewer
from limits_app.core.plan import Amounts, Claim, Plan
from limits_app.core.record import LEASE_US, lease_us_of
from limits_app.core.store import least_version
from limits_app.stores.in_thread import Settling
from limits_app.stores.redis.calls import SETTLE, Calls, Command, PreparedAcquire, PreparedPlan, ScriptCall
from limits_app.stores.redis.connections import Connections, TaskConnections
from limits_app.stores.redis.exactly_once import InDoubt, Slots
from limits_app.stores.redis.hints import Rejections, ServerClock
from limits_app.stores.redis.keys import Keys
from limits_app.stores.redis.opening import Source, open_store
from limits_app.stores.redis.records import Codecs, Records
from limits_app.stores.redis.usage import UsageCollector
from limits_app.stores.redis.waking import Waking
from limits_app.stores.steps import GRACE_US

logger = logging.getLogger("limits_app")

R = TypeVar("R")

Steps = Generator[Any, Any, R]
"""A verb: yields calls, receives their replies, and returns its result."""

_POLL_US: Final = (1_000_000, 1_000_000)
_MOST_CHOICES: Final = 1024
_MOST_ATTEMPTS: Final = 50
_SECONDS_BETWEEN_DEFINITIONS: Final = 60.0

WITHDRAWN: Final = b"W"
_STALE: Final = ord("S")
_OTHER_SCHEMA: Final = ord("C")
_OTHER_CALENDARS: Final = ord("T")
_REJECTED: Final = ord("R")
_NEW_SCOPE: Final = ord("N")
_DONE: Final = ord("A")
_LEASE_LOST: Final = ord("L")
"""How replies and decisions start; see acquire.lua and settle.lua."""

_DECIDED: Final = ord("D")
_MOST_DEFINED: Final = 4096
_DEFINITIONS_KEPT_MS: Final = "31622400000"

_TURN: Final = Struct("<dd")
_HEAD: Final = Struct("<Bd")


class Decision(NamedTuple):
    """The decision on claims: the one that was admitted, if any, whether one of its scopes had no record before.

    `records` are its records after and before, where it may be undone.
    """

    claim: Claim | None
    has_new_scope: bool
    records: bytes


_REJECTION: Final = Decision(None, has_new_scope=False, records=b"")


class RedisStore:
    """Keeps state on a Redis or Valkey server, for all machines that reach it.

    Its server is given by the `alias` of a cache of Django or django-redis, a `url`, or a `client` of redis-py.
    All keys start with `prefix`. `clock` returns microseconds and replaces the clock of the server, for tests.
    Open it with `open_redis_store`: one store for each process and server is enough.
    Verbs raise StoreUnavailable when the server cannot be reached within `connect_seconds`, or does not answer within
    `reply_seconds`. A call whose reply was lost is sent again, and is executed once.
    """

    remote = True
    counting = True

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "prefix": "limits:1:",
        "lease_seconds": LEASE_US / 1e6,
        "connect_seconds": 0.2,
        "reply_seconds": 0.1,
        "idle_factor": 7,
    }

    def __init__(
        self,
        alias: str | None = None,
        *,
        url: str | None = None,
        client: Any = None,
        clock: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        unknown = options.keys() - self.DEFAULTS.keys()
        if unknown:
            raise TypeError(f"RedisStore has no option {min(unknown)!r}; it has {', '.join(self.DEFAULTS)}")
        self._source = Source(alias, url, client)
        self._options = {**self.DEFAULTS, **options}
        self._now = clock
        self.prefix: str = self._options["prefix"]
        self.poll_us: tuple[int, int] | None = _POLL_US
        self.settle_later: Callable[[Claim, Amounts], object] | None = None
        """See RemoteStore; without it, calls in doubt are settled before the next request."""
        self._clock = ServerClock(clock, self._options["idle_factor"], GRACE_US)
        self.clock = Clock(self._clock.estimate) if clock is None else as_clock(clock)
        self.lease_us = lease_us_of(self._options["lease_seconds"])
        self._open()
        self.line = self._waking.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)

    def _open(self) -> None:
        self._names = self._keys()
        self._slots = Slots()
        self._connections = self._connect()
        self._tasks = TaskConnections(self._connections)
        self._codecs = Codecs()
        self._calls = Calls(self._names, self._clock)
        self._records = Records(self._calls, self._codecs, self._slots)
        self._choices: dict[tuple[frozenset[PreparedPlan], bool, bool], PreparedAcquire] = {}
        self._defined: dict[bytes, float] = {}
        self._rejections = Rejections()
        self._acquires_in_doubt: InDoubt[Claim, tuple[ScriptCall, Sequence[Claim], Sequence[PreparedPlan]]] = InDoubt()
        self._settlements_in_doubt: InDoubt[tuple[Claim, PreparedPlan], ScriptCall] = InDoubt()
        self._settling = Settling()
        usage = UsageCollector(self._connections.run, self._calls)
        self.collect_counts, self.forget_counts = usage.collect, usage.forget
        self._waking = Waking(self._connections, self._calls, self._rejections.forget)

    def _keys(self) -> Keys:
        return Keys(self._options["prefix"])

    def _connect(self) -> Any:
        seconds = {name: self._options[name] for name in ("connect_seconds", "reply_seconds")}
        return Connections(self._source.pool(), self._slots, **seconds)

    def __reduce__(self) -> tuple[object, ...]:
        if self._now is not None:
            raise NotShareable("a store with its own clock cannot be sent to another process: leave clock= out")
        return open_store, (type(self), *self._source.address(), self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source})"

    # The verbs for threads.

    def acquire(self, claim: Claim) -> bool:
        """See Store."""
        return self.acquire_first((claim,)) is not None

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        """See Store. Claims with different limits in one scope are decided in several steps."""
        claims = self._without_rejected(claims, emptiest_first=emptiest_first, failover=failover)
        self._settle_doubts()
        try:
            return self._run(self._acquire_steps(claims, emptiest_first=emptiest_first, failover=failover))
        except BaseException:
            self._leave_doubts(claims)
            raise

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See Store."""
        if self._settling.begin(claim):
            self._settle_begun(claim, changes)

    def _settle_begun(self, claim: Claim, changes: Amounts) -> None:
        try:
            self._run(self._settle(claim, changes))
        finally:
            self._settling.end(claim)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See Store."""
        lost = set[Claim]()
        for tag in self._names.tags_of(short for claim in claims for short in claim.plan.short_keys()):
            call, owners = self._calls.renew(claims, tag)
            if owners:
                reply = self._connections.run(call)
                lost.update(owner for owner, renewed in zip(owners, reply, strict=True) if renewed != ord("1"))
        return [claim for claim in claims if claim in lost]

    def peek(self, claim: Claim) -> None:
        """See Store."""
        self._run(self._peek(claim))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See Store."""
        for scope in scopes:
            short = short_key(scope)
            self._run(self._records.reset(short, keys))
            self._connections.run(Command("PUBLISH", self._names.channel, self._names.scope(short)))
        self._rejections.forget()
        self.line.notify(scopes)

    def version(self) -> int:
        """See Store."""
        return int(self._connections.run(Command("GET", self._names.version(self._names.tags[0]))) or 0)

    def advance_version(self) -> int:
        """See Store. On a cluster, the version is stored with each tag."""
        first, *others = self._names.tags
        version = int(self._connections.run(self._calls.raise_version(first, step=1, least=least_version())))
        for tag in others:
            self._connections.run(self._calls.raise_version(tag, step=0, least=version))
        self._rejections.forget()
        self.line.notify_all()
        self._connections.run(self._waking.announcement())
        return version

    def eviction_policy(self) -> str | None:
        """Return what the server evicts when its memory is full, such as `noeviction`; None where it is unknown."""
        lines = bytes(self._connections.run(Command("INFO", "memory"))).decode().splitlines()
        return dict(line.partition(":")[::2] for line in lines).get("maxmemory_policy")

    def close(self) -> None:
        """Close idle connections; later calls open others."""
        self._waking.close()
        self._tasks.after_fork()
        self._connections.close()

    # The verbs for tasks.

    async def aacquire(self, claim: Claim) -> bool:
        """See RemoteStore."""
        return await self.aacquire_first((claim,)) is not None

    async def aacquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        """See RemoteStore."""
        claims = self._without_rejected(claims, emptiest_first=emptiest_first, failover=failover)
        try:
            return await self._arun(self._acquire_steps(claims, emptiest_first=emptiest_first, failover=failover))
        except asyncio.CancelledError:
            self._settle_in_thread(claims)
            raise
        except BaseException:
            self._leave_doubts(claims)
            raise

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """See RemoteStore."""
        if not self._settling.begin(claim):
            return
        try:
            await self._arun(self._settle(claim, changes))
        except asyncio.CancelledError:
            self._in_thread(partial(self._settle_begun, claim, changes), claim, changes)
            raise
        except BaseException:
            self._settling.end(claim)
            raise
        self._settling.end(claim)

    async def apeek(self, claim: Claim) -> None:
        """See RemoteStore."""
        await self._arun(self._peek(claim))

    # The verbs themselves.

    def _acquire_one(self, claim: Claim) -> Steps[Claim | None]:
        plan = self._prepared(claim.plan)
        return (yield from self._decide([claim], [plan], plan.acquire)).claim

    def _acquire_steps(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Steps[Claim | None]:
        if len(claims) == 1:
            return self._acquire_one(claims[0])
        return self._acquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    def _acquire_first(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Steps[Claim | None]:
        if len(claims) > 1:
            plans = [self._prepared(claim.plan) for claim in claims]
            acquire = self._choice(plans, emptiest_first=emptiest_first, failover=failover)
            if acquire is not None:
                return (yield from self._decide(claims, plans, acquire)).claim
            if emptiest_first:
                for claim in claims:
                    yield from self._peek(claim)
                claims = sorted(claims, key=Claim.load)
        for claim in claims if failover else claims[:1]:
            if (yield from self._acquire_one(claim)) is not None:
                return claim
        return None

    def _decide(
        self, claims: Sequence[Claim], plans: Sequence[PreparedPlan], acquire: PreparedAcquire, now: int | None = None
    ) -> Steps[Decision]:
        """Charge the first of the claims that fits, in one step."""
        if not acquire.is_defined:
            yield from self._define(plans)
            acquire.is_defined = True
        for _ in range(_MOST_ATTEMPTS):
            forgotten = self._rejections.forgotten
            call = self._calls.acquire(claims, plans, acquire, now)
            try:
                reply: bytes = yield call
                decision = self._read(claims, plans, reply, forgotten)
                if decision.has_new_scope:
                    with suppress(StoreUnavailable):
                        yield from self._define(plans)
            except BaseException:
                if call.slot is not None:
                    for claim in claims:
                        claim.admitted = None
                        self._acquires_in_doubt.keep(claim, (call, claims, plans))
                raise
            self._slots.release(call.slot)
            if reply[0] == _DECIDED:
                return decision
            yield from self._prepare_again(claims, plans, reply)
        raise StoreUnavailable("the limits of a scope change faster than they can be followed")

    def _prepare_again(self, claims: Sequence[Claim], plans: Sequence[PreparedPlan], reply: bytes) -> Steps[None]:
        """Do what the server needs before it can decide."""
        if reply[0] == _STALE:
            raise StaleConfiguration
        if reply[0] == _OTHER_CALENDARS:
            self._clock.learn(int(_HEAD.unpack_from(reply)[1]))
            return
        for claim, plan in zip(claims, plans, strict=True):
            yield from self._records.migrate(plan.scopes, plan.shorts, claim.plan.version)

    def _settle(self, claim: Claim, changes: Amounts) -> Steps[None]:
        doubt = None if claim.admitted else self._acquires_in_doubt.take(claim)
        if doubt is not None:
            call, claims, plans = doubt
            try:
                reply = yield call.withdrawal()
            except BaseException:
                self._acquires_in_doubt.keep(claim, doubt)
                raise
            if reply != WITHDRAWN:
                self._read(claims, plans, reply, learn=False)
            if not claim.admitted:
                return
        lease_was_lost = yield from self._settle_plan(claim, changes, self._prepared(claim.plan))
        self._settled(claim)
        if lease_was_lost:
            claim.lose_lease()

    def _settle_plan(  # noqa: PLR0917 - as settle.lua has them
        self, claim: Claim, changes: Amounts, plan: PreparedPlan, action: int = SETTLE, records: bytes = b""
    ) -> Steps[bool]:
        """Settle a claim once, in the scopes of a prepared plan; return whether a lease had run out."""
        key = (claim, plan)
        earlier = self._settlements_in_doubt.take(key) if self._settlements_in_doubt else None
        if earlier is not None:
            try:
                reply: bytes = yield earlier.withdrawal()
            except BaseException:
                self._settlements_in_doubt.keep(key, earlier)
                raise
            if reply != WITHDRAWN:
                return reply[0] == _LEASE_LOST
        while True:
            call = self._calls.settle(claim, changes, plan, action, records)
            reply = yield from self._send_settlement(key, call)
            if reply[0] == _OTHER_CALENDARS:
                self._clock.learn(int(_HEAD.unpack_from(reply)[1]))
            elif reply[0] == _OTHER_SCHEMA:
                return (yield from self._settle_migrated(claim, changes, plan))
            else:
                break
        if reply[0] != _DONE:
            with suppress(StoreUnavailable):
                yield from self._define([plan])
        return reply[0] == _LEASE_LOST

    def _settle_migrated(self, claim: Claim, changes: Amounts, plan: PreparedPlan) -> Steps[bool]:
        """Settle a claim in scopes of which one has other limits by now."""
        for _ in range(_MOST_ATTEMPTS):
            found = yield from self._records.load(plan.shorts, plan.scopes, None)
            claim.holder = self._calls.holder(claim)
            call, kept_leases = self._records.settled(claim, changes, plan.scope_indexes, found)
            if (yield from self._send_settlement((claim, plan), call)) == b"A":
                return not kept_leases
        raise StoreUnavailable("the limits of a scope change faster than they can be followed")

    def _send_settlement(self, key: tuple[Claim, PreparedPlan], call: ScriptCall) -> Steps[bytes]:
        try:
            reply: bytes = yield call
        except BaseException:
            if call.slot is not None:
                self._settlements_in_doubt.keep(key, call)
            raise
        self._slots.release(call.slot)
        return reply

    def _settled(self, claim: Claim) -> None:
        claim.settled = True
        self._rejections.forget()
        if self.line.busy:
            self.line.notify(claim.plan.scope_keys)

    def _peek(self, claim: Claim) -> Steps[None]:
        yield from self._records.peek(claim, self._peek_groups(claim.plan))
        self._clock.learn(claim.decided_at)

    def _peek_groups(self, plan: Plan) -> Sequence[Sequence[int]]:
        """Return the positions of the scopes that are loaded together."""
        return [range(len(plan.scopes))]

    def _define(self, plans: Sequence[PreparedPlan]) -> Steps[None]:
        """Store the definitions of schemas, by which records are read after the limits have changed."""
        now = monotonic()
        for codec in [codec for plan in plans for codec in plan.codecs]:
            if now - self._defined.get(codec.name, -_SECONDS_BETWEEN_DEFINITIONS) >= _SECONDS_BETWEEN_DEFINITIONS:
                key = self._names.definitions(codec.name)
                yield Command("SET", key, codec.definitions, "PX", _DEFINITIONS_KEPT_MS)
                if len(self._defined) >= _MOST_DEFINED:
                    self._defined.clear()
                self._defined[codec.name] = now

    # Replies.

    def _read(
        self,
        claims: Sequence[Claim],
        plans: Sequence[PreparedPlan],
        reply: bytes,
        forgotten: int = 0,
        *,
        learn: bool = True,
    ) -> Decision:
        """Fill in the decisions of a reply."""
        at = 1
        while reply[0] == _DECIDED and at < len(reply):
            turn, size = _TURN.unpack_from(reply, at)
            at += _TURN.size
            claim, plan, status = claims[int(turn) - 1], plans[int(turn) - 1], reply[at]
            self._fill(claim, plan, reply, at)
            rest = at + _HEAD.size + plan.states.size
            at += int(size)
            if status != _REJECTED:
                return Decision(claim, status == _NEW_SCOPE, reply[rest:at])
            self._clock.learn(claim.decided_at)
            if learn and claim.plan.version is None and self._now is None and plan.is_whole:
                self._rejections.learn(claim, forgotten)
        return _REJECTION

    def _fill(self, claim: Claim, plan: PreparedPlan, reply: bytes, at: int) -> None:
        status, now = _HEAD.unpack_from(reply, at)
        claim.decided_at, claim.states = int(now), plan.states.read(reply, at + _HEAD.size)
        claim.admitted = status != _REJECTED

    # Prepared plans.

    def _prepared(self, plan: Plan) -> PreparedPlan:
        prepared = plan.store_cache
        if not isinstance(prepared, PreparedPlan) or prepared.names is not self._names:
            prepared = plan.store_cache = PreparedPlan(plan, self._names, self._codecs)
        return prepared

    def _choice(self, plans: Sequence[PreparedPlan], *, emptiest_first: bool, failover: bool) -> PreparedAcquire | None:
        """Return what chooses among different plans; None where that takes several steps."""
        distinct = frozenset(plans)
        key = (distinct, emptiest_first, failover)
        acquire = self._choices.get(key)
        if acquire is None:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            acquire = PreparedAcquire(list(distinct), emptiest_first=emptiest_first, failover=failover)
            self._choices[key] = acquire
        return acquire if acquire.is_possible and len(distinct) == len(plans) else None

    def _without_rejected(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Sequence[Claim]:
        """Return the claims that may be admitted, as far as that is known."""
        if not failover:
            return claims if emptiest_first else claims[:1]
        if not self._rejections:
            return claims
        return [claim for claim in claims if claim.plan.version is not None or not self._rejections.reject(claim)]

    # Sending.

    def _run(self, steps: Steps[R]) -> R:
        """Send the calls of a verb from this thread."""
        run, resume, reply = self._connections.run, steps.send, None
        try:
            while True:
                call = resume(reply)
                try:
                    reply, resume = run(call), steps.send
                except StoreUnavailable as error:
                    reply, resume = error, steps.throw
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the result of the generator
        finally:
            steps.close()

    async def _arun(self, steps: Steps[R]) -> R:
        """Send the calls of a verb from this task."""
        run, resume, reply = self._tasks.run, steps.send, None
        try:
            while True:
                call = resume(reply)
                try:
                    reply, resume = await run(call), steps.send
                except StoreUnavailable as error:
                    reply, resume = error, steps.throw
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the result of the generator
        finally:
            steps.close()

    # Doubts.

    def _leave_doubts(self, claims: Sequence[Claim]) -> None:
        """Have claims settled later of which it is not known whether they were admitted."""
        for claim in claims:
            if claim in self._acquires_in_doubt and self.settle_later is not None:
                self.settle_later(claim, [-amount for amount in claim.amounts])

    def _settle_doubts(self) -> None:
        """Settle such claims, where nothing else takes care of that."""
        if self._acquires_in_doubt and self.settle_later is None:
            with suppress(StoreUnavailable):
                for claim in self._acquires_in_doubt.all():
                    self.settle(claim, [-amount for amount in claim.amounts])

    def _settle_in_thread(self, claims: Sequence[Claim]) -> None:
        """Refund what claims of a cancelled task were charged, if they were."""
        for claim in claims:
            if claim in self._acquires_in_doubt:
                changes = [-amount for amount in claim.amounts]
                self._in_thread(partial(self.settle, claim, changes), claim, changes)

    def _in_thread(self, work: Callable[[], None], claim: Claim, changes: Amounts) -> None:
        def run() -> None:
            try:
                work()
            except StoreUnavailable as error:
                if self.settle_later is None:
                    logger.warning("a cancelled request could not be settled: %s", error)
                else:
                    self.settle_later(claim, changes)

        asyncio.get_running_loop().run_in_executor(None, run)

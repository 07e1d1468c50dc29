"""The verbs of the Redis store, written once for threads and tasks: generators that yield calls and receive replies.

Each verb is one script, which the server executes in one step; on a cluster one for each group of scopes with one tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from struct import Struct
from time import monotonic
from typing import Final, NamedTuple

from limits_app.acquiring.waiting import WaitingLine
from limits_app.engine import engine
from limits_app.engine.clock import lasts
from limits_app.engine.errors import StaleConfiguration, StoreFull, StoreUnavailable
from limits_app.engine.plan import Amounts, Claim, Plan
from limits_app.engine.record import new_record
from limits_app.stores.codecs import Codecs
from limits_app.stores.redis.calls import (
    AcquireCall,
    Calls,
    Command,
    PreparedPlan,
    PreparedShape,
    ScriptCall,
    can_be_one_step,
)
from limits_app.stores.redis.exactly_once import Slots
from limits_app.stores.redis.hints import Rejections, ServerClock
from limits_app.stores.redis.opening import Keys
from limits_app.stores.redis.records import Changed, Codec, Records, Steps, Stored, changed_of, read_states

_MOST_ATTEMPTS: Final = 50
_SECONDS_BETWEEN_DEFINITIONS: Final = 60.0
_MOST_DEFINED: Final = 4096
_MOST_CHOICES: Final = 1024
_MOST_UNFINISHED: Final = 10_000
_DEFINITIONS_KEPT_MS: Final = "31622400000"

_STALE: Final = ord("S")
_OTHER_SCHEMA: Final = ord("C")
_OTHER_CALENDARS: Final = ord("T")
_REJECTED: Final = ord("R")
_NEW_SCOPE: Final = ord("N")
_DONE: Final = ord("A")
_LEASE_LOST: Final = ord("L")
_DECIDED: Final = b"RAN"
_SETTLED: Final = b"ANL"
"""How replies and decisions start; see acquire.lua and settle.lua."""

_TIME: Final = Struct("<d")
_DECISION: Final = Struct("<Bdd")
"""The status, the turn (the place of the claim in the call), and the time."""


Parts = Sequence[tuple[Claim, Sequence[int]]]
"""The parts of a claim, each with the places of its limits in the claim; see `RedisClusterStore`."""


class Unfinished(NamedTuple):
    """The doubt about a claim: a call that was not answered, or its parts, of which some may be in doubt.

    The call charges the first that fits of `claims`, or settles the claim where there are no `claims`.
    """

    call: ScriptCall | None = None
    claims: Sequence[Claim] = ()
    acquire: AcquireCall | None = None
    parts: Parts = ()


class Verbs:
    """The verbs, and what they know of the server."""

    line: WaitingLine
    clustered = False
    """Whether scopes are on several servers, so that those of several plans cannot be decided on in one step."""

    def __init__(self, names: Keys, clock: ServerClock) -> None:
        self._names = names
        self._clock = clock
        self._slots = Slots()
        self._codecs = Codecs(Codec)
        self._calls = Calls(names, clock)
        self._records = Records(self._calls, self._codecs, self._slots)
        self._choices: dict[tuple[object, ...], AcquireCall | None] = {}
        self._defined: dict[bytes, float] = {}
        self._rejections = Rejections()
        self._unfinished: dict[Claim, Unfinished] = {}

    def _choose(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Steps[Claim | None]:
        if len(claims) == 1 and not claims[0].shape.is_blocked:
            return self._acquire_one(claims[0])
        how = {"emptiest_first": emptiest_first, "failover": failover}
        in_steps = self.clustered or any(claim.shape.is_blocked for claim in claims)
        acquire = None if in_steps else self._choice(claims, **how)
        return self._acquire_one_by_one(claims, **how) if acquire is None else self._decide(claims, acquire)

    def _acquire_one_by_one(
        self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool
    ) -> Steps[Claim | None]:
        if emptiest_first:
            for claim in claims:
                yield from self._peek(claim)
            claims = sorted(claims, key=Claim.load)
        for claim in claims if failover else claims[:1]:
            acquire = self._reject_blocked if claim.shape.is_blocked else self._acquire_one
            if (yield from acquire(claim)) is not None:
                return claim
        return None

    def _acquire_one(self, claim: Claim) -> Steps[Claim | None]:
        return self._decide((claim,), self._prepared(claim.plan).acquire)

    def _reject_blocked(self, claim: Claim) -> Steps[None]:
        """Reject a claim; the records stay as they are, with the use that counts when the block ends."""
        yield from self._peek(claim)
        claim.admitted = False

    def _decide(self, claims: Sequence[Claim], acquire: AcquireCall, now: int | None = None) -> Steps[Claim | None]:
        """Charge the first of the claims that fits, in one step; `now` is that of `Calls.acquire`."""
        if not acquire.is_defined:
            yield from self._define(acquire)
        for _ in range(_MOST_ATTEMPTS):
            forgotten = self._rejections.forgotten
            call = self._calls.acquire(claims, acquire, now)
            try:
                reply: bytes = yield call
                if reply[0] in _DECIDED:
                    admitted, has_new_scope = self._read(claims, acquire, reply, forgotten)
                    if has_new_scope:
                        with suppress(StoreUnavailable):
                            yield from self._define(acquire)
                    call.finish(self._slots)
                    return admitted
            except BaseException:
                for claim in claims if call.slot is not None else ():
                    claim.admitted = None
                    self._keep(claim, Unfinished(call, claims, acquire))
                raise
            call.finish(self._slots)
            yield from self._prepare_again(claims, reply)
        raise StoreUnavailable("the limits of a scope change faster than they can be followed")

    def _prepare_again(self, claims: Sequence[Claim], reply: bytes) -> Steps[None]:
        """Do what the server needs before it can decide."""
        if reply[0] == _STALE:
            raise StaleConfiguration
        if reply[0] == _OTHER_CALENDARS:
            self._clock.learn(int(_TIME.unpack_from(reply, 1)[0]))
            return
        for claim in claims:
            yield from self._records.migrate(claim)

    def _settle(self, claim: Claim, changes: Amounts) -> Steps[None]:
        """Settle a claim, if it is charged; after an error or an interruption the next call does the rest."""
        kept_leases = True
        try:
            left = self._unfinished.get(claim)
            if left is not None and left.call is not None:
                kept_leases = yield from self._find_out(claim, left, left.call)
            if not claim.settled and (claim.admitted or claim.shape.is_credit):
                kept_leases = yield from self._settle_charged(claim, changes)
            claim.settled = True
        finally:
            self._after_settling(claim, kept_leases)
        self._rejections.forget()
        if self.line.busy:
            self.line.notify(claim.plan.scope_keys)

    def _after_settling(self, claim: Claim, kept_leases: bool) -> None:
        """Report a lost lease, and forget the doubt about a claim that is settled; also after an error."""
        if not kept_leases:
            claim.lose_lease()
        if claim.settled:
            self._unfinished.pop(claim, None)

    def _keep(self, claim: Claim, left: Unfinished) -> None:
        """Note the doubt about a claim; of too many claims the oldest are forgotten."""
        self._unfinished.pop(claim, None)
        self._unfinished[claim] = left
        for oldest in list(self._unfinished)[:-_MOST_UNFINISHED]:
            self._unfinished.pop(oldest, None)

    def _find_out(self, claim: Claim, left: Unfinished, call: ScriptCall) -> Steps[bool]:
        """Withdraw the call that was not answered; return False where it has found that a lease had run out."""
        call.is_withdrawn = True
        reply: bytes = yield call
        if left.acquire is None:
            claim.settled = reply[0] in _SETTLED
        elif reply[0] in _DECIDED:
            self._read(left.claims, left.acquire, reply)
        self._unfinished.pop(claim, None)
        return not (claim.settled and reply[0] == _LEASE_LOST)

    def _settle_charged(self, claim: Claim, changes: Amounts, *, undo: bool = False) -> Steps[bool]:
        """Settle a claim that is charged; return False where a lease had run out."""
        plan = self._prepared(claim.plan)
        while True:
            reply = yield from self._send(claim, self._calls.settle(claim, changes, plan, undo=undo))
            if reply[0] != _OTHER_CALENDARS:
                break
            self._clock.learn(int(_TIME.unpack_from(reply, 1)[0]))
        if reply[0] == _OTHER_SCHEMA:
            return (yield from self._settle_migrated(claim, changes))
        if reply[0] != _DONE:
            with suppress(StoreUnavailable):
                yield from self._define(plan.acquire)
        return reply[0] != _LEASE_LOST

    def _settle_migrated(self, claim: Claim, changes: Amounts) -> Steps[bool]:
        """As `_settle_charged`, in scopes of which one has other limits by now."""
        plan, kept_leases = claim.plan, True
        claim.holder = self._calls.holder(claim)

        def change(found: Sequence[Stored], now: int) -> list[Changed]:
            nonlocal kept_leases
            schemas = claim.shape.schemas
            records = [stored.record or new_record(schema) for stored, schema in zip(found, schemas, strict=True)]
            kept_leases = engine.settle(claim, records, now, changes)
            return changed_of(plan, found, records)

        send = partial(self._send, claim)
        schemas = claim.shape.schemas
        yield from self._records.change(plan.short_keys(), schemas, change, counters=plan.counters, send=send)
        return kept_leases

    def _send(self, claim: Claim, call: ScriptCall) -> Steps[bytes]:
        """Send a call that settles a claim."""
        try:
            reply: bytes = yield call
            claim.settled = reply[0] in _SETTLED
        except BaseException:
            if call.slot is not None:
                self._keep(claim, Unfinished(call))
            raise
        call.finish(self._slots)
        return reply

    def _peek(self, claim: Claim) -> Steps[None]:
        yield from self._records.peek(claim)
        self._clock.learn(claim.decided_at)

    def _define(self, acquire: AcquireCall) -> Steps[None]:
        """Store the definitions of schemas, by which records are read after the limits have changed."""
        now = monotonic()
        for codec in [codec for plan in acquire.plans for codec in plan.shape.codecs]:
            if not lasts(self._defined.get(codec.name, -inf), _SECONDS_BETWEEN_DEFINITIONS, now):
                key = self._names.definitions(codec.name)
                try:
                    yield Command("SET", key, codec.definitions, "PX", _DEFINITIONS_KEPT_MS)
                except StoreFull:  # where a scope has this schema, another process has stored them
                    return
                if len(self._defined) >= _MOST_DEFINED:
                    self._defined.clear()
                self._defined[codec.name] = now
        acquire.is_defined = True

    def _read(
        self, claims: Sequence[Claim], acquire: AcquireCall, reply: bytes, forgotten: int = -1
    ) -> tuple[Claim | None, bool]:
        """Fill in the decisions of a reply; return the claim that was admitted, and whether it has a new scope.

        `forgotten` is that of the rejections before the call, so that its rejections may be remembered.
        """
        at, size = 0, len(reply)
        while at < size:
            status, turn, now = _DECISION.unpack_from(reply, at)
            claim, plan, is_rejected = claims[int(turn)], acquire.plans[int(turn)], status == _REJECTED
            claim.decided_at, claim.admitted = int(now), not is_rejected
            at += _DECISION.size
            claim.states, at = read_states(reply, at, plan.shape.codecs, claim.shape.limits, is_rejected=is_rejected)
            if claim.admitted:
                return claim, status == _NEW_SCOPE
            self._clock.learn(claim.decided_at)
            if self._clock.now is None and claim.version is None:
                self._rejections.learn(claim, forgotten)
        return None, False

    def _prepared(self, plan: Plan) -> PreparedPlan:
        prepared = plan.store_cache
        if not isinstance(prepared, PreparedPlan) or prepared.names is not self._names:
            shape = plan.shape.store_cache
            if not isinstance(shape, PreparedShape) or shape.calls is not self._calls:
                shape = plan.shape.store_cache = PreparedShape(plan.shape, self._calls, self._codecs)
            prepared = plan.store_cache = PreparedPlan(plan, shape)
        return prepared

    def _choice(self, claims: Sequence[Claim], **how: bool) -> AcquireCall | None:
        """Return what chooses among claims; None where two have different limits in one scope."""
        plans = [self._prepared(claim.plan) for claim in claims]
        key = (*plans, *how.values())
        if key not in self._choices:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            self._choices[key] = AcquireCall(plans, self._calls, **how) if can_be_one_step(plans) else None
        return self._choices[key]

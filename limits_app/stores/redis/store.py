"""The Redis store's verbs: each is one script, run by the server in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from struct import Struct
from time import monotonic, monotonic_ns, time_ns
from typing import Any, ClassVar, Final

from limits_app.core.claim import Claim
from limits_app.core.clock import Clock, as_clock
from limits_app.core.errors import NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.core.keys import short_key
from limits_app.core.layout import LEASE_US
from limits_app.core.plan import Amounts, Charges, Plan
from limits_app.core.renewal import Renewer
from limits_app.stores.redis.codec import Codecs
from limits_app.stores.redis.commands import Plain, Slot
from limits_app.stores.redis.links import Links, Unanswered
from limits_app.stores.redis.loading import Calls, Loader
from limits_app.stores.redis.moments import Moments
from limits_app.stores.redis.names import TAGS, Names
from limits_app.stores.redis.opened import open_store
from limits_app.stores.redis.phrases import Phrases
from limits_app.stores.redis.plans import PreparedPlan, Records
from limits_app.stores.redis.refusals import Refusals
from limits_app.stores.redis.source import Source
from limits_app.stores.redis.tasks import TaskLinks
from limits_app.stores.redis.watching import EVERYBODY, Watching

__all__ = ["CHANGED", "NEVER_LEARNED", "RedisStore", "moment_of"]

_PATIENCE_US: Final = 1_000_000
_LEAST_IDLE_US: Final = 60_000_000
_MOST_PLANS: Final = 16_384
_SECONDS_BETWEEN_DEFINITIONS: Final = 60.0
_DEFINITIONS_LIVE_MS: Final = b"31622400000"
_STALE: Final = ord("S")
CHANGED: Final = ord("C")
NEVER_LEARNED: Final = -1
"""Instead of how often refusals were forgotten: this one is not to be remembered."""

_REFUSED: Final = ord("R")
_NEWCOMERS: Final = ord("N")
_ADMITTED: Final = b"AN"
_MOST_UNSETTLED: Final = 100_000
_MOMENT: Final = Struct("<xd")
_NUMBER: Final = Struct("<q")


class RedisStore:
    """Keeps state on a Redis or Valkey server, for all machines that reach it.

    Give it the `alias` of a django-redis cache, a `url`, or a `client` of redis-py.
    All keys start with `prefix`. `clock` returns microseconds and takes the place of the server's clock, for tests.
    Open it through `open_redis_store`: one store per process and server is enough.
    A verb raises StoreUnavailable when the server cannot be reached within `connect_seconds`, or does not answer
    within `reply_seconds`; a reply that was lost is asked for once more, and nothing is charged twice.
    """

    remote = True
    patience_us: int | None = _PATIENCE_US

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
        prefix: str = DEFAULTS["prefix"],
        clock: Callable[[], int] | None = None,
        lease_seconds: float = DEFAULTS["lease_seconds"],
        connect_seconds: float = DEFAULTS["connect_seconds"],
        reply_seconds: float = DEFAULTS["reply_seconds"],
        idle_factor: float = DEFAULTS["idle_factor"],
    ) -> None:
        self._source = Source(alias, url, client)
        self._options: dict[str, Any] = {
            "prefix": prefix,
            "lease_seconds": lease_seconds,
            "connect_seconds": connect_seconds,
            "reply_seconds": reply_seconds,
            "idle_factor": idle_factor,
        }
        self.prefix = prefix
        self._now = clock
        self._offset_us: int | None = None
        self.clock = Clock(self._server_us) if clock is None else as_clock(clock)
        self.lease_us = round(lease_seconds * 1_000_000)
        self._names, self._links = self._open_links(connect_seconds, reply_seconds)
        self._codecs = Codecs()
        self._moments = Moments(clock, idle_factor, _LEAST_IDLE_US)
        self._loader = Loader(self._names, self._codecs, self._moments)
        self._plans: dict[Plan, PreparedPlan] = {}
        self._defined: dict[bytes, float] = {}
        self._phrases = Phrases(self._names, self._moments)
        self._tasks = TaskLinks(self._links)
        self._refusals = Refusals()
        self._unsettled: dict[tuple[Claim, PreparedPlan], Slot] = {}
        self._watching = Watching(self._links, self._names, self._moments, self._refusals.forget)
        self.line = self._watching.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)

    def _open_links(self, connect_seconds: float, reply_seconds: float) -> tuple[Names, Any]:
        names, pool = Names(self._options["prefix"]), self._source.pool()
        return names, Links(pool, names.reply, connect_seconds=connect_seconds, reply_seconds=reply_seconds)

    def __reduce__(self) -> tuple[object, ...]:
        if self._now is not None:
            raise NotShareable("a store with a clock of its own cannot be sent to another process: leave clock= out")
        return open_store, (type(self), *self._source.address(), self._options)

    def __repr__(self) -> str:
        return f"RedisStore({self._source})"

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        plan, refusals = claim.plan, self._refusals
        if plan.version is None and refusals.refuses(claim):
            return False
        prepared = self._plans.get(plan) or self._prepare(plan)
        forgotten = refusals.forgotten
        call = self._phrases.asking(claim, prepared)
        reply = self._links.run(call)
        while reply[0] == CHANGED:
            self._drive(self._loader.carry(plan.parts, plan.version))
            reply = self._links.run(call)
        admitted, newcomers = self._decided(claim, prepared, reply, forgotten)
        if newcomers:
            self._define(prepared)
        return admitted

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`; what was never answered may be settled again, and is settled once."""
        if not claim.settled:
            prepared = self._plans.get(claim.plan) or self._prepare(claim.plan)
            self._settle_in(claim, claim.plan.beside(changes), prepared)
            self._settled(claim)

    def _settle_in(self, claim: Claim, changes: Charges, prepared: PreparedPlan) -> None:
        earlier = self._unsettled.pop((claim, prepared), None) if self._unsettled else None
        try:
            reply = self._links.run(self._phrases.changing(claim, changes, prepared), earlier)
        except Unanswered as error:
            if len(self._unsettled) < _MOST_UNSETTLED:
                self._unsettled[claim, prepared] = error.slot
            raise
        except StoreUnavailable:
            if earlier is not None:
                self._unsettled[claim, prepared] = earlier
            raise
        if reply[0] == CHANGED:
            self._drive(self._loader.settle(changes, self._phrases.member(claim) if claim.plan.permits else b""))
        elif reply[0] == _NEWCOMERS:
            self._define(prepared)

    async def aacquire(self, claim: Claim) -> bool:
        """`acquire` for asyncio; a task that is cancelled meanwhile is charged nothing."""
        plan, refusals = claim.plan, self._refusals
        if plan.version is None and refusals.refuses(claim):
            return False
        prepared = self._plans.get(plan)
        if prepared is None:
            prepared = await asyncio.to_thread(self._prepare, plan)
        forgotten = refusals.forgotten
        reply = await self._tasks.run(self._phrases.asking(claim, prepared), partial(self._abandoned, claim, prepared))
        if reply[0] == CHANGED:
            return await asyncio.to_thread(self.acquire, claim)
        admitted, newcomers = self._decided(claim, prepared, reply, forgotten)
        if newcomers:
            await asyncio.to_thread(self._define, prepared)
        return admitted

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio; it is done even when the task is cancelled."""
        if not claim.settled:
            prepared = self._plans.get(claim.plan)
            if prepared is None or (claim, prepared) in self._unsettled:
                await asyncio.to_thread(self.settle, claim, changes)
                return
            try:
                reply = await self._tasks.run(
                    self._phrases.changing(claim, claim.plan.beside(changes), prepared), _ignore
                )
            except Unanswered as error:
                self._unsettled[claim, prepared] = error.slot
                raise
            if reply[0] == CHANGED:
                await asyncio.to_thread(self.settle, claim, changes)
            elif reply[0] == _NEWCOMERS:
                await asyncio.to_thread(self._define, prepared)
            self._settled(claim)

    async def apeek(self, claim: Claim) -> None:
        """`peek` for asyncio."""
        await asyncio.to_thread(self.peek, claim)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        return self._renew_leases(claims, None) if claims else []

    def _renew_leases(self, claims: Sequence[Claim], tag: bytes | None) -> list[Claim]:
        """Renew the leases of claims, or those of them that are beside the scopes with a tag."""
        call, owners = self._phrases.renewing(claims, tag)
        reply = self._links.run(call)
        lost = {id(owner) for owner, still in zip(owners, reply, strict=True) if still != ord("1")}
        return [claim for claim in claims if id(claim) in lost]

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        claim.decided_at, states = self._drive(self._loader.look(claim.plan.parts, claim.plan.version))
        claim.records = states
        self._heard(claim.decided_at)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        shorts = [short_key(scope) for scope in scopes]
        self._drive(self._loader.reset(shorts, keys))
        for short in shorts:
            self._links.run(Plain(b"PUBLISH", self._names.channel, self._names.scope(short)))
        self._refusals.forget()
        self.line.notify(scopes)

    def version(self) -> int:
        """See `Store.version`."""
        return int(self._links.run(Plain(b"GET", self._names.version_at(TAGS[0]))) or 0)

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        version = int(self._links.run(Plain(b"INCR", self._names.version_at(TAGS[0]))))
        self._changed()
        return version

    def _changed(self) -> None:
        """Tell everybody that anything may have changed."""
        self._refusals.forget()
        self.line.notify_all()
        self._links.run(Plain(b"PUBLISH", self._names.channel, EVERYBODY))

    def close(self) -> None:
        """Close the connections that are idle; what is used again opens new ones."""
        self._watching.close()
        self._tasks.close()
        self._links.close()

    def _decided(self, claim: Claim, prepared: PreparedPlan, reply: bytes, forgotten: int) -> tuple[bool, bool]:
        """Fill in what was decided; returns whether it was admitted, and whether there were newcomers."""
        status = reply[0]
        if status == _STALE:
            raise StaleConfiguration
        refused = status == _REFUSED
        claim.decided_at = moment_of(reply)
        claim.records = Records(prepared, reply, refused=refused)
        claim.admitted = not refused
        if refused and self._now is None:
            self._heard(claim.decided_at)
            if claim.plan.version is None:
                self._refusals.learn(claim, forgotten)
        return not refused, status == _NEWCOMERS

    def _settled(self, claim: Claim) -> None:
        claim.settled = True
        self._refusals.forget()
        if self.line.busy:
            self.line.notify(claim.plan.scopes)

    def _abandoned(self, claim: Claim, prepared: PreparedPlan, reply: Any) -> None:
        """Give back what was admitted when nobody waited for it any more."""
        if isinstance(reply, bytes) and reply[0] in _ADMITTED:
            self._decided(claim, prepared, reply, NEVER_LEARNED)
            self.settle(claim, [-amount for amount in claim.amounts])

    def _drive(self, calls: Calls) -> Any:
        """Run calls one after the other, each told the reply to the one before."""
        try:
            call = next(calls)
            while True:
                call = calls.send(self._links.run(call))
        except StopIteration as ended:
            return ended.value

    def _prepare(self, plan: Plan) -> PreparedPlan:
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        prepared = self._plans[plan] = PreparedPlan(plan, self._names, self._codecs)
        self._define(prepared)
        return prepared

    def _define(self, prepared: PreparedPlan) -> None:
        """Write the definitions of layouts where their records may be new, for those who come after a change."""
        now = monotonic()
        for codec in prepared.codecs:
            if now - self._defined.get(codec.name, -_SECONDS_BETWEEN_DEFINITIONS) >= _SECONDS_BETWEEN_DEFINITIONS:
                name = self._names.definitions(codec.name)
                self._links.run(Plain(b"SET", name, codec.definitions, b"PX", _DEFINITIONS_LIVE_MS))
                self._defined[codec.name] = now

    def _heard(self, now: int) -> None:
        """The server has just told the time."""
        if self._now is None:
            self._offset_us = now - monotonic_ns() // 1000

    def _server_us(self) -> int:
        """The server's time, as far as it is known here: by what it told last, or else by the system's clock."""
        if self._offset_us is None:
            return time_ns() // 1000
        return monotonic_ns() // 1000 + self._offset_us


def moment_of(reply: bytes) -> int:
    """When a reply says that it was decided."""
    return int(_MOMENT.unpack_from(reply)[0])


def _ignore(reply: object) -> None:
    """What is settled stays settled."""

"""The verbs of the Redis store for threads: each is one script, run by the server in one step."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.clock import Clock, as_clock
from limits_app.core.counting import Batch
from limits_app.core.errors import StoreUnavailable
from limits_app.core.keys import short_key
from limits_app.core.layout import LEASE_US, lease_us_of
from limits_app.core.parts import Amounts, Part
from limits_app.core.renewal import Renewer
from limits_app.core.version import least_version
from limits_app.stores.codecs import Codecs
from limits_app.stores.idleness import GRACE_US
from limits_app.stores.once import Settling
from limits_app.stores.redis.choosing import Choice, ask_one_after_the_other
from limits_app.stores.redis.codec import Codec
from limits_app.stores.redis.commands import Plain, Prepared, Slot
from limits_app.stores.redis.counting import Collecting
from limits_app.stores.redis.deciding import (
    ADMITTED,
    CHANGED,
    DONE,
    FOUND,
    LAPSED,
    NEVER_LEARNED,
    NEWCOMERS,
    NOT_YET,
    REFUSED,
    Decisions,
)
from limits_app.stores.redis.links import Links, Unanswered, unheard_in
from limits_app.stores.redis.loading import Calls, Loader
from limits_app.stores.redis.moments import Moments, moment_of
from limits_app.stores.redis.names import TAGS, Names
from limits_app.stores.redis.phrases import Phrases
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.preparing import Preparations
from limits_app.stores.redis.refusals import Refusals
from limits_app.stores.redis.remembered import Remembered
from limits_app.stores.redis.scripts import script
from limits_app.stores.redis.source import Source
from limits_app.stores.redis.tasks import TaskLinks
from limits_app.stores.redis.watching import EVERYBODY, Watching

__all__ = ["Heard", "Verbs"]

C = TypeVar("C", bound=Claim)

_POLL_US: Final = (1_000_000, 1_000_000)
_MOST_UNSETTLED: Final = 10_000

Heard = Callable[[bytes], Claim | None]
"""Fills in what a reply says to an acquire; gives what it admitted."""


class Verbs:
    """The verbs of a Redis store for threads, and what they stand on."""

    remote = True
    counting = True
    poll_us: tuple[int, int] | None = _POLL_US
    settle_later: Callable[[Claim, Amounts], object] | None
    """See `RemoteStore.settle_later`."""

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
        self._moments = Moments(clock, idle_factor, GRACE_US)
        self.clock = Clock(self._moments.estimate) if clock is None else as_clock(clock)
        self.lease_us = lease_us_of(lease_seconds)
        self._names, self._links = self._open_links(connect_seconds, reply_seconds)
        self._codecs = Codecs(Codec)
        self._loader = Loader(self._names, self._codecs, self._moments)
        self._prepared = Preparations(self._links, self._names, self._codecs)
        self._phrases = Phrases(self._names, self._moments)
        self._collecting = Collecting(self._links, self._names, self._moments)
        self._tasks = TaskLinks(self._links)
        self._refusals = Refusals()
        self._decisions = Decisions(self._moments, self._refusals)
        self._unsettled = Remembered[tuple[Claim, PreparedPlan], Slot](_MOST_UNSETTLED)
        self._settling = Settling()
        self._unanswered = Remembered[Claim, tuple[Slot, Heard]](_MOST_UNSETTLED)
        self._watching = Watching(self._links, self._names, self._moments, self._refusals.forget)
        self.line = self._watching.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)

    def _open_links(self, connect_seconds: float, reply_seconds: float) -> tuple[Names, Any]:
        names, pool = Names(self._options["prefix"]), self._source.pool()
        return names, Links(pool, names.reply, connect_seconds=connect_seconds, reply_seconds=reply_seconds)

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        plan, refusals = claim.plan, self._refusals
        if plan.version is None and refusals.refuses(claim):
            return False
        prepared = self._prepared.known(plan) or self._prepared.plan(plan)
        forgotten = refusals.forgotten
        # As `asking` says, which is a call more.
        call = (prepared.usual if claim.amounts is prepared.fixed else None) or self._phrases.asking(claim, prepared)
        try:
            reply: bytes = self._links.run(call)
        except BaseException as error:
            self._give_back_later([claim], partial(self._admitted, claim, prepared), unheard_in(call, error))
            raise
        read = prepared.read_one
        if read is not None and reply[0] == DONE:  # as `fill` does with most, which is a call more
            claim.decided_at, claim.records = read(reply)
            claim.admitted = True
            return True
        if reply[0] in NOT_YET:
            self._put_right(reply, plan.parts, plan.version)
            return self.acquire(claim)
        status = self._decisions.fill(claim, prepared, reply, forgotten)
        if status == NEWCOMERS:
            self._prepared.define_anew(prepared.codecs)
        return status != REFUSED

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`; claims with different limits in one scope are asked in several steps."""
        claims = self._decisions.worth_asking(claims, emptiest_first=emptiest_first, failover=failover)
        if len(claims) < 2:
            return next(filter(self.acquire, claims), None)
        choice = self._prepared.choice(claims, emptiest_first=emptiest_first, failover=failover)
        if choice is None:
            return ask_one_after_the_other(self, claims, emptiest_first=emptiest_first, failover=failover)
        forgotten = self._refusals.forgotten
        call = self._phrases.choosing(claims, choice)
        try:
            reply: bytes = self._links.run(call)
        except BaseException as error:
            self._give_back_later(claims, partial(self._chosen, claims, choice), unheard_in(call, error))
            raise
        if reply[0] in NOT_YET:
            for claim in claims:
                self._put_right(reply, claim.plan.parts, claim.plan.version)
            return self.acquire_first(claims, emptiest_first=emptiest_first, failover=failover)
        chosen, newcomer = self._decisions.fill_first(claims, choice, reply, forgotten)
        if newcomer is not None:
            self._prepared.define_anew(newcomer.codecs)
        return chosen

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`; what was never answered may be settled again, and is settled once."""
        if self._settling.begin(claim):
            try:
                self._settle_now(claim, changes)
            finally:
                self._settling.end(claim)

    def _settle_now(self, claim: Claim, changes: Amounts) -> None:
        if claim.admitted or self._may_hold(claim):
            prepared = self._prepared.plan(claim.plan)
            self._settled(claim, lapsed=self._settle_in(claim, changes, prepared))

    def _settle_in(self, claim: Claim, changes: Amounts, prepared: PreparedPlan) -> bool:
        """Settle in the scopes of a plan; says whether permits were not lent any more."""
        earlier = self._unsettled.take((claim, prepared)) if self._unsettled else None
        try:
            reply = self._links.run(self._phrases.changing(claim, changes, prepared), earlier)
        except Unanswered as error:
            self._unsettled.keep((claim, prepared), error.slot)
            raise
        except StoreUnavailable:
            if earlier is not None:
                self._unsettled.keep((claim, prepared), earlier)
            raise
        if reply[0] == CHANGED:
            member = self._phrases.member(claim) if claim.plan.permits else b""
            settling = self._loader.settle(prepared.beside(claim.plan, changes), claim.decided_at, member)
            return bool(self._drive(settling))
        if reply[0] in NOT_YET:
            self._moments.heard(moment_of(reply))
            return self._settle_in(claim, changes, prepared)
        return self._heard_settled(prepared, reply)

    def _heard_settled(self, prepared: PreparedPlan, reply: bytes) -> bool:
        if reply[0] != DONE:
            self._prepared.define_anew(prepared.codecs)
        return reply[0] == LAPSED

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
        self._moments.heard(claim.decided_at)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        shorts = [short_key(scope) for scope in scopes]
        self._drive(self._loader.reset(shorts, keys))
        for short in shorts:
            self._links.run(Plain(b"PUBLISH", self._names.channel, self._names.scope(short)))
        self._refusals.forget()
        self.line.notify(scopes)

    def collect_counts(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        return self._collecting.collect()

    def forget_counts(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        self._collecting.forget(name)

    def version(self) -> int:
        """See `Store.version`."""
        return int(self._links.run(Plain(b"GET", self._names.version_at(TAGS[0]))) or 0)

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        version = self._next_version()
        self._changed()
        return version

    def _next_version(self) -> int:
        prepared = Prepared(
            script("next_version"), [self._names.version_at(TAGS[0])], b"", numbers=1, tag=self._names.tag(b"\0")
        )
        return int(self._links.run(prepared.call((*self._moments.header(), least_version()))))

    def _changed(self) -> None:
        """Tell everybody that anything may have changed."""
        self._refusals.forget()
        self.line.notify_all()
        self._links.run(Plain(b"PUBLISH", self._names.channel, EVERYBODY))

    def eviction_policy(self) -> str | None:
        """What the server forgets when its memory is full, or `noeviction`; None where it does not say."""
        said = re.search(rb"maxmemory_policy:(\S+)", self._links.run(Plain(b"INFO", b"memory")))
        return None if said is None else said[1].decode()

    def close(self) -> None:
        """Close the connections that are idle; what is used again opens new ones."""
        self._watching.close()
        self._tasks.close()
        self._links.close()

    def _put_right(self, reply: bytes, parts: Sequence[Part], version: int | None) -> None:
        """Do what the server needs before it can answer: follow changed limits, or learn its time."""
        if reply[0] == CHANGED:
            self._drive(self._loader.carry(parts, version))
        else:
            self._moments.heard(moment_of(reply))

    def _admitted(self, claim: Claim, prepared: PreparedPlan, reply: bytes) -> Claim | None:
        """A claim, if a reply that nobody waited for says that it was admitted."""
        if reply[0] not in ADMITTED:
            return None
        self._decisions.fill(claim, prepared, reply, NEVER_LEARNED)
        return claim

    def _chosen(self, claims: Sequence[Claim], choice: Choice, reply: bytes) -> Claim | None:
        """The same where one was to be chosen."""
        return self._decisions.fill_first(claims, choice, reply, NEVER_LEARNED)[0] if reply[0] == FOUND else None

    def _give_back_later(self, claims: Sequence[Claim], hear: Heard, slot: Slot | None) -> None:
        """Have given back what a server that has not answered may have admitted, or may admit yet: it has the slot."""
        if slot is not None and self.settle_later is not None:
            for claim in claims:
                self._unanswered.keep(claim, (slot, hear))
                self.settle_later(claim, [-amount for amount in claim.amounts])

    def _may_hold(self, claim: Claim) -> bool:
        """Whether there is something to settle of a claim of which nobody has heard that it was admitted."""
        unanswered = self._unanswered.take(claim)
        if unanswered is None:
            return True
        slot, hear = unanswered
        try:
            reply = slot.reply_in(self._links.run(slot.looking()))
        except StoreUnavailable:
            self._unanswered.keep(claim, unanswered)
            raise
        if reply is not None:
            hear(reply)
        return claim.admitted is True

    def _settled(self, claim: Claim, *, lapsed: bool = False) -> None:
        claim.settled = True
        self._refusals.forget()
        if self.line.busy:
            self.line.notify(claim.plan.scopes)
        if lapsed:
            claim.lapse()

    def _drive(self, calls: Calls) -> Any:
        """Run calls one after the other, each told the reply to the one before."""
        try:
            call = next(calls)
            while True:
                call = calls.send(self._links.run(call))
        except StopIteration as ended:
            return ended.value

"""Phrases: what a store says to acquire, to settle and to renew, and by which names it holds permits. No I/O here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from limits_app.core.claim import Claim
from limits_app.core.forking import on_fork
from limits_app.core.parts import FOREVER, Amounts, Ask
from limits_app.stores.redis.choosing import Choice
from limits_app.stores.redis.codec import PAIR
from limits_app.stores.redis.commands import Prepared, ScriptCall, bulk
from limits_app.stores.redis.moments import Moments
from limits_app.stores.redis.names import Names, tag_of
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.scripts import script

__all__ = ["Phrases"]

_NUMBER: Final = Struct("<q")
_NOBODY: Final = bytes(16)


class Phrases:
    """Builds the calls of one process."""

    def __init__(self, names: Names, moments: Moments) -> None:
        self._names = names
        self._moments = moments
        self._channel = bulk(names.channel)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child holds nothing of what its parent holds, and numbers its claims alike."""
        self._identity = os.urandom(8)

    def asking(self, claim: Claim, prepared: PreparedPlan, now: int | None = None) -> ScriptCall:
        """The call that acquires; `now` where another server has told the time already."""
        moments = self._moments
        if claim.amounts is prepared.fixed and now is None and moments.now is None:
            return prepared.usual or prepared.usually(moments.usual)
        amounts = claim.amounts if prepared.whole else [claim.amounts[place] for place in prepared.places]
        if prepared.calendars is not None:
            amounts = [*amounts, *prepared.calendars.numbers(moments.estimate() if now is None else now)]
        member = b"$16\r\n%s\r\n" % self.member(claim) if prepared.permits else b""
        return prepared.acquire.call((*moments.header(0, now), *amounts), member)

    def choosing(self, claims: Sequence[Claim], choice: Choice) -> ScriptCall:
        """The call that charges the first that fits."""
        numbers = choice.numbers(claims, self._moments.estimate() if choice.quotas else 0)
        members = b""
        if choice.permits:
            members = b"".join([self.member(claim) if claim.plan.permits else _NOBODY for claim in claims])
        return choice.call.call((*self._moments.header(), *numbers), bulk(members))

    def changing(
        self, claim: Claim, changes: Amounts, prepared: PreparedPlan, verb: Prepared | None = None
    ) -> ScriptCall:
        """The call that settles, or that undoes."""
        amounts = [changes[place] for place in prepared.places]
        if prepared.calendars is not None:
            amounts += prepared.calendars.numbers(self._moments.estimate())
        extra = b"$16\r\n%s\r\n%s" % (self.member(claim), self._channel) if prepared.permits else self._channel
        return (verb or prepared.settle).call((*self._moments.header(claim.decided_at), *amounts), extra)

    def renewing(self, claims: Sequence[Claim], tag: bytes | None) -> tuple[ScriptCall, list[Claim]]:
        """The call that renews the leases of claims, of all or of those beside a tag; and whose they are."""
        keys, plan, members, owners = [], [], [], []
        for claim in claims:
            for ask, ends, member in self.leases(claim):
                if tag is None or tag_of(ask.part.short_key) == tag:
                    keys += [self._names.leases(ask.part.short_key, ask.key), self._names.scope(ask.part.short_key)]
                    plan.append(PAIR.pack(ask.rule.lease_us, ends))
                    members.append(member)
                    owners.append(claim)
        prepared = Prepared(script("renew"), keys, b"".join(plan), extra=len(members), tag=tag)
        return prepared.call(self._moments.header(), b"".join(map(bulk, members))), owners

    def leases(self, claim: Claim) -> Iterator[tuple[Ask, int, bytes]]:
        """The leases of an admitted claim: the limit, the last moment of the lease, and its member."""
        for place, ask in claim.plan.leases:
            hold_us = ask.rule.hold_us
            ends = FOREVER if hold_us is None else claim.decided_at + hold_us
            yield ask, ends, self.member(claim) + PAIR.pack(claim.amounts[place], ends)

    def member(self, claim: Claim) -> bytes:
        """Who holds what a claim holds, in 16 bytes."""
        return self._identity + _NUMBER.pack(claim.number)

"""What a step makes of the records that it has found; nothing is changed in place."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from limits_app.core.claim import Claim
from limits_app.core.errors import StaleConfiguration
from limits_app.core.parts import Amounts, Ask, Part
from limits_app.core.plan import Plan
from limits_app.stores.database import lending
from limits_app.stores.database.counted import begun, settled_in
from limits_app.stores.database.records import Record
from limits_app.stores.settling import settle_under

__all__ = ["admitted", "charged", "check", "forgotten", "refused", "renewed", "seen", "settled", "without_lost"]


def check(plan: Plan, version: int) -> None:
    """StaleConfiguration for a plan that was compiled from another version."""
    if plan.version is not None and plan.version != version:
        raise StaleConfiguration


def seen(claim: Claim, records: Sequence[Record], now: int) -> None:
    """Fill in the states of a moment."""
    claim.decided_at, claim.records = now, [record.states for record in records]


def admitted(claim: Claim, records: Sequence[Record], now: int) -> None:
    """Note that a claim was charged, with which these are the records."""
    seen(claim, records, now)
    claim.admitted = True


def refused(claim: Claim, records: Sequence[Record], now: int) -> None:
    """Note that a claim was refused by these records."""
    seen(claim, records, now)
    claim.admitted = False


def charged(claim: Claim, process: int, found: Sequence[Record], now: int) -> list[Record] | None:
    """The records with all amounts of a claim, by the parts of its plan; None when a limit refuses."""
    parts, at = claim.plan.parts, 0
    after = [_counting(record, part, now) for record, part in zip(found, parts, strict=True)]
    for ask, amount in claim.charges:
        if ask.part is not parts[at]:
            at += 1
        _, states, _, _, _, _, counts, _, _ = after[at]
        state = ask.rule.take(states[ask.index], now, amount)
        if state is None:
            return None
        states[ask.index] = state
        if counts:
            counts[ask.index] += amount
    for place, ask in claim.plan.leases:
        at = parts.index(ask.part)
        name, amount = _name(ask, claim, process), claim.amounts[place]
        after[at] = _lending(after[at], lending.lend(after[at].leases, name, ask.rule, amount=amount, now=now))
    return after


def settled(  # noqa: PLR0917 - the last two are given later
    claim: Claim, process: int, changes: Amounts, found: Sequence[Record], now: int
) -> list[Record] | None:
    """The records with the changes of a claim, by the parts among them; they may be those of other layouts.

    None when a permit is given back of which the lease has run out, since others may have it.
    """
    after = {record.scope: record.copy() for record in found}
    for ask, change in claim.plan.beside(changes):
        record = after[ask.part.short_key]
        if ask.lease_key is not None:
            leases = lending.take_back(record.leases, _name(ask, claim, process))
            if leases is None:
                return None
            after[record.scope] = record = _lending(record, leases)
        if record.codec.layout is ask.part.layout:
            record.states[ask.index] = ask.rule.settled(
                record.states[ask.index], now, change, claim.decided_at, is_credit=ask.part.is_credit
            )
        else:
            settle_under(
                record.codec.layout,
                record.states,
                ask.part,
                ask.rule.key,
                change=change,
                now=now,
                taken_at=claim.decided_at,
            )
    for part in claim.plan.parts:
        if part.counts:
            after[part.short_key] = settled_in(after[part.short_key], part, changes, claim.decided_at)
    return list(after.values())


def without_lost(claim: Claim, process: int, changes: Amounts, found: Sequence[Record]) -> Amounts:
    """The changes of a claim but for those permits of which the leases have run out."""
    leases, kept = {record.scope: record.leases for record in found}, list(changes)
    for place, ask in claim.plan.leases:
        if lending.take_back(leases[ask.part.short_key], _name(ask, claim, process)) is None:
            kept[place] = 0
    return kept


def renewed(claim: Claim, process: int, found: dict[bytes, Record], now: int) -> bool:
    """Lend the permits of a claim again, in `found`; False when one of them is lost."""
    for _, ask in claim.plan.leases:
        record = found.get(ask.part.short_key)
        if record is None:
            return False
        leases = lending.renew(record.leases, _name(ask, claim, process), ask.rule, now)
        if leases is None:
            return False
        found[record.scope] = record._replace(leases=leases)
    return True


def forgotten(record: Record, keys: Collection[str] | None) -> Record:
    """The record without what was used of some limits, or of all."""
    return record._replace(states=record.codec.layout.forgotten(record.states, keys))


def _counting(record: Record, part: Part, now: int) -> Record:
    """A record that may be changed, and counts where its part does."""
    return begun(record, part, now) if part.counts else record.copy()


def _lending(record: Record, leases: bytes) -> Record:
    scope, states, codec, _, stamp, trail, counts, mark, tallied = record
    return Record(scope, states, codec, leases, stamp, trail, counts, mark, tallied)


def _name(ask: Ask, claim: Claim, process: int) -> bytes:
    return (ask.lease_key or b"")[-lending.TAG_LENGTH :] + lending.lease_id(process, claim.number)

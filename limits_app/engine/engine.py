"""The engine: decides on requests over records. No input or output, no clock, no Django.

A store locks and loads the records of a plan's scopes, calls one of these functions, and saves the records whose
`changed` is set. `acquire.lua`, `settle.lua` and `renew.lua` are the only other implementation of these rules.

Records come in the order of the scopes of a plan, amounts and changes in that of its limits. Times are microseconds.
Amounts are parts of the limits' units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from limits_app.engine.algorithms import State
from limits_app.engine.algorithms.permits import may_have_expired
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.claims import Claim
from limits_app.engine.counting import hour_ends, hour_of
from limits_app.engine.errors import LeaseEnded
from limits_app.engine.holders import first_holder, is_extension_holder, is_token_holder, leased_us
from limits_app.engine.periods import HOUR_US
from limits_app.engine.plan import PlannedLimit
from limits_app.engine.record import FinishedUsage, Holder, IsGone, Lease, Record

_FULL_USAGE_PARTS: Final = 2**61
"""More counted usage than this is finished early, so that it always fits into 64 bits."""

RESET_KEPT_US: Final = 24 * HOUR_US
"""How long an unused record is kept after a reset. Later, requests from before it may be refunded again."""


def charge(claim: Claim, records: list[Record], now: int, is_gone: IsGone | None = None) -> bool:
    """Charge all amounts of a claim or none, and fill in the decision; return whether the claim was admitted.

    Everything is decided before anything is written. An exception of a signal handler leaves each limit charged and
    counted, or neither, and the claim without a decision.

    When it is admitted, its permits are leased to `claim.holder` and its amounts are counted as usage. An amount of 0
    is admitted unless the limit is in debt, and charges nothing. Before a request for permits is rejected, expired
    leases are reclaimed, and with `is_gone` those of ended processes. States that were written before the clock was set
    back are changed as `Rule.current` describes. A rejection changes nothing else.
    Raises LeaseEnded for an extension of a token whose lease is not there any more.
    """
    shape, amounts, holder = claim.shape, claim.amounts, claim.holder
    charged_states: list[State] = []
    for limit in shape.limits:
        rule, state, amount = limit.rule, records[limit.scope_index].states[limit.index], amounts[limit.position]
        charged = rule.take(state, now, amount)
        if charged is None and not rule.is_soft:
            return _reject(claim, records, now, is_gone)
        charged_states.append(charged or rule.settle(state, now, amount))
    if shape.token_lease is not None:
        _check_extended(claim, shape.token_lease, records, now)
        _note_leases(claim, charged_states, now)
    for limit in shape.limits:
        record, index, position = records[limit.scope_index], limit.index, limit.position
        counted = record.amounts
        if counted is not None and not (
            0 < record.counted_until - now <= HOUR_US and counted[index] + amounts[position] <= _FULL_USAGE_PARTS
        ):
            counted = _begin_hour(record, now)
        # Without a call in between, where a signal handler could raise: charged amounts are counted.
        record.states[index] = charged_states[position]
        if counted is not None:
            counted[index] += amounts[position]
        if limit.is_permit:
            rule = limit.rule
            lease_us = rule.lease_us if shape.token_lease is None else leased_us(rule, holder)
            record.leases[rule.key, holder] = amounts[position], now + lease_us, now + rule.hold_us
        record.changed = True
    claim.decided_at, claim.states, claim.admitted = now, charged_states, True
    return True


def _note_leases(claim: Claim, charged_states: list[State], now: int) -> None:
    """Note in the states of permits when the leases of a token may run out, which may be shorter than others."""
    for limit in claim.shape.permits:
        permits, holders, fence, earliest = charged_states[limit.position]
        ends_at = now + leased_us(limit.rule, claim.holder)
        charged_states[limit.position] = permits, holders, fence, min(earliest, ends_at)


def settle(claim: Claim, records: list[Record], now: int, changes: Sequence[int]) -> bool:
    """Add `changes` to the charged amounts, and return the permits; False when a lease was reclaimed before.

    A refund never exceeds the charge: `PlanShape.changes` makes no change below minus the charged amount, a claim
    is settled once, and `Rule.settle` reduces the recorded use of a limit to none at most.
    Positive changes are charged even beyond the limit. Negative ones are refunded where the algorithm can, and for a
    plan that is credit with every algorithm; what a reset has forgotten is not refunded. Permits whose lease was
    reclaimed are not returned: other claims may hold them. Records may have other schemas than the plan: nothing is
    settled for a limit that was removed, or that has become a resource limit or ceased to be one.
    A claim that `undoes` is refunded with every algorithm, and its usage is counted as if it had not been charged.
    Of a claim that is `unanswered`, only debt is charged and permits are returned, if they were not before.
    Nothing is changed for a token whose lease is not there any more: the claim `is_over`.
    """
    shape, taken_at, unanswered = claim.shape, claim.decided_at, claim.unanswered
    is_usual, counts_usage = not (shape.is_credit or claim.undoes), shape.counts_usage and not unanswered
    kept_leases = True
    for limit in () if shape.token_lease is not None and _is_over(claim, records, now) else shape.limits:
        change, is_permit = changes[limit.position], limit.is_permit
        if not (change or is_permit):
            continue
        record = records[limit.scope_index]
        settles = (
            record.leases.pop((limit.rule.key, claim.holder), None) is not None
            if is_permit
            else change > 0 or not (unanswered or (record.reset_at and _is_forgotten(record, claim)))
        )
        kept_leases = kept_leases and (settles or unanswered or not is_permit)
        usage = None
        if counts_usage and (claim.undoes or not is_permit):  # permits that are returned were used
            usage = _counted(record, limit, change, taken_at)
        if settles and is_usual and record.schema is limit.schema:
            states, index = record.states, limit.index
            states[index] = limit.rule.settle(states[index], now, change, taken_at)
        elif settles:
            _settle_otherwise(record, limit, change, now=now, claim=claim)
        # Without a call in between, where a signal handler could raise: refunds are not counted.
        if usage is not None:
            counted, record.finished = usage
            if counted and record.amounts is not None:
                record.amounts[limit.index] += counted
        record.changed = True
    return kept_leases


def _is_leased(record: Record, lease: PlannedLimit, holder: Holder, now: int) -> bool:
    """Return whether a permit is leased to a holder."""
    entry = record.leases.get((lease.rule.key, holder))
    return entry is not None and entry[1] > now


def _is_over(claim: Claim, records: Sequence[Record], now: int) -> bool:
    """Note, and return, whether the lease of the token that a claim belongs to is not there any more."""
    lease = claim.shape.token_lease
    claim.is_over = lease is not None and not _is_leased(records[lease.scope_index], lease, claim.holder, now)
    return claim.is_over


def _check_extended(claim: Claim, lease: PlannedLimit, records: Sequence[Record], now: int) -> None:
    """Raise LeaseEnded for an extension of a token whose lease is not there any more."""
    holder = claim.holder
    is_extension = is_token_holder(holder) and is_extension_holder(holder)
    if is_extension and not _is_leased(records[lease.scope_index], lease, first_holder(cast("bytes", holder)), now):
        raise LeaseEnded("the lease of the token has ended, or it was settled before")


def _is_forgotten(record: Record, claim: Claim) -> bool:
    """Return whether a reset has forgotten what a claim has charged; a credit is not of that."""
    return claim.decided_at + claim.shape.recorded_us < record.reset_at and not claim.shape.is_credit


def renew(claim: Claim, records: list[Record], now: int) -> bool:
    """Lease all permits of a claim again; False, and nothing renewed, when one of the leases has run out.

    The longest hold of a permit that began later than now plus this hold starts again, since the clock was set back.
    """
    leases: list[Lease] = []
    for limit in claim.shape.permits:
        lease = records[limit.scope_index].leases.get((limit.rule.key, claim.holder))
        if lease is None or lease[1] <= now:
            return False
        leases.append(lease)
    for limit, (amount, _, held_until) in zip(claim.shape.permits, leases, strict=True):
        record, hold_us = records[limit.scope_index], limit.rule.hold_us
        ends_at = held_until if held_until - now <= 2 * hold_us else now + hold_us
        claim.note_held_since(limit, ends_at - hold_us)
        expires_at = min(now + leased_us(limit.rule, claim.holder), ends_at)
        record.leases[limit.rule.key, claim.holder] = amount, expires_at, ends_at
        record.changed = True
    return True


def peek(claim: Claim, records: list[Record], now: int, is_gone: IsGone | None = None) -> None:
    """Fill in the time and the states of a claim, without expired leases; changes nothing else.

    With `is_gone`, leases of ended processes are left out too.
    """
    claim.decided_at = now
    states: list[State] = []
    for limit in claim.shape.limits:
        record, rule = records[limit.scope_index], limit.rule
        state = rule.current(record.states[limit.index], now)
        recounts = rule.is_permit and state[0] and (is_gone is not None or may_have_expired(state, now))
        states.append(record.held(rule, state, now, is_gone) if recounts else state)
    claim.states = states


def reclaim(record: Record, now: int, is_gone: IsGone | None = None) -> bool:
    """Remove the leases that have run out or whose holder is gone, and count the permits again.

    Returns whether any state has changed.
    """
    schema, reclaimed = record.schema, False
    for index in schema.permits:
        rule, state = schema.rules[index], _current(record, index, now)
        if not state[0] or (is_gone is None and not may_have_expired(state, now)):
            continue
        for lease_id, lease in list(record.leases.items()):
            if lease_id[0] != rule.key:
                continue
            amount, expires_at, ends_at = lease
            if expires_at <= now or (is_gone is not None and is_gone(lease_id[1])):
                del record.leases[lease_id]
            elif expires_at - now > 2 * max(rule.lease_us, leased_us(rule, lease_id[1])):
                # It was written before the clock was set back.
                record.leases[lease_id] = amount, now + leased_us(rule, lease_id[1]), ends_at
        counted = record.held(rule, state, now)
        if counted != state:
            record.states[index] = counted
            record.changed = reclaimed = True
    return reclaimed


def is_restored(record: Record, at: int, now: int) -> bool:
    """Return whether the record equals an unused one at a time, if nothing happens until then.

    It does not while permits are held. What most records are kept for comes first: leases are their own entries in
    some stores.
    """
    for index, rule in enumerate(record.schema.rules):
        state = _current(record, index, now)
        if (rule.is_permit and state[0]) or rule.restored_at(state) > at:
            return False
    if knows_reset_until(record) > at:
        return False
    for rule, state in record.kept.values():
        if rule.restored_at(rule.current(state, now)) > at:
            return False
    # Limits of leases may have been removed, and may be added again.
    return all(expires_at <= at for _, expires_at, _ in record.leases.values())


def knows_reset_until(record: Record) -> int:
    """Return until when a record is kept because it was reset; 0 where it never was."""
    return record.reset_at + RESET_KEPT_US if record.reset_at else 0


def is_nearly_restored(record: Record, now: int, part: int) -> bool:
    """Return whether at most one part in `part` of the time is left until the record equals an unused one.

    The time begins when its use began to return. Without this record a limit recovers that much earlier, also when it
    is forgotten again and again. Never while permits are held or a reset is known, nor before the end of the period of
    a quota.
    """
    if knows_reset_until(record) > now or any(expires_at > now for _, expires_at, _ in record.leases.values()):
        return False
    uses = [*zip(record.schema.rules, record.states, strict=True), *record.kept.values()]
    for rule, state in uses:
        restored = NEVER_US if rule.is_permit and state[0] else rule.restored_at(state)
        if restored > now and (restored - now) * part > (restored - rule.recovers_since(state)):
            return False
    return True


def close_usage(record: Record, until: int = 0) -> None:
    """Move the counted usage to `finished`, and count on until `until` (0: from the next admitted request on)."""
    finished, amounts = record.finished + record.counted(), record.amounts
    if amounts is None:
        until = 0
    else:
        amounts = [0] * len(amounts)
    # Without a call in between, where a signal handler could raise.
    record.finished, record.amounts, record.counted_until, record.label = finished, amounts, until, b""
    record.changed = True


def _reject(claim: Claim, records: list[Record], now: int, is_gone: IsGone | None) -> bool:
    """Reclaim leases that have run out and try again; without any, note the rejection."""
    if claim.shape.token_lease is not None:
        _check_extended(claim, claim.shape.token_lease, records, now)
    if claim.shape.permits:
        reclaimed = [reclaim(record, now, is_gone) for record in records]
        if any(reclaimed):
            return charge(claim, records, now)
    claim.decided_at = now
    claim.states = states = []
    for limit in claim.shape.limits:
        record = records[limit.scope_index]
        state = record.states[limit.index]
        is_current = limit.rule.current(state, now) is state
        states.append(state if is_current else _current(record, limit.index, now))
    claim.admitted = False
    return False


def _current(record: Record, index: int, now: int) -> State:
    """Return a state of a record. One that was written before the clock was set back is changed in the record first.

    This is saved whatever the decision is, so that the state is moved once, and time passes for it from then on.
    """
    state: State = record.states[index]
    current = record.schema.rules[index].current(state, now)
    if current is not state:
        record.states[index] = current
        record.changed = True
    return current


def _begin_hour(record: Record, now: int) -> list[int] | None:
    """Finish usage of an hour that has ended, or that is enormous; return the amounts of the current hour."""
    until = record.counted_until
    if not until:
        record.counted_until = hour_ends(now)
    else:
        close_usage(record, until if 0 < until - now <= HOUR_US else hour_ends(now))
    return record.amounts


def _counted(record: Record, limit: PlannedLimit, change: int, taken_at: int) -> tuple[int, tuple[FinishedUsage, ...]]:
    """Return what to add to the usage of the current hour, and the finished usage, for a change of a charged amount.

    It belongs to the hour in which the amount was charged.
    """
    schema, amounts = limit.schema, record.amounts
    if not schema.counts_usage:
        return 0, record.finished
    if (
        amounts is not None
        and record.schema is schema
        and 0 < record.counted_until - taken_at <= HOUR_US
        and amounts[limit.index] + change <= _FULL_USAGE_PARTS
    ):
        return change, record.finished
    finished = {limit.rule.key: schema.milli(limit.index, change)}
    return 0, (*record.finished, FinishedUsage(hour_of(taken_at), finished, schema.plan))


def _settle_otherwise(record: Record, limit: PlannedLimit, change: int, *, now: int, claim: Claim) -> None:
    """Settle a credit, what a claim `undoes`, or a change after the schema of the record has changed.

    The limit is found by its key.
    """
    key, index = limit.rule.key, record.schema.index.get(limit.rule.key)
    if index is not None and record.schema.rules[index].is_counted:
        index = None  # the use of a limit that was removed
    use = record.kept.get(key) if index is None else (record.schema.rules[index], record.states[index])
    if use is None or use[0].is_permit is not limit.rule.is_permit:
        return
    rule, state = use[0], use[0].current(use[1], now)
    if rule is not limit.rule:
        # In parts of the present rule, rounded towards more use.
        change = -(-change * rule.parts_per_unit // limit.rule.parts_per_unit)
    if claim.shape.is_credit:
        state = rule.credit(state, now, -change)
    elif claim.undoes and change < 0:
        # Another rule counts in other parts: then nothing was in use before, so that less is returned.
        is_same = record.schema is limit.schema or rule.lua == limit.rule.lua
        before = claim.used_before(limit) if is_same else 0
        window = claim.window_start(limit)
        state = rule.undo(state, now, -change, taken_at=claim.decided_at, before=before, window=window)
    else:
        state = rule.settle(state, now, change, claim.decided_at)
    if index is None:
        record.keep({**record.kept, key: (rule, state)})
    else:
        record.states[index] = state

"""The engine: decides on requests over records. No input or output, no clock, no Django.

A store locks and loads the records of a plan's scopes, calls one of these functions, and saves the records whose
`changed` is set. `acquire.lua`, `settle.lua` and `renew.lua` are the only other implementation of these rules.

Records come in the order of the scopes of a plan, amounts and changes in that of its limits. Times are microseconds.
Amounts are parts of the limits' units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from limits_app.engine.algorithms import State
from limits_app.engine.algorithms.permits import may_have_expired
from limits_app.engine.algorithms.rule import NEVER_US, Rule, carried_parts
from limits_app.engine.counting import HOUR_US, hour_ends, hour_of
from limits_app.engine.plan import Claim, PlannedLimit, PlanShape
from limits_app.engine.record import FinishedUsage, Holder, HourlyUsage, KeptUse, Lease, Record, Schema, new_record

_FULL_USAGE_PARTS: Final = 2**61
"""More counted usage than this is finished early, so that it always fits into 64 bits."""

RESET_KEPT_US: Final = 24 * HOUR_US
"""How long an unused record is kept after a reset. Later, requests from before it may be refunded again."""

IsGone = Callable[[Holder], bool]
"""Returns whether the process of a holder has ended."""


def charge(claim: Claim, records: list[Record], now: int, is_gone: IsGone | None = None) -> bool:
    """Charge all amounts of a claim or none, and fill in the decision; return whether the claim was admitted.

    Everything is decided before anything is written. An exception of a signal handler leaves each limit charged and
    counted, or neither, and the claim without a decision.

    When it is admitted, its permits are leased to `claim.holder` and its amounts are counted as usage. An amount of 0
    is admitted unless the limit is in debt, and charges nothing. Before a request for permits is rejected, expired
    leases are reclaimed, and with `is_gone` those of ended processes. States that were written before the clock was set
    back are changed as `Rule.current` describes. A rejection changes nothing else.
    """
    shape, amounts = claim.shape, claim.amounts
    charged_states: list[State] = []
    for limit in shape.limits:
        rule, states = limit.rule, records[limit.scope_index].states
        charged = rule.take(states[limit.index], now, amounts[limit.place])
        if charged is None:
            if not rule.is_soft:
                return _reject(claim, records, now, is_gone)
            charged = rule.settle(states[limit.index], now, amounts[limit.place])
        charged_states.append(charged)
    counts_usage = shape.counts_usage
    if counts_usage:
        _begin_hours(shape, records, amounts, now)
    for limit in shape.limits:
        record = records[limit.scope_index]
        # Without a call in between, where a signal handler could raise: charged amounts are counted.
        record.states[limit.index] = charged_states[limit.place]
        if counts_usage and record.usage is not None:
            record.usage.amounts[limit.index] += amounts[limit.place]
        if limit.is_permit:
            rule = limit.rule
            record.leases[rule.key, claim.holder] = amounts[limit.place], now + rule.lease_us, now + rule.hold_us
        record.changed = True
    claim.decided_at = now
    claim.states = charged_states
    claim.admitted = True
    return True


def settle(claim: Claim, records: list[Record], now: int, changes: Sequence[int]) -> bool:
    """Add `changes` to the charged amounts, and return the permits; False when a lease was reclaimed before.

    Positive changes are charged even beyond the limit. Negative ones are refunded where the algorithm can, and for a
    plan that is credit with every algorithm; what a reset has forgotten is not refunded. Permits whose lease was
    reclaimed are not returned: other claims may hold them. Records may have other schemas than the plan: nothing is
    settled for a limit that was removed, or that has become a resource limit or ceased to be one.
    Of a claim that is `unanswered`, only debt is charged and permits are returned, if they were not before.
    """
    shape, taken_at, kept_leases = claim.shape, claim.decided_at, True
    counts_usage = shape.counts_usage and not claim.unanswered
    for limit in shape.limits:
        change = changes[limit.place]
        if not change and not limit.is_permit:
            continue
        record = records[limit.scope_index]
        if limit.is_permit:
            settles = record.leases.pop((limit.rule.key, claim.holder), None) is not None
            kept_leases = kept_leases and (settles or claim.unanswered)
        else:
            settles = change > 0 or not (claim.unanswered or (record.reset_at and _is_forgotten(record, claim)))
        counted, finished = 0, record.finished
        if counts_usage:
            counted, finished = _counted(record, limit, change, taken_at)
        if settles and record.schema is limit.schema and not shape.is_credit:
            states, index = record.states, limit.index
            states[index] = limit.rule.settle(states[index], now, change, taken_at)
        elif settles:
            _settle_by_key(record, limit, change, now=now, taken_at=taken_at, is_credit=shape.is_credit)
        # Without a call in between, where a signal handler could raise: refunds are not counted.
        if counted and record.usage is not None:
            record.usage.amounts[limit.index] += counted
        record.finished = finished
        record.changed = True
    return kept_leases


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
        expires_at = min(now + limit.rule.lease_us, ends_at)
        record.leases[limit.rule.key, claim.holder] = amount, expires_at, ends_at
        record.changed = True
    return True


def reset(record: Record, keys: Collection[str] | None, now: int, slices: Record | None) -> None:
    """Forget the use of the limits `keys` (None: of all); permits stay with their holders, counted usage stays.

    What processes hold in slices stays charged, since they spend it without asking again. `slices` is the record of the
    scope of `slices_key`: each slice is a lease for its amount in whole units; None without one.
    Amounts that were charged until now are not refunded any more, also of the other limits of the record.
    """
    kept = {key: use for key, use in record.kept.items() if keys is not None and key not in keys}
    rules = enumerate(record.schema.rules)
    forgotten = [index for index, rule in rules if not rule.is_permit and (keys is None or rule.key in keys)]
    if forgotten or len(kept) < len(record.kept):
        record.reset_at = now + 1  # first: an interruption then leaves amounts charged, and refunds none
    _keep(record, kept)
    for index in forgotten:
        rule, state = record.schema.rules[index], record.states[index]
        left = 0 if slices is None else _leased(slices, rule.key, now) * rule.parts_per_unit
        record.states[index] = rule.credit(state, now, max(rule.used(state, now) - left, 0)) if left else rule.start
    record.changed = True


def carry_over(record: Record, schema: Schema, now: int) -> Record:
    """Return the record of a scope whose limits have changed: recorded use is kept, rounded up, and leases are kept.

    The given record is not changed, but both share their leases. Limits are matched by key, whatever their kinds,
    algorithms and order. Use of limits that the schema does not have is kept until it would be forgotten anyway.
    A record that is migrated to a blocked scope is not saved: the old one, which has the recorded use, applies again
    when the block ends. Counted usage is moved to `finished`, and counting starts again.
    """
    old = record.schema
    migrated = new_record(schema)
    migrated.leases = record.leases
    migrated.finished = record.finished + _usage_of(record)
    migrated.reset_at = record.reset_at
    migrated.changed = not schema.is_blocked
    uses = dict(record.kept)
    for rule, state in zip(old.rules, record.states, strict=True):
        uses[rule.key] = rule, state
    uses = {key: (rule, rule.current(state, now)) for key, (rule, state) in uses.items()}
    for index, rule in enumerate(schema.rules):
        use = uses.pop(rule.key, None)
        if use is not None:
            migrated.states[index] = rule.carry(use[0], use[1], now)
        if rule.is_permit:
            # Leases outlive a limit that was removed and added again. Those that have run out are counted like the
            # others until they are reclaimed, since they are still there to be returned.
            migrated.states[index] = _counted_permits(rule, migrated.states[index], record, 0)
    left = {key: use for key, use in uses.items() if not use[0].is_permit and use[0].restored_at(use[1]) > now}
    migrated.kept, migrated.kept_changed = record.kept, record.kept_changed
    _keep(migrated, left)
    return migrated


def merge(record: Record, other: Record, now: int) -> None:
    """Add the use and the leases that another record of the same scope has; counted usage is not added."""
    uses = {rule.key: (rule, state) for rule, state in zip(other.schema.rules, other.states, strict=True)}
    record.leases.update(other.leases)
    record.reset_at = max(record.reset_at, other.reset_at)
    for index, rule in enumerate(record.schema.rules):
        state, use = record.states[index], uses.get(rule.key)
        if rule.is_permit:
            record.states[index] = _counted_permits(rule, state, record, 0)
        elif use is not None:
            used = carried_parts(use[0], use[1], now, rule.parts_per_unit)
            record.states[index] = rule.settle(state, now, used)
    record.changed = True


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
        states.append(_counted_permits(rule, state, record, now, is_gone=is_gone) if recounts else state)
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
            elif expires_at - now > 2 * rule.lease_us:  # it was written before the clock was set back
                record.leases[lease_id] = amount, now + rule.lease_us, ends_at
        counted = _counted_permits(rule, state, record, now)
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
    finished, usage = record.finished + _usage_of(record), record.usage
    if usage is not None:
        usage = HourlyUsage(until, [0] * len(record.schema.rules))
    # Without a call in between, where a signal handler could raise.
    record.finished, record.usage = finished, usage
    record.changed = True


def _reject(claim: Claim, records: list[Record], now: int, is_gone: IsGone | None) -> bool:
    """Reclaim leases that have run out and try again; without any, note the rejection."""
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


def _begin_hours(shape: PlanShape, records: Sequence[Record], amounts: Sequence[int], now: int) -> None:
    """Finish usage of hours that have ended, or that is enormous, so that amounts can be added to the current one."""
    for limit in shape.limits:
        record = records[limit.scope_index]
        usage = record.usage
        if usage is None:
            continue
        if not 0 < usage.until - now <= HOUR_US:
            close_usage(record, hour_ends(now))
        elif usage.amounts[limit.index] + amounts[limit.place] > _FULL_USAGE_PARTS:
            close_usage(record, usage.until)


def _counted(record: Record, limit: PlannedLimit, change: int, taken_at: int) -> tuple[int, tuple[FinishedUsage, ...]]:
    """Return what to add to the usage of the current hour, and the finished usage, for a change of a charged amount.

    It belongs to the hour in which the amount was charged.
    """
    schema, usage = limit.schema, record.usage
    if limit.is_permit or not schema.counts_usage:
        return 0, record.finished
    if (
        usage is not None
        and record.schema is schema
        and 0 < usage.until - taken_at <= HOUR_US
        and usage.amounts[limit.index] + change <= _FULL_USAGE_PARTS
    ):
        return change, record.finished
    amounts = {limit.rule.key: schema.milli(limit.index, change)}
    return 0, (*record.finished, FinishedUsage(hour_of(taken_at), amounts))


def _usage_of(record: Record) -> tuple[FinishedUsage, ...]:
    """Return the counted usage of a record as finished usage; empty when nothing was counted."""
    usage = record.usage
    if usage is None or not usage.until:
        return ()
    amounts = {
        rule.key: record.schema.milli(index, usage.amounts[index])
        for index, rule in enumerate(record.schema.rules)
        if usage.amounts[index]
    }
    return (FinishedUsage(hour_of(usage.until - 1), amounts),) if amounts else ()


def _settle_by_key(
    record: Record, limit: PlannedLimit, change: int, *, now: int, taken_at: int, is_credit: bool
) -> None:
    """Settle a credit, or a change after the schema of the record has changed; the limit is found by its key."""
    key, index = limit.rule.key, record.schema.index.get(limit.rule.key)
    use = record.kept.get(key) if index is None else (record.schema.rules[index], record.states[index])
    if use is None or use[0].is_permit is not limit.rule.is_permit:
        return
    rule, state = use[0], use[0].current(use[1], now)
    if rule is not limit.rule:
        # In parts of the present rule, rounded towards more use.
        change = -(-change * rule.parts_per_unit // limit.rule.parts_per_unit)
    state = rule.credit(state, now, -change) if is_credit else rule.settle(state, now, change, taken_at)
    if index is None:
        _keep(record, {**record.kept, key: (rule, state)})
    else:
        record.states[index] = state


def _keep(record: Record, kept: KeptUse) -> None:
    """Replace the use that a record keeps of limits that its schema does not have."""
    record.kept_changed = record.kept_changed or bool(kept or record.kept)
    record.kept = kept


def _leased(record: Record, key: str, now: int) -> int:
    """Return how much the leases of a key that end after `now` are for."""
    leases = record.leases.items()
    return sum([amount for (of_key, _), (amount, expires_at, _) in leases if of_key == key and expires_at > now])


def _counted_permits(rule: Rule, state: State, record: Record, now: int, *, is_gone: IsGone | None = None) -> State:
    """Return the state of a resource limit computed from the leases that expire after `now`; the fence is kept.

    With `is_gone`, without those whose holder is gone.
    """
    held = holders = earliest = 0
    for (key, holder), (amount, expires_at, _) in record.leases.items():
        if key == rule.key and expires_at > now and not (is_gone is not None and is_gone(holder)):
            held += amount
            holders += 1
            earliest = min(earliest, expires_at) if earliest else expires_at
    return held, holders, state[2], earliest

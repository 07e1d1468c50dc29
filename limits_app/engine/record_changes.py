"""Changes of records without a request: a reset, other limits of a scope, and two records of one scope.

Times are microseconds. `carry_over` returns another record; the others change the one they are given.
"""

from __future__ import annotations

from collections.abc import Collection

from limits_app.engine.algorithms.rule import carried_parts
from limits_app.engine.record import Record, Schema, new_record


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
    record.keep(kept)
    for index in forgotten:
        rule, state = record.schema.rules[index], record.states[index]
        left = 0 if slices is None else _leased(slices, rule.key, now) * rule.parts_per_unit
        record.states[index] = rule.credit(state, now, max(rule.used(state, now) - left, 0)) if left else rule.start
    record.changed = True


def carry_over(record: Record, schema: Schema, now: int) -> Record:
    """Return the record of a scope whose limits have changed: recorded use is kept, rounded up, and leases are kept.

    The given record is not changed, but both share their leases. Limits are matched by key, whatever their kinds,
    algorithms and order. Use of limits that the schema does not have, or counts only, is kept until it would be
    forgotten anyway.
    A record that is migrated to a blocked scope is not saved: the old one, which has the recorded use, applies again
    when the block ends. Counted usage is moved to `finished`, and counting starts again.
    """
    old = record.schema
    migrated = new_record(schema)
    migrated.leases = record.leases
    migrated.finished = record.finished + record.counted()
    migrated.reset_at = record.reset_at
    migrated.changed = not schema.is_blocked
    uses = dict(record.kept)
    uses |= {
        rule.key: (rule, state) for rule, state in zip(old.rules, record.states, strict=True) if not rule.is_counted
    }
    uses = {key: (rule, rule.current(state, now)) for key, (rule, state) in uses.items()}
    for index, rule in enumerate(schema.rules):
        use = None if rule.is_counted else uses.pop(rule.key, None)
        if use is not None:
            migrated.states[index] = rule.carry(use[0], use[1], now)
        if rule.is_permit:
            # Leases outlive a limit that was removed and added again. Those that have run out are counted like the
            # others until they are reclaimed, since they are still there to be returned.
            migrated.states[index] = record.held(rule, migrated.states[index], 0)
    left = {key: use for key, use in uses.items() if not use[0].is_permit and use[0].restored_at(use[1]) > now}
    migrated.kept, migrated.kept_changed = record.kept, record.kept_changed
    migrated.keep(left)
    return migrated


def merge(record: Record, other: Record, now: int) -> None:
    """Add the use and the leases that another record of the same scope has; counted usage is not added."""
    uses = {rule.key: (rule, state) for rule, state in zip(other.schema.rules, other.states, strict=True)}
    record.leases.update(other.leases)
    record.reset_at = max(record.reset_at, other.reset_at)
    for index, rule in enumerate(record.schema.rules):
        state, use = record.states[index], uses.get(rule.key)
        if rule.is_permit:
            record.states[index] = record.held(rule, state, 0)
        elif use is not None:
            used = carried_parts(use[0], use[1], now, rule)
            record.states[index] = rule.settle(state, now, used)
    record.changed = True


def _leased(record: Record, key: str, now: int) -> int:
    """Return how much the leases of a key that end after `now` are for."""
    leases = record.leases.items()
    return sum([amount for (of_key, _), (amount, expires_at, _) in leases if of_key == key and expires_at > now])

"""A rule as requests of a lower class have it: they leave a share of the limit free for higher classes.

A request of `amount` is admitted if `amount` and the share that is kept free fit together; then `amount` is charged.
The state is that of the rule, which requests of all classes have in common. An amount of 0 and a settlement know no
class.
"""

from __future__ import annotations

from limits_app.engine.algorithms.rule import Rule, State


class KeepingRule(Rule):
    """A hard rule of which a request leaves `kept_parts` free."""

    def __init__(self, rule: Rule, kept_parts: int) -> None:
        super().__init__(rule.limit, rule.start, rule.parts_per_unit, rule.ceiling_parts)
        self._rule = rule
        self.kept_parts = kept_parts
        self.usable_parts = self.most_parts = max(rule.ceiling_parts - kept_parts, 0)
        self.is_permit, self.has_log, self.has_fixed_end = rule.is_permit, rule.has_log, rule.has_fixed_end
        self.lua, self.lua_format = rule.lua, rule.lua_format
        self.lease_us, self.hold_us = rule.lease_us, rule.hold_us

    def take(self, state: State, now: int, amount: int) -> State | None:
        rule = self._rule
        if amount and rule.take(state, now, amount + self.kept_parts) is None:
            return None
        return rule.take(state, now, amount)

    def current(self, state: State, now: int) -> State:
        return self._rule.current(state, now)

    def wait(self, state: State, now: int, amount: int) -> int:
        return self._rule.wait(state, now, amount + self.kept_parts if amount else 0)

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        return self._rule.settle(state, now, change, taken_at)

    def undo(self, state: State, now: int, parts: int, *, taken_at: int, before: int, window: int) -> State:
        return self._rule.undo(state, now, parts, taken_at=taken_at, before=before, window=window)

    def window_start(self, state: State) -> int:
        return self._rule.window_start(state)

    def credit(self, state: State, now: int, parts: int) -> State:
        return self._rule.credit(state, now, parts)

    def used(self, state: State, now: int) -> int:
        return self._rule.used(state, now)

    def restored_at(self, state: State) -> int:
        return self._rule.restored_at(state)

    def recovers_since(self, state: State) -> int:
        return self._rule.recovers_since(state)

    def carry(self, old: Rule, state: State, now: int) -> State:
        return self._rule.carry(old, state, now)

    def boundaries(self, now: int, count: int) -> tuple[int, ...]:
        return self._rule.boundaries(now, count)

"""Soft limits: what does not fit is charged all the same, and is debt from then on."""

from __future__ import annotations

from dataclasses import replace

from limits_app.core.algorithms.rule import Rule, State

__all__ = ["softened"]


def softened(rule: Rule) -> Rule:
    """Give a rule that measures as `rule` does and refuses nothing."""
    take, settle = rule.take, rule.settle

    def take_all(state: State, now: int, amount: int) -> State:
        charged = take(state, now, amount)
        return settle(state, now, amount) if charged is None else charged

    return replace(rule, take=take_all, wait=lambda state, now, amount: 0)

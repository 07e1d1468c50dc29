"""Recorded hours, and one limit: how much of the use it would have refused, where single requests are not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from limits_app.core.algorithms import Rule, compile_rule
from limits_app.core.amounts import MILLI
from limits_app.core.counting import HOUR_US
from limits_app.core.limits import CallLimit, Limit, RateLimit, ResourceLimit
from limits_app.services.simulation.spreading import share_of

__all__ = ["STEP_SECONDS", "can_be_replayed", "in_steps", "replay_hours"]

STEP_SECONDS: Final = 300
"""The use of an hour is taken as even: so much time at once."""

_STEP_US: Final = STEP_SECONDS * 1_000_000
_STEPS: Final = HOUR_US // _STEP_US


def can_be_replayed(limit: Limit) -> bool:
    """Whether use by the hour says anything about a limit: not how much was held at the same time."""
    return not isinstance(limit, ResourceLimit)


def in_steps(limit: Limit) -> Limit:
    """The limit as coarse as what was recorded: a window shorter than a step becomes one of its length."""
    if not isinstance(limit, RateLimit | CallLimit) or limit.window_seconds >= STEP_SECONDS:
        return limit
    windows = -(-STEP_SECONDS // limit.window_seconds)
    capacity = limit.capacity * int(windows)
    burst = None if limit.burst is None else max(limit.burst, capacity)
    return replace(limit, capacity=capacity, window_seconds=limit.window_seconds * windows, burst=burst)


def replay_hours(limit: Limit, recorded: Mapping[int, int]) -> dict[int, int]:
    """What a limit would have refused of the use recorded by hours since 1970, by the same hours, in thousandths.

    The limit is unused in the beginning. What fits is charged and the rest refused, as if each request were small.
    """
    if limit.soft or not can_be_replayed(limit):
        return {}
    rule = compile_rule(in_steps(limit), _STEP_US)
    state, refused = rule.start, {}
    for hour in sorted(recorded):
        left_out = 0
        for now, parts in _even(rule, hour, recorded[hour]):
            fits = min(parts, max(rule.ceiling_parts - rule.used(state, now), 0))
            state = rule.settle(state, now, fits)
            left_out += parts - fits
        if left_out:
            refused[hour] = left_out * MILLI // rule.parts_per_unit
    return refused


def _even(rule: Rule, hour: int, milli: int) -> Iterator[tuple[int, int]]:
    """The use of an hour in equal steps, at the end of each."""
    parts = max(milli, 0) * rule.parts_per_unit // MILLI
    for step in range(_STEPS):
        yield hour * HOUR_US + (step + 1) * _STEP_US - 1, share_of(parts, step, _STEPS)

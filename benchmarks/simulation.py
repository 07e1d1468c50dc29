"""A simulation of local slices: 200 machines with 20 processes each share one limit, and the clock is a fake.

`python -m benchmarks.simulation` prints the table of `docs/performance.md` and draws `docs/pictures/slices.svg`.
Every process has its own slices, and the memory store is the store that they share. Nothing else is simulated: what
decides is the code of the package. Some processes have many more requests than others, and machines die with what
they hold. The same requests are also decided without slices, by the limit itself: that is what is allowed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from pathlib import Path
from typing import Final

from limits_app.engine.algorithms import compile_rule
from limits_app.engine.claims import Claim
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit
from limits_app.engine.plan import Amounts
from limits_app.engine.planning import plan_for
from limits_app.engine.record import LEASE_US, schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.slices import Slices, sliced
from limits_app.testing import FakeClock

__all__ = ["Outcome", "Setting", "drawn", "simulate", "table"]

PICTURE: Final = Path(__file__).parents[1] / "docs" / "pictures" / "slices.svg"
_SECOND: Final = 1_000_000
_FIRST_RETURN_US: Final = 100_000
"""How long after it was taken a slice is looked at first, as in `ResilientStore`."""
_CAPACITY: Final = 1_000_000
_LIMITS: Final[dict[str, AnyLimit]] = {
    "quota": QuotaLimit("call_count", _CAPACITY, "hour"),
    "token bucket": CallLimit.per_hour(_CAPACITY),
}
_SLICE_SECONDS: Final = (1, 5, 60)
_DEMANDS: Final = (0.5, 1.25)
_DRAWN: Final = ("quota", _DEMANDS[-1])
"""The limit and the demand of the picture."""
_COLORS: Final = ("#00796b", "#ef6c00", "#5e35b1", "#c2185b")
_WIDTH, _HEIGHT, _LEFT, _GAP, _BASE = 320, 200, 60, 60, 270


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated: `demand` is how many requests there are in all, as a share of the capacity of the limit."""

    limit: AnyLimit
    slice_seconds: int
    demand: float
    machines: int = 200
    processes: int = 20
    seconds: int = 100
    dies_every: int = 10
    """After how many seconds each a machine dies, and another one takes its place."""


@dataclass(slots=True)
class Outcome:
    """How many requests there were, were admitted, and are allowed without slices; and how many calls of the store.

    `lost` is what machines that died held in slices. `curve` has a point for each second: how many requests were
    admitted, how many were allowed, and what was out in slices.
    """

    requests: int = 0
    admitted: int = 0
    allowed: int = 0
    calls: int = 0
    lost: int = 0
    curve: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def most_out(self) -> int:
        """The most that was out in slices at one time."""
        return max(out for _, _, out in self.curve)

    @property
    def most_unused(self) -> int:
        """The largest difference between what was allowed and what was admitted."""
        return max(allowed - admitted for admitted, allowed, _ in self.curve)


class Oracle:
    """The limit itself, without slices and without a store: decides on one request at a time."""

    def __init__(self, limit: AnyLimit) -> None:
        self._rule = compile_rule(limit, LEASE_US)
        self._state = self._rule.start

    def admits(self, now: int, amount: int) -> bool:
        """Charge an amount, in units, if the limit allows it now."""
        state = self._rule.take(self._state, now, amount * self._rule.parts_per_unit)
        self._state = self._state if state is None else state
        return state is not None


class Simulation:
    """The processes, the store that they share, and the clock of all of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.outcome = Outcome()
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)
        applied, slice_us = sliced([(setting.limit, setting.slice_seconds)])
        scoped = ScopedLimits(scope_of("hot", None), schema_of(applied, self.store.lease_us), slice_us=slice_us)
        self.plan = plan_for([scoped], (setting.limit.key,), left_out=())
        self.unit: Amounts = (self.plan.shape.limits[0].rule.parts_per_unit,)
        self.allowed, self.admitted = Oracle(setting.limit), Oracle(setting.limit)
        self.everyone = [self._started() for _ in range(setting.machines * setting.processes)]
        self._returns: list[tuple[int, int, Slices]] = []
        """When which processes return their slices."""
        self._returning = set[Slices]()

    def request(self, process: Slices) -> None:
        """Decide on one request of a process. Fails when the limit would not have allowed it."""
        now, claim = self.clock.now_us, Claim(self.plan, self.unit)
        taking = process.take(claim)
        is_admitted = True
        if taking is not None:
            self.outcome.calls += 1
            is_admitted = process.decided(taking, self.store.acquire_first(taking.claims))
            self._return_later(process, now + _FIRST_RETURN_US)
        self.outcome.requests += 1
        self.outcome.allowed += self.allowed.admits(now, 1)
        if is_admitted:
            self.outcome.admitted += 1
            assert self.admitted.admits(now, 1), "more was admitted than the limit allows"

    def move_to(self, now: int) -> None:
        """Move the clock; slices that have ended meanwhile are returned when that is due."""
        while self._returns and self._returns[0][0] <= now:
            self.clock.now_us, _, process = heappop(self._returns)
            self._returning.discard(process)
            again = process.return_ended(self._settle)
            if again is not None:
                self._return_later(process, self.clock.now_us + again)
        self.clock.now_us = now

    def kill(self, machine: int) -> None:
        """End all processes of a machine, which lose their slices, and start others."""
        count = self.setting.processes
        for index in range(machine * count, (machine + 1) * count):
            self.outcome.lost += self._out(self.everyone[index : index + 1])
            self.everyone[index].after_fork()
            self.everyone[index] = self._started()

    def note(self) -> None:
        """Add a point to the curve."""
        self.outcome.curve.append((self.outcome.admitted, self.outcome.allowed, self._out(self.everyone)))

    def _started(self) -> Slices:
        return Slices(self.clock, lambda: len(self.everyone))

    def _return_later(self, process: Slices, due: int) -> None:
        if process not in self._returning:
            self._returning.add(process)
            heappush(self._returns, (due, id(process), process))

    def _settle(self, claim: Claim, changes: Amounts) -> None:
        self.outcome.calls += 1
        self.store.settle(claim, changes)

    def _out(self, processes: Iterable[Slices]) -> int:
        """How much processes hold in slices, in requests."""
        return sum(sum(one.unspent().values()) for one in processes) // self.unit[0]


def simulate(setting: Setting, *, seed: int = 1) -> Outcome:
    """Simulate the traffic of all processes, and then silence for twice the time for which slices last.

    Fails when more is admitted than the limit allows, or when anything is out in slices at the end.
    """
    drawn, simulation = random.Random(seed), Simulation(setting)
    # The k-th process has 1 / (k % 20 + 1) of the requests of the first one.
    weights = list(accumulate(1 / (number % 20 + 1) for number in range(len(simulation.everyone))))
    places = range(len(simulation.everyone))
    each_second = round(setting.demand * setting.limit.capacity / setting.seconds)
    for second in range(setting.seconds):
        simulation.note()
        if second % setting.dies_every == setting.dies_every - 1:
            simulation.kill(drawn.randrange(setting.machines))
        begin = simulation.clock.now_us
        for number, place in enumerate(drawn.choices(places, cum_weights=weights, k=each_second)):
            simulation.move_to(begin + number * _SECOND // each_second)
            simulation.request(simulation.everyone[place])
        simulation.move_to(begin + _SECOND)
    simulation.note()
    simulation.move_to(simulation.clock.now_us + 2 * setting.slice_seconds * _SECOND)
    assert not any(one.unspent() for one in simulation.everyone), "slices are still out"
    return simulation.outcome


def table(outcomes: Mapping[tuple[str, float, int], Outcome]) -> str:
    """Return the table of the documentation: outcomes by limit, demand and `slice_seconds`."""
    head = ("limit", "requests", "`slice_seconds`", "saved", "in slices", "unused", "unused at the end", "lost")
    rows = [head, ("---",) * len(head)]
    for (name, demand, seconds), found in outcomes.items():
        # A rejected request always calls the store.
        saved = (found.requests - found.calls) / found.admitted
        unused = found.allowed - found.admitted
        parts = [part / _CAPACITY for part in (found.most_out, found.most_unused, unused, found.lost)]
        rows.append((name, f"{demand:.0%}", str(seconds), *[_percent(share) for share in (saved, *parts)]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def drawn(outcomes: Mapping[int, Outcome]) -> str:
    """Return the picture: the outcomes of one limit and demand, by the seconds for which slices last."""
    colors = dict(zip(outcomes, _COLORS, strict=False))
    some = next(iter(outcomes.values()))
    most_out = max(one.most_out for one in outcomes.values())
    summary = "; ".join(f"{seconds} s: {_percent(one.most_out / _CAPACITY)}" for seconds, one in outcomes.items())
    admitted = [("allowed", "#9e9e9e", 6.0, [allowed for _, allowed, _ in some.curve])]
    admitted += [(f"{key} s", colors[key], 1.5, [one for one, _, _ in found.curve]) for key, found in outcomes.items()]
    out = [(f"{key} s", colors[key], 1.5, [one for _, _, one in found.curve]) for key, found in outcomes.items()]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 330" role="img" aria-labelledby="t d"'
            ' font-family="system-ui, sans-serif" font-size="13">',
            '  <title id="t">Requests that are admitted, and what is out in slices</title>',
            '  <desc id="d">4,000 processes share a quota of 1,000,000 requests, with slices of several lengths.'
            f" What is admitted follows what is allowed. The most that is out in slices: {summary}.</desc>",
            '  <rect width="800" height="330" rx="8" fill="#fafafa"/>',
            *_panel(_LEFT, "admitted", admitted, some.curve[-1][1]),
            *_panel(_LEFT + _WIDTH + _GAP, "out in slices", out, most_out),
            "</svg>",
            "",
        ]
    )


def _panel(left: int, title: str, curves: Sequence[tuple[str, str, float, Sequence[int]]], most: int) -> list[str]:
    """Draw curves (name, color, width, values) over the seconds, with an axis up to `most`."""
    seconds = len(curves[0][3]) - 1
    lines = [
        f'  <path d="M{left} {_BASE - _HEIGHT}V{_BASE}H{left + _WIDTH}" fill="none" stroke="#bdbdbd"/>',
        _text(left, 28, title),
        _text(left, 52, _percent(most / _CAPACITY)),
        _text(left, _BASE + 18, "0 s"),
        _text(left + _WIDTH - 30, _BASE + 18, f"{seconds} s"),
    ]
    for number, (name, color, width, values) in enumerate(curves):
        points = [
            f"{left + _WIDTH * second / seconds:.1f},{_BASE - _HEIGHT * value / most:.1f}"
            for second, value in enumerate(values)
        ]
        lines += [
            f'  <polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="{width}"/>',
            _text(left + 70 * number, _BASE + 44, name, color),
        ]
    return lines


def _text(x: int, y: int, text: str, color: str = "#202020") -> str:
    return f'  <text x="{x}" y="{y}" fill="{color}">{text}</text>'


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Simulate all settings; print the table, and draw the picture."""
    outcomes = {
        (name, demand, seconds): simulate(Setting(limit, seconds, demand))
        for name, limit in _LIMITS.items()
        for demand in _DEMANDS
        for seconds in _SLICE_SECONDS
    }
    print(table(outcomes))
    PICTURE.write_text(drawn({key[2]: found for key, found in outcomes.items() if key[:2] == _DRAWN}))


if __name__ == "__main__":
    main()

"""Contenders take turns, and what counts is the ratio of what they did in the same round.

A machine is never equally fast for long; two figures taken right after each other share its mood.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice, permutations, repeat
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Final, NamedTuple

__all__ = [
    "Contender",
    "Effort",
    "Figure",
    "Samples",
    "Turn",
    "absolute",
    "alternate",
    "in_turns",
    "microseconds",
    "percentile",
    "take_turns",
]

_MOST_CALLS: Final = 200_000
_SINGLE_CALLS: Final = 2_000
_WARM_UP_LAPS: Final = 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: how many rounds, and how many seconds each turn takes."""

    rounds: int = 21
    turn_seconds: float = 0.05
    quick: bool = False
    asked: bool = False
    """Whether the number of rounds was asked for."""

    def long_rounds(self, usual: int) -> int:
        """How many rounds those have whose turns are long: as many as were asked for, else fewer than others."""
        return self.rounds if self.asked else self.sized(usual, 1)

    def sized(self, full: int, quick: int) -> int:
        """A count that is smaller when somebody only wants to look."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that is done over and over.

    `once` is timed. `prepare` is not: it runs before each slice of `slice_calls` calls,
    so that those who slow down with what they remember are compared while they remember little.
    """

    name: str
    once: Callable[[], object]
    prepare: Callable[[], object] | None = None
    slice_calls: int = _MOST_CALLS


class Turn(NamedTuple):
    """What one contender did in one round: a figure (seconds per call, or whatever its row counts), and its p99."""

    figure: float
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """Median over all rounds, the quietest round, and p99 where single calls were timed."""

    median: float
    quietest: float
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """The turns of all contenders, round by round."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def figures(self, name: str) -> list[float]:
        """One contender's figures, by round."""
        return [turn.figure for turn in self.turns[name]]

    def ratio(self, name: str, *references: str, over: str | None = None) -> Figure:
        """A contender against a reference, or against the best of several, each in the same round.

        With `over`, only what it takes more than that contender.
        """
        base = repeat(0.0) if over is None else self.figures(over)
        best = [min(figures) for figures in zip(*map(self.figures, references), strict=True)]
        ratios = [(own - less) / ref for own, less, ref in zip(self.figures(name), base, best, strict=False)]
        quietest = ratios[best.index(min(best))]
        return Figure(median(ratios), quietest, None if over else self._tail(name, references))

    def speed(self, name: str, reference: str) -> Figure:
        """How fast a contender is, as a share of the speed of a reference; p99: that of the slowest hundredth."""
        taken = self.ratio(name, reference)
        return Figure(1 / taken.median, 1 / taken.quietest, None if taken.p99 is None else 1 / taken.p99)

    def _tail(self, name: str, references: Sequence[str]) -> float | None:
        ratios = []
        for own, *others in zip(self.turns[name], *map(self.turns.__getitem__, references), strict=True):
            tails = [other.p99 for other in others if other.p99 is not None]
            if own.p99 is not None and tails:
                ratios.append(own.p99 / min(tails))
        return median(ratios) if ratios else None


def absolute(values: Sequence[float], *, tail: bool = False) -> Figure:
    """A figure in a unit of its own, of which less is better; the quietest round is the smallest."""
    return Figure(median(values), min(values), percentile(values, 0.99) if tail else None)


def microseconds(samples: Samples, name: str) -> Figure:
    """What one call of a contender takes by itself, which only says how fast the machine is."""
    return absolute([1e6 * figure for figure in samples.figures(name)])


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def in_turns(measures: Mapping[str, Callable[[], Turn]], rounds: int) -> Samples:
    """Measure everything once per round; the garbage collector only runs between rounds.

    Who is first in one round is last in the next one, since what the collector has touched is slow to begin with.
    """
    samples = Samples({name: [] for name in measures})
    order = deque(measures.items())
    for _ in range(rounds):
        with _no_collection():
            for name, measure in order:
                samples.turns[name].append(measure())
        order.rotate(-1)
    return samples


def take_turns(contenders: Sequence[Contender], effort: Effort) -> Samples:
    """Time all contenders in turns, after a warm-up that also finds out how many calls fit into a turn."""
    slices = {contender.name: _slices(contender, effort.turn_seconds) for contender in contenders}

    def turn_of(contender: Contender) -> Callable[[], Turn]:
        return lambda: _turn(contender, *slices[contender.name])

    return in_turns({contender.name: turn_of(contender) for contender in contenders}, effort.rounds)


def alternate(contenders: Sequence[Contender], effort: Effort) -> Samples:
    """Time all contenders in turns of a single call, which follow each other in every order.

    As requests do on a site: nobody finds the processor as the last call of the same kind has left it,
    and what slows down the machine for a while slows down all of them.
    """
    samples = Samples({contender.name: [] for contender in contenders})
    calls = max(round(effort.turn_seconds / _lap_seconds(contenders)), 1) * len(contenders)
    for _ in range(effort.rounds):
        times: dict[str, list[int]] = {contender.name: [] for contender in contenders}
        with _no_collection():
            for lap, order in enumerate(islice(cycle(permutations(contenders)), calls)):
                for contender in order:
                    if contender.prepare is not None and lap % contender.slice_calls == 0:
                        contender.prepare()
                for contender in order:
                    times[contender.name].append(_nanoseconds(contender))
        for name, taken in times.items():
            samples.turns[name].append(Turn(sum(taken) / len(taken) / 1e9, percentile(taken, 0.99) / 1e9))
    return samples


def _lap_seconds(contenders: Sequence[Contender]) -> float:
    """How long a call of each takes, after a warm-up."""
    laps = [sum(map(_nanoseconds, contenders)) for _ in range(_WARM_UP_LAPS)]
    return min(laps) / 1e9


def _nanoseconds(contender: Contender) -> int:
    once = contender.once
    started = perf_counter_ns()
    once()
    return perf_counter_ns() - started


def _slices(contender: Contender, seconds: float) -> tuple[int, int]:
    """How many slices of how many calls take about `seconds`, preparations included."""
    calls, spent = 1, 0.0
    while True:
        started = perf_counter()
        _timed(contender, calls)
        spent = perf_counter() - started
        if spent >= seconds / 4 or calls >= contender.slice_calls:
            break
        calls = min(calls * 4, contender.slice_calls)
    if calls < contender.slice_calls:
        return 1, max(1, min(round(calls * seconds / spent), contender.slice_calls))
    return max(1, round(seconds / spent)), calls


def _turn(contender: Contender, slices: int, calls: int) -> Turn:
    spent = sum(_timed(contender, calls) for _ in range(slices))
    times: list[int] = []
    while len(times) < min(slices * calls, _SINGLE_CALLS):
        times += _each_timed(contender, min(calls, _SINGLE_CALLS))
    return Turn(spent / (slices * calls), percentile(times, 0.99) / 1e9)


def _timed(contender: Contender, calls: int) -> float:
    if contender.prepare is not None:
        contender.prepare()
    once = contender.once
    started = perf_counter()
    for _ in repeat(None, calls):
        once()
    return perf_counter() - started


def _each_timed(contender: Contender, calls: int) -> list[int]:
    if contender.prepare is not None:
        contender.prepare()
    once, now, times = contender.once, perf_counter_ns, []
    for _ in repeat(None, calls):
        started = now()
        once()
        times.append(now() - started)
    return times


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""Concurry: limit sets with the same vocabulary as ours; the default algorithm is a sliding window over single hits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from concurry import (  # type: ignore[import-untyped]
    CallLimit,
    LimitSet,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)

from benchmarks.harness import Contender

__all__ = ["admitted", "between_processes", "empty", "permit", "refused", "three_limits", "with_hits"]

_ALGORITHMS: Final = {
    "Concurry, GCRA": RateLimitAlgorithm.GCRA,
    "Concurry, default": RateLimitAlgorithm.SlidingWindow,
}
_PLENTY: Final = 1_000_000_000


def admitted() -> list[Contender]:
    """One call limit, as a context manager."""
    return [_called(name, partial(_call_set, kind)) for name, kind in _ALGORITHMS.items()]


def three_limits() -> list[Contender]:
    """A call, a rate and a resource limit; less is used than was requested."""
    return [_three(name, partial(_three_set, kind)) for name, kind in _ALGORITHMS.items()]


def refused() -> list[Contender]:
    """One call limit that is used up."""
    contenders = []
    for name, kind in _ALGORITHMS.items():
        limits = LimitSet([CallLimit(window=86_400, algorithm=kind, capacity=1)])
        limits.try_acquire()
        assert not limits.try_acquire().successful
        contenders.append(Contender(name, limits.try_acquire))
    return contenders


def empty() -> list[Contender]:
    """No limit at all."""
    return [_called("Concurry", lambda: LimitSet([]))]


def with_hits(count: int) -> list[Contender]:
    """The default algorithm, which looks through all hits."""
    limits = [_call_set(RateLimitAlgorithm.SlidingWindow)]

    def prepare() -> None:
        limits[0] = _call_set(RateLimitAlgorithm.SlidingWindow)
        for _ in range(count - 5):
            limits[0].try_acquire()

    def once() -> None:
        with limits[0].try_acquire():
            pass

    return [Contender("Concurry, default", once, prepare, slice_calls=10)]


def between_processes() -> list[Contender]:
    """One call limit in a manager process."""
    limits = LimitSet([_calls(RateLimitAlgorithm.GCRA)], shared=True, mode="process")

    def once() -> None:
        with limits.try_acquire():
            pass

    return [Contender("Concurry, GCRA", once)]


def permit() -> Callable[[], Callable[[], object]]:
    """Take the only permit, however long it takes; gives what gives it back."""
    limits = LimitSet([ResourceLimit(key="connections", capacity=1)])

    def take() -> Callable[[], object]:
        give_back: Callable[[], object] = limits.acquire().release
        return give_back

    return take


def _calls(kind: RateLimitAlgorithm) -> CallLimit:
    return CallLimit(window=3600, algorithm=kind, capacity=_PLENTY)


def _call_set(kind: RateLimitAlgorithm) -> Any:
    return LimitSet([_calls(kind)])


def _called(name: str, make: Callable[[], Any]) -> Contender:
    limits = [make()]

    def prepare() -> None:
        limits[0] = make()
        limits[0].try_acquire()

    def once() -> None:
        with limits[0].try_acquire():
            pass

    assert limits[0].try_acquire().successful
    return Contender(name, once, prepare, slice_calls=10)


def _three_set(kind: RateLimitAlgorithm) -> Any:
    tokens = RateLimit(key="tokens", window=3600, algorithm=kind, capacity=_PLENTY)
    return LimitSet([_calls(kind), tokens, ResourceLimit(key="connections", capacity=10)])


def _three(name: str, make: Callable[[], Any]) -> Contender:
    limits = [make()]

    def prepare() -> None:
        limits[0] = make()
        once()

    def once() -> None:
        with limits[0].try_acquire({"tokens": 10}) as acquisition:
            acquisition.update({"tokens": 8})

    return Contender(name, once, prepare, slice_calls=10)

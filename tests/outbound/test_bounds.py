"""Numbers that cannot be: refused when something is made of them, and not when it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from limits_app.outbound import BreakerRules, CachingClient, Executor, Pace, PacedClient, Quota, WorkQueue
from tests.outbound.timelines import Scripted, answer

NAN = float("nan")
CLIENT = Scripted([answer()])
QUOTA: Callable[..., Any] = partial(Quota, "rps")
PACED: Callable[..., Any] = partial(PacedClient, CLIENT, Pace())
CACHING: Callable[..., Any] = partial(CachingClient, CLIENT)


@pytest.mark.parametrize(
    ("make", "name", "number"),
    [
        *[(lambda capacity: Quota("rps", capacity, 1.0), "capacity", number) for number in (0, -1)],
        *[(lambda window_seconds: Quota("rps", 1, window_seconds), "window_seconds", n) for n in (0, -1.0, NAN)],
        *[(partial(Quota, "rps", 1, 1.0), "remaining", number) for number in (-1,)],
        *[(BreakerRules, name, 0) for name in ("min_calls", "probes", "interval_seconds")],
        *[(BreakerRules, name, -1.0) for name in ("cool_down_seconds", "most_cool_down_seconds")],
        *[(BreakerRules, "failure_ratio", number) for number in (-0.1, 1.5, NAN)],
        (PACED, "tries", 0),
        (CACHING, "most", 0),
        (CACHING, "seconds", -1),
        (partial(Executor, 1), "grace_seconds", -1),
        (Executor, "concurrency", 0),
        (partial(Executor, 1, pace=Pace()), "wait_seconds", NAN),
        *[(Pace, name, NAN) for name in ("max_gap", "max_hold")],
        *[(partial(WorkQueue, CLIENT.send), name, 0) for name in ("workers", "capacity")],
        *[(partial(WorkQueue, CLIENT.send), "grace_seconds", number) for number in (-1, NAN)],
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(make: Callable[..., Any], name: str, number: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be .*, not {number}$"):
        make(**{name: number})


def test_bounds_themselves_are_numbers_that_can_be() -> None:
    assert Quota("rps", 1, 0.001, 0).remaining == 0
    assert BreakerRules(1.0, 1, 0.1, 0, 0, 1).failure_ratio == 1.0


def test_it_needs_neither_django_nor_a_store_nor_anything_to_watch_with() -> None:
    code = "import limits_app.outbound, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    foreign = ("django", "lmdb", "redis", "celery", "prometheus_client", "opentelemetry", "limits_app.stores")
    assert [name for name in loaded if name.startswith(foreign)] == []

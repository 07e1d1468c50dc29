"""Balancing: which worker of a pool gets the next call."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

from limits_app.workers.submission_queue import SubmissionQueue

__all__ = ["BALANCERS", "Balancer", "balancer_of"]

Balancer = Callable[[Sequence[SubmissionQueue]], SubmissionQueue]


def round_robin() -> Balancer:
    """One after the other."""
    turns = count()
    return lambda queues: queues[next(turns) % len(queues)]


def at_random() -> Balancer:
    """Any of them."""
    return random.choice


def least_loaded() -> Balancer:
    """The one with the fewest unfinished calls; the first of several."""
    return lambda queues: min(queues, key=lambda queue: queue.unfinished)


# A new one is one function and one entry.
BALANCERS: Final[Mapping[str, Callable[[], Balancer]]] = {
    "round_robin": round_robin,
    "random": at_random,
    "least_loaded": least_loaded,
}


def balancer_of(name: str) -> Balancer:
    """A new balancer; ValueError says which there are."""
    if not isinstance(name, str) or name not in BALANCERS:
        raise ValueError(f"load_balancing must be one of {', '.join(BALANCERS)}, not {name!r}")
    return BALANCERS[name]()

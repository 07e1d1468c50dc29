"""The contract of failure, as docs/stores.md states it, on every store, under chaos.

A failure prints a seed; with it in the environment as LIMITS_CHAOS_SEED, its round is repeated.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from limits_app.testing import FakeClock
from tests.stores.contract.chaos import onlooker, resilient, rounds
from tests.stores.contract.crowd import Crowd, Tally
from tests.stores.contract.ledger import LIMITS, Ledger, limits_for
from tests.stores.contract.places import PLACES, SHARED, Place
from tests.stores.support import MULTI_THREADED_FORK

pytestmark = [
    pytest.mark.usefixtures("without_circuit_breaker"),
    pytest.mark.filterwarnings(MULTI_THREADED_FORK),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of an interrupted finalizer
]

BRIEFLY = 0.5
"""Seconds of chaos."""
SECONDS = [BRIEFLY, pytest.param(30.0, marks=pytest.mark.release)]


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_each_request_is_charged_at_most_once(place: Place, seconds: float) -> None:
    clock = FakeClock()
    with ExitStack() as stack:
        looks = stack.enter_context(onlooker(place, limits_for))
        store, looking = resilient(place, clock), place.open(clock)
        for number, random in enumerate(rounds(seconds)):
            entity = f"{random.choice(list(LIMITS))} {number}"
            Ledger(place, store, looking, clock, random, looks, entity).run(random.randint(4, 24))
        store.retire()


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_killed_processes_never_exceed_the_limit(place: Place, seconds: float) -> None:
    tally = Tally()
    looking = place.open(tally.clock)
    for number, random in enumerate(rounds(seconds)):
        Crowd(place, looking, tally, random, f"crowd {number}").run()
        tally.clear()

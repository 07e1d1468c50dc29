"""Holders of permits that are killed or frozen: the same for every store that machines share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from time import monotonic

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.limits import ResourceLimit
from limits_app.engine.runtime import install, present
from tests.stores.support import PATIENCE, Running, holders, limits_of, running

__all__ = ["DB", "LEASE", "Holders", "signalled"]

LEASE = 2.0
DB = ResourceLimit("db", 1)


def _hold(pipe: Connection, open_there: Callable[[], Store]) -> None:
    """Hold a permit until told to give it back; tell when it was lost, too."""
    install(replace(present(), lease_lost=lambda claim: pipe.send("lost")))
    held = limits_of(open_there(), DB).acquire(timeout=PATIENCE)
    pipe.send("holds")
    pipe.recv()
    held.release()
    pipe.send("released")
    pipe.recv()


def signalled(holder: Running, what: signal.Signals) -> None:
    """Send a signal to a holder."""
    assert holder.process.pid is not None
    os.kill(holder.process.pid, what)


class Holders:
    """Whoever has the store gives `short`, one with leases of `LEASE`, and `open_there`, which opens it elsewhere."""

    @pytest.fixture
    def limits(self, short: Store) -> LimitSet:
        """A permit."""
        return limits_of(short, DB)

    @pytest.fixture
    def holder(self, short: Store, open_there: Callable[[], Store]) -> Iterator[Running]:
        """Another process, which holds the permit."""
        with running(_hold, open_there) as holder:
            assert holder.hear() == "holds"
            yield holder

    def test_the_permit_of_a_killed_holder_is_back_within_the_lease(self, holder: Running, limits: LimitSet) -> None:
        assert not limits.try_acquire()
        killed = holder.kill()
        with limits.acquire(timeout=PATIENCE):
            assert monotonic() - killed < LEASE + 1

    def test_a_holder_that_was_frozen_past_its_lease_has_lost_it_and_takes_nothing_back(
        self, holder: Running, limits: LimitSet
    ) -> None:
        signalled(holder, signal.SIGSTOP)
        with limits.acquire(timeout=PATIENCE) as mine:
            signalled(holder, signal.SIGCONT)
            assert holder.hear() == "lost"
            assert not limits.try_acquire({"db": 1})
            holder.pipe.send("give it back")
            assert holder.hear() == "released"
            assert holders(limits) == 1
            assert not limits.try_acquire({"db": 1})
            assert limits.store.renew([mine.claim]) == []
        assert holders(limits) == 0

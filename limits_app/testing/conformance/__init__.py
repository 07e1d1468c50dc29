"""Optional: the conformance suite, tests of what every store must do. Nothing else imports it.

Subclass `StoreConformance` in a test module, and define how a new, empty store is made; pytest does the rest:

    from limits_app.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

`clock` is a FakeClock: no test sleeps, the tests move the time.
Three more methods may be overridden:

- `close_store(store)` is called for every store that was made, when its test is over.
- `count_entries(store)` returns how many entries of any kind the store keeps;
  without it, the tests of bounded state are skipped.
- `open_store()` returns a callable that can be pickled and opens the same store, on its own clock,
  in any process that calls it; without it, the tests with several processes are skipped.

A store that counts usage also inherits `Counting`, of `limits_app.testing.conformance.counting`.
pytest and hypothesis must be installed. The number of random examples follows your hypothesis profile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

# Before they are imported, so that a failure shows the values that were compared.
pytest.register_assert_rewrite(*[f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py")])

from limits_app.testing.conformance.algorithms import Algorithms  # noqa: E402
from limits_app.testing.conformance.bounds import Bounds  # noqa: E402
from limits_app.testing.conformance.change_log import ChangeLogs  # noqa: E402
from limits_app.testing.conformance.changes import ChangesTests  # noqa: E402
from limits_app.testing.conformance.clocks import Clocks  # noqa: E402
from limits_app.testing.conformance.concurrency import Races, WakingTests  # noqa: E402
from limits_app.testing.conformance.money import Money  # noqa: E402
from limits_app.testing.conformance.namespaces import Namespaces  # noqa: E402
from limits_app.testing.conformance.permits import Leases, PermitTests  # noqa: E402
from limits_app.testing.conformance.priorities import Priorities  # noqa: E402
from limits_app.testing.conformance.quotas import Quotas  # noqa: E402
from limits_app.testing.conformance.random_verbs import RandomVerbs  # noqa: E402
from limits_app.testing.conformance.requests import Atomicity, Choosing  # noqa: E402
from limits_app.testing.conformance.settling import Settling  # noqa: E402
from limits_app.testing.conformance.timed_blocks import TimedBlocks  # noqa: E402
from limits_app.testing.conformance.token_leases import TokenLeases  # noqa: E402
from limits_app.testing.conformance.versions import Versions  # noqa: E402

__all__ = ["StoreConformance", "StoreOperations"]


class StoreOperations(
    Atomicity,
    Choosing,
    Settling,
    TimedBlocks,
    Money,
    Quotas,
    Leases,
    PermitTests,
    TokenLeases,
    Priorities,
    Clocks,
    ChangesTests,
    Versions,
    ChangeLogs,
    Namespaces,
    WakingTests,
    Bounds,
    Races,
):
    """All topics but the arithmetic of algorithms, for a second backend of a store that passes `StoreConformance`."""


class StoreConformance(Algorithms, StoreOperations, RandomVerbs):
    """All tests of the suite, for the store that `make_store(clock)` of a subclass makes.

    The docstring of `limits_app.testing.conformance` describes how to run them on your own store.
    """

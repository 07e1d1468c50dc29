"""The conformance suite: what every store must do, as tests that run on yours.

Subclass `StoreConformance` in a test module and say how a fresh, empty store is made; pytest does the rest:

    from limits_app.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

`clock` is a FakeClock: nothing in the suite sleeps, and a test moves the time by hand.
Three more methods may be overridden:

- `close_store(store)` is called for every store that was made, when its test is over.
- `count_entries(store)` returns how many entries the store keeps, of whatever kind;
  without it, the tests of bounded state are skipped.
- `open_store()` returns a callable that can be pickled and opens one and the same store, on its own clock,
  in whatever process calls it; without it, the tests with several processes are skipped.

pytest and hypothesis must be installed. Number of examples and the like follow your hypothesis profile.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from limits_app.testing.conformance.suite import StoreConformance

__all__ = ["StoreConformance"]

_WITH_ASSERTS: Final = (
    "atomicity",
    "bounds",
    "changes",
    "choosing",
    "collecting",
    "contract",
    "counting",
    "counts",
    "crediting",
    "exactness",
    "kinds",
    "leases",
    "machine",
    "permits",
    "properties",
    "quotas",
    "races",
    "settling",
    "suite",
    "timelines",
    "versions",
    "waking",
)

# Before they are imported, so that a failure shows the values that were compared.
pytest.register_assert_rewrite(*[f"{__name__}.{name}" for name in _WITH_ASSERTS])


def __getattr__(name: str) -> object:
    if name == "StoreConformance":
        return import_module(f"{__name__}.suite").StoreConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The suite: all topics in one class."""

from __future__ import annotations

from limits_app.testing.conformance.atomicity import Atomicity
from limits_app.testing.conformance.bounds import Bounds
from limits_app.testing.conformance.changes import Changes
from limits_app.testing.conformance.choosing import Choosing
from limits_app.testing.conformance.crediting import Crediting
from limits_app.testing.conformance.exactness import Exactness
from limits_app.testing.conformance.kinds import Kinds
from limits_app.testing.conformance.leases import Leases
from limits_app.testing.conformance.permits import Permits
from limits_app.testing.conformance.properties import Properties
from limits_app.testing.conformance.quotas import Quotas
from limits_app.testing.conformance.races import Races
from limits_app.testing.conformance.settling import Settling
from limits_app.testing.conformance.timelines import Timelines
from limits_app.testing.conformance.versions import Versions
from limits_app.testing.conformance.waking import Waking

__all__ = ["StoreConformance"]


class StoreConformance(
    Timelines,
    Exactness,
    Atomicity,
    Choosing,
    Settling,
    Crediting,
    Quotas,
    Leases,
    Permits,
    Changes,
    Kinds,
    Versions,
    Waking,
    Bounds,
    Properties,
    Races,
):
    """All tests of the suite, for the store that `make_store(clock)` of a subclass makes.

    The docstring of `limits_app.testing.conformance` says how to run them on a store of your own.
    """

"""Acquisitions of sets that may have permits: by a weak reference, leases know whether they have a holder."""

from __future__ import annotations

from limits_app.core.acquisition import Acquisition


class TrackedAcquisition(Acquisition):
    """An acquisition that may be referred to weakly.

    This class is not compiled in any build, because compiled classes cannot be referred to weakly.
    """

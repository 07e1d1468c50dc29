"""Charging web requests: permits are held while the request is answered."""

from __future__ import annotations

from collections.abc import Sequence

from limits_app.acquiring import Acquisition, LimitSet
from limits_app.services.request import POLICIES, SetResolver
from limits_app.services.several import Share, SharesSource


def charge_together(shares: Sequence[Share], source: SetResolver = POLICIES) -> Acquisition:
    """Acquire several shares for a web request, in one step; raises InvalidRequest where they are in several stores.

    Raises LimitExceeded for a rejection.
    """
    request = SharesSource(shares, source).request()
    request.requires_usage, request.is_of_view = False, True
    return request.acquire()


def hold_here(acquisition: Acquisition) -> None:
    """Count the permits of an acquisition as held by this thread or task, so that it does not take them again."""
    if acquisition.holds_permits:
        acquisition.enter_block()


def hold_nothing() -> Acquisition:
    """Return an acquisition of no limits, which admits everything."""
    return LimitSet().try_acquire()

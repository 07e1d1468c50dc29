"""How often the REST API may be asked: limits of its own, which administrators can change."""

from __future__ import annotations

from typing import Final

from limits_app.core.limits import CallLimit
from limits_app.integrations.drf.throttle import LimitThrottle

__all__ = ["RESOURCE", "ApiThrottle"]

RESOURCE: Final = "limits_app.api"


class ApiThrottle(LimitThrottle):
    """600 requests a minute for each caller, unless limits for the resource `limits_app.api` say otherwise."""

    resource = RESOURCE
    default_limits = (CallLimit(600, 60),)

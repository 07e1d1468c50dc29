"""Limits that an administrator sets and every process of a Django site obeys.

Public names are resolved on first use, so that importing the package costs nothing and needs no Django.
Of them `limits`, `limited`, `exempt`, `LimitedRequest`, `RequestLimits` and `Share` need the settings of a Django site,
and so does `from limits_app import *`, which asks for all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app import services as limits
    from limits_app.acquiring import Acquisition, LimitPool, LimitSet
    from limits_app.engine.errors import (
        AlreadyReleased,
        InvalidLimit,
        InvalidRequest,
        LimitExceeded,
        LimitsError,
        LimitTimeout,
        NeverAdmissible,
        NotShareable,
        StoreUnavailable,
        UnknownPool,
        UsageNotReported,
    )
    from limits_app.engine.limit_use import LimitUse
    from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
    from limits_app.engine.outcome import LimitStatus, Outcome
    from limits_app.integrations.decorators import exempt, limited
    from limits_app.integrations.request import LimitedRequest, RequestLimits
    from limits_app.services import Share

__version__ = "1.0.0"

__all__ = [
    "Acquisition",
    "AlreadyReleased",
    "CallLimit",
    "InvalidLimit",
    "InvalidRequest",
    "LimitExceeded",
    "LimitPool",
    "LimitSet",
    "LimitStatus",
    "LimitTimeout",
    "LimitUse",
    "LimitedRequest",
    "LimitsError",
    "NeverAdmissible",
    "NotShareable",
    "Outcome",
    "QuotaLimit",
    "RateLimit",
    "RateLimitAlgorithm",
    "RequestLimits",
    "ResourceLimit",
    "Share",
    "StoreUnavailable",
    "UnknownPool",
    "UsageNotReported",
    "exempt",
    "limited",
    "limits",
]

_HOMES: Final = {
    "limits_app.acquiring": ("Acquisition", "LimitPool", "LimitSet"),
    "limits_app.engine.errors": (
        "AlreadyReleased",
        "InvalidLimit",
        "InvalidRequest",
        "LimitExceeded",
        "LimitTimeout",
        "LimitsError",
        "NeverAdmissible",
        "NotShareable",
        "StoreUnavailable",
        "UnknownPool",
        "UsageNotReported",
    ),
    "limits_app.engine.limits": ("CallLimit", "QuotaLimit", "RateLimit", "RateLimitAlgorithm", "ResourceLimit"),
    "limits_app.engine.limit_use": ("LimitUse",),
    "limits_app.engine.outcome": ("LimitStatus", "Outcome"),
    "limits_app.integrations.decorators": ("exempt", "limited"),
    "limits_app.integrations.request": ("LimitedRequest", "RequestLimits"),
    "limits_app.services": ("Share",),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # for a type checker each misspelt import would be this function's

    def __getattr__(name: str) -> object:
        if name == "limits":
            return import_module("limits_app.services")
        for module, names in _HOMES.items():
            if name in names:
                if module.startswith("limits_app.acquiring"):
                    import_module("limits_app.stores.modes")  # which knows the stores of limit sets
                return getattr(import_module(module), name)
        raise AttributeError(f"module 'limits_app' has no attribute {name!r}")

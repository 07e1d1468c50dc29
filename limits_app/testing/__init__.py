"""What users need in their own tests.

`FakeClock` needs nothing but the package; `StoreConformance` needs pytest and hypothesis;
everything else needs Django, with `limits_app` among its INSTALLED_APPS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.testing.assertions import LimitsMixin, assert_limited, assert_not_limited, exhaust
    from limits_app.testing.clock import FakeClock
    from limits_app.testing.conformance import StoreConformance
    from limits_app.testing.isolation import freeze_limits, fresh_limits
    from limits_app.testing.overrides import disable_limits, override_limits

__all__ = [
    "FakeClock",
    "LimitsMixin",
    "StoreConformance",
    "assert_limited",
    "assert_not_limited",
    "disable_limits",
    "exhaust",
    "freeze_limits",
    "fresh_limits",
    "override_limits",
]

_HOMES: Final = {
    "FakeClock": "limits_app.testing.clock",
    "LimitsMixin": "limits_app.testing.assertions",
    "StoreConformance": "limits_app.testing.conformance",
    "assert_limited": "limits_app.testing.assertions",
    "assert_not_limited": "limits_app.testing.assertions",
    "disable_limits": "limits_app.testing.overrides",
    "exhaust": "limits_app.testing.assertions",
    "freeze_limits": "limits_app.testing.isolation",
    "fresh_limits": "limits_app.testing.isolation",
    "override_limits": "limits_app.testing.overrides",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'limits_app.testing' has no attribute {name!r}")

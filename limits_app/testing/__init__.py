"""What users need in their own tests.

`FakeClock` needs nothing but the package; `StoreConformance` needs pytest and hypothesis;
everything else needs Django, with `limits_app` among its INSTALLED_APPS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.testing.assertions import LimitsMixin, assert_limited, assert_not_limited, exhaust
    from limits_app.testing.client import SiteClient
    from limits_app.testing.clock import FakeClock
    from limits_app.testing.conformance import StoreConformance
    from limits_app.testing.isolation import disable_limits, freeze_limits, fresh_limits, override_limits

__all__ = [
    "FakeClock",
    "LimitsMixin",
    "SiteClient",
    "StoreConformance",
    "assert_limited",
    "assert_not_limited",
    "disable_limits",
    "exhaust",
    "freeze_limits",
    "fresh_limits",
    "override_limits",
]

_NAMES: Final = {
    "client": ("SiteClient",),
    "clock": ("FakeClock",),
    "conformance": ("StoreConformance",),
    "assertions": ("LimitsMixin", "assert_limited", "assert_not_limited", "exhaust"),
    "isolation": ("disable_limits", "freeze_limits", "fresh_limits", "override_limits"),
}
"""What each module has; they are imported on first use."""


def __getattr__(name: str) -> object:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module 'limits_app.testing' has no attribute {name!r}")

"""What users need in their own tests.

`FakeClock` needs nothing but the package; `StoreConformance` needs pytest and hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from limits_app.testing.clock import FakeClock

if TYPE_CHECKING:
    from limits_app.testing.conformance import StoreConformance

__all__ = ["FakeClock", "StoreConformance"]

_HOMES: Final = {"StoreConformance": "limits_app.testing.conformance"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'limits_app.testing' has no attribute {name!r}")

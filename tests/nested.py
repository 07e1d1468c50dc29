"""Sessions of pytest inside of tests: what they need not load, which would take more than half of their time."""

from __future__ import annotations

from typing import Final

__all__ = ["WITHOUT_OTHERS"]

_OTHERS: Final = ("anyio", "benchmark", "hypothesispytest", "pytest_cov", "schemathesis", "time_machine")

WITHOUT_OTHERS: Final = [word for name in _OTHERS for word in ("-p", f"no:{name}")]
"""Options that leave out the plugins of this project's own tests."""

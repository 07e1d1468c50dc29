"""The same site as in the tests of services, and rows as in those of the configuration."""

from __future__ import annotations

from tests.configuration.conftest import api, user
from tests.services.conftest import clock, heard, wall

__all__ = ["api", "clock", "heard", "user", "wall"]

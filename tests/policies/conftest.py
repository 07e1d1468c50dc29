"""The same site as in the tests of services."""

from __future__ import annotations

from tests.services.conftest import clock, heard, wall

__all__ = ["clock", "heard", "wall"]

"""What users need in their own tests."""

from limits_app.testing.clock import FakeClock

__all__ = ["FakeClock"]

"""Numbers that must be within bounds: checked by name, when something is made of them."""

from __future__ import annotations

__all__ = ["check_counts", "check_durations", "check_periods"]


def check_counts(**counts: int) -> None:
    """Raise ValueError for a count below 1."""
    for name, count in counts.items():
        if not count >= 1:
            raise ValueError(f"{name} must be at least 1, not {count}")


def check_durations(**durations: float) -> None:
    """Raise ValueError for less than 0 seconds, and for what is not a number."""
    for name, seconds in durations.items():
        if not seconds >= 0:
            raise ValueError(f"{name} must be 0 or more, not {seconds}")


def check_periods(**periods: float) -> None:
    """Raise ValueError for seconds that are not more than 0."""
    for name, seconds in periods.items():
        if not seconds > 0:
            raise ValueError(f"{name} must be more than 0, not {seconds}")

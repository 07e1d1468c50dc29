"""The version of the configuration: a number that a store gives once, also after it has lost its state."""

from __future__ import annotations

from time import time_ns

__all__ = ["least_version", "next_version"]


def next_version(version: int) -> int:
    """What follows a version: the milliseconds since 1970, or one more where that is not later.

    Were it always one more, a store that begins anew, or got an older state back, would give a number again that some
    process has kept limits under.
    """
    return max(version + 1, least_version())


def least_version() -> int:
    """What the next version is at least."""
    return time_ns() // 1_000_000

"""Replies that get lost after the database has done its work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from limits_app.core.errors import StoreUnavailable

__all__ = ["Loser", "again"]


class Loser:
    """Loses a share of the replies to what is committed."""

    def __init__(self) -> None:
        self.share = 0.0
        self.random = Random(1)

    def __call__(self, command: bytes) -> bool:
        """Whether the reply to a command is lost."""
        return b"COMMIT" in command and self.random.random() < self.share


def again(verb: Callable[[], object]) -> None:
    """Do something until it is known to be done."""
    for _ in range(20):
        try:
            verb()
        except StoreUnavailable:
            continue
        return
    raise AssertionError("it never succeeds")

"""Replies that are lost after the database has committed, and commits that are lost before."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from limits_app.core.errors import StoreUnavailable

__all__ = ["Loser", "again"]


class Loser:
    """Loses a share of the replies to commits, and the commits themselves unless they arrive."""

    def __init__(self) -> None:
        self.share = 0.0
        self.arrives = True
        self.random = Random(1)

    def __call__(self, command: bytes) -> bool:
        """Return whether the reply to a command is lost."""
        lost = command.endswith(b"COMMIT\0") and self.random.random() < self.share
        if lost and not self.arrives:
            raise ConnectionError  # the proxy closes both connections before it has sent the command
        return lost


def again(verb: Callable[[], object]) -> None:
    """Call something until it is known to be done."""
    for _ in range(20):
        try:
            verb()
        except StoreUnavailable:
            continue
        return
    raise AssertionError("it never succeeds")

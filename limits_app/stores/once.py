"""Settling once: stores on other machines are asked without a lock, so that two could settle a claim at a time."""

from __future__ import annotations

from limits_app.core.plan import Claim

__all__ = ["Settling"]


class Settling:
    """The claims that are being settled; whoever wants the same meanwhile leaves it to the first one."""

    def __init__(self) -> None:
        self._claims: dict[Claim, object] = {}

    def begin(self, claim: Claim) -> bool:
        """Say whether the caller is to settle a claim, and has to `end` that, whatever comes of it."""
        mine = object()
        if claim.settled or self._claims.setdefault(claim, mine) is not mine:
            return False
        if claim.settled:  # by somebody who has ended just now
            self.end(claim)
            return False
        return True

    def end(self, claim: Claim) -> None:
        """It is settled, or others may try."""
        del self._claims[claim]

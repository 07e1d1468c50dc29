"""How rates are measured, and what definitions of each algorithm may have."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Self

from limits_app.engine.amounts import Amount


class AlgorithmTraits(NamedTuple):
    """What definitions of an algorithm may have, and what it promises.

    An algorithm that `is_exact` never admits more than the capacity in any time of one window.
    """

    takes_burst: bool = False
    takes_decimals: bool = False
    refunds: bool = False
    is_exact: bool = False


_NO_TRAITS: Final = AlgorithmTraits()


class RateLimitAlgorithm(StrEnum):
    """How a rate is measured; the module of each algorithm describes its use and its weakness."""

    _traits: AlgorithmTraits

    def __new__(cls, value: str, traits: AlgorithmTraits = _NO_TRAITS) -> Self:
        """Make a member with its traits."""
        member = str.__new__(cls, value)
        member._value_ = value
        member._traits = traits
        return member

    TOKEN_BUCKET = "token_bucket", AlgorithmTraits(takes_burst=True, takes_decimals=True, refunds=True)
    LEAKY_BUCKET = "leaky_bucket", AlgorithmTraits(takes_burst=True)
    SLIDING_WINDOW = "sliding_window", AlgorithmTraits(is_exact=True)
    FIXED_WINDOW = "fixed_window", _NO_TRAITS
    GCRA = "gcra", AlgorithmTraits(takes_burst=True, takes_decimals=True, refunds=True)

    TokenBucket = TOKEN_BUCKET
    LeakyBucket = LEAKY_BUCKET
    SlidingWindow = SLIDING_WINDOW
    FixedWindow = FIXED_WINDOW

    @property
    def label(self) -> str:
        """Its name for people; abbreviations are in capitals."""
        return self.value.replace("_", " ") if "_" in self.value else self.value.upper()

    @property
    def takes_burst(self) -> bool:
        """Whether a definition may have a burst."""
        return self._traits.takes_burst

    @property
    def takes_decimals(self) -> bool:
        """Whether amounts may have up to three decimals."""
        return self._traits.takes_decimals

    @property
    def refunds(self) -> bool:
        """Whether unused amounts are refunded."""
        return self._traits.refunds

    def most_per_window(self, capacity: Amount, burst: Amount | None) -> Amount:
        """Return the most that can be admitted in a time of one window; `burst` is by default the capacity.

        After an idle time, a bucket admits its burst and what it refills within the window.
        Fixed windows admit twice the capacity across a boundary.
        """
        if self._traits.is_exact:
            return capacity
        return round(capacity + (capacity if burst is None else burst), 6)

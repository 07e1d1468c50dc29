"""Every error that the package raises on purpose.

LimitsError
├── InvalidLimit        (ValueError)    a definition that cannot be
├── InvalidRequest      (ValueError)    amounts or keys that cannot be
├── LimitExceeded                       refused; carries the outcome
│   ├── LimitTimeout    (TimeoutError)  still refused when the time was up
│   └── NeverAdmissible (ValueError)    more than the limit can ever admit
├── UsageNotReported    (RuntimeError)  a block ended without `update`
├── AlreadyReleased     (RuntimeError)  `update` after `release`
├── NotShareable        (TypeError)     private state was asked to leave its process
├── UnknownPool         (LookupError)   no pool has that name
├── CannotRevert        (RuntimeError)  a change that can no longer be taken back
├── StoreUnavailable                    the store cannot answer
│   └── StoreBlocked                    a transaction of the caller keeps it from that
│       └── RecordUnavailable           the stored data of one scope cannot be used
└── StaleConfiguration                  the caller's limits are older than the store's version
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limits_app.core.acquisition import Acquisition
    from limits_app.core.outcome import Outcome

__all__ = [
    "AlreadyReleased",
    "CannotRevert",
    "InvalidLimit",
    "InvalidRequest",
    "LimitExceeded",
    "LimitTimeout",
    "LimitsError",
    "NeverAdmissible",
    "NotShareable",
    "RecordUnavailable",
    "StaleConfiguration",
    "StoreBlocked",
    "StoreUnavailable",
    "UnknownPool",
    "UsageNotReported",
]


class LimitsError(Exception):
    """The root of the tree."""


class InvalidLimit(LimitsError, ValueError):
    """A limit, key, name or identifier that cannot be; the message names it and says what is allowed."""


class InvalidRequest(LimitsError, ValueError):
    """A request whose amounts or keys cannot be; nothing was charged."""


class LimitExceeded(LimitsError):
    """The request was refused; `outcome` says by which limits and when to come back.

    `refused` is what was not acquired, to tell more about it; None where that is not known, as in another process.
    """

    refused: Acquisition | None = None

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    @classmethod
    def of(cls, refused: Acquisition) -> Self:
        """The error for what a store has refused."""
        error = cls(refused.outcome)
        error.refused = refused
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.outcome,), {name: value for name, value in vars(self).items() if name != "refused"}

    def __str__(self) -> str:
        return self.outcome.summary()


class LimitTimeout(LimitExceeded, TimeoutError):
    """The request was still refused when its timeout ended."""


class NeverAdmissible(LimitExceeded, ValueError):
    """The request asks for more than a limit can ever admit, so waiting is pointless."""


class UsageNotReported(LimitsError, RuntimeError):
    """A block ended without `update(...)` for amounts that must be reported; all was released."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = tuple(keys)
        super().__init__(self.keys)

    def __str__(self) -> str:
        names = ", ".join(repr(key) for key in self.keys)
        return f"no usage was reported for {names}: call update({{key: used}}) before the block ends"


class AlreadyReleased(LimitsError, RuntimeError):
    """The acquisition was released before; its usage can no longer change."""


class NotShareable(LimitsError, TypeError):
    """State in memory cannot follow its limit set into another process."""


class UnknownPool(LimitsError, LookupError):
    """No pool has that name."""


class CannotRevert(LimitsError, RuntimeError):
    """A change of configuration that cannot be taken back as things are; nothing was changed."""


class StoreUnavailable(LimitsError):
    """The store cannot answer; nothing is known about the request.

    `retry_after` is in how many seconds it is worth asking again, where somebody knows that.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreBlocked(StoreUnavailable):
    """The caller's own transaction has locked the file that the store is in, so waiting for it is pointless.

    The store is well; nothing was charged.
    """


class RecordUnavailable(StoreBlocked):
    """The store cannot use what is stored for one scope; other scopes are not affected, so no circuit breaker opens."""


class StaleConfiguration(LimitsError):
    """The limits of the request were compiled before the latest change; resolve them again."""

    def __init__(self, message: str = "limits have changed since these were found: ask for the set again") -> None:
        super().__init__(message)

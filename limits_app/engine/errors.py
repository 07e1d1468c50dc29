"""Every error that the package raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self

from limits_app.engine.outcome import Outcome


class LimitsError(Exception):
    """The root of the tree."""


class InvalidLimit(LimitsError, ValueError):
    """An invalid limit, key, name or identifier; the message has the value and the allowed ones."""


class UnknownTimeZone(InvalidLimit):
    """A limit in a time zone that does not exist, or that this machine lacks."""


class InvalidRequest(LimitsError, ValueError):
    """A request with invalid amounts or keys; nothing was charged."""


class Decided(Protocol):
    """A request on which a store has decided."""

    @property
    def outcome(self) -> Outcome:
        """The decision and its reasons."""


class LimitExceeded(LimitsError):
    """The request was rejected, by default without a wait; `outcome` has the limits and when to retry.

    `refused` is the acquisition that was rejected; None where it is not known, as in another process.
    """

    refused: Decided | None = None

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    @classmethod
    def of(cls, refused: Decided) -> Self:
        """Return the error for a request that a store has rejected."""
        error = cls(refused.outcome)
        error.refused = refused
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.outcome,), {name: value for name, value in vars(self).items() if name != "refused"}

    def __str__(self) -> str:
        return self.outcome.summary()


class LimitTimeout(LimitExceeded, TimeoutError):
    """The request was still rejected when its timeout ended."""


class NeverAdmissible(LimitExceeded, ValueError):
    """The request is for more than a limit can ever admit, so waiting is pointless."""


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


class LeaseEnded(LimitsError, RuntimeError):
    """The lease of a token has ended, or the token was settled before: nothing was changed."""


class NotOfSet(LimitsError, RuntimeError):
    """A limit that was not taken from a set has no state."""


class NotShareable(LimitsError, TypeError):
    """State in memory cannot be sent to another process with its limit set."""


class UnknownPool(LimitsError, LookupError):
    """No pool has that name."""


class CannotRevert(LimitsError, RuntimeError):
    """A change of the configuration that can no longer be reverted; nothing was changed."""


class CannotProtect(LimitsError, RuntimeError):
    """The database does not permit the triggers that protect the audit log; the message says what to do."""


class StoreUnavailable(LimitsError):
    """The store cannot answer; the state of the request is unknown.

    `retry_after` is after how many seconds a retry is useful, where that is known.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unresolved(StoreUnavailable):
    """The limits of a request cannot be determined: the database cannot be read, or this machine lacks a time zone."""


class StoreBlocked(StoreUnavailable):
    """A transaction of the caller has locked the file of the store, so waiting for the lock is pointless.

    The store itself is available; nothing was charged.
    """


class RecordUnavailable(StoreBlocked):
    """The store cannot use what is stored for one scope; other scopes are not affected, so no circuit breaker opens."""


class StoreFull(StoreBlocked):
    """The store has no room for a new scope, or for more state of one; scopes that fit are decided as usual."""


class StaleConfiguration(LimitsError):
    """The limits of the request were compiled before the latest change; resolve them again."""

    def __init__(self, message: str = "the limits have changed since this set was resolved: resolve it again") -> None:
        super().__init__(message)

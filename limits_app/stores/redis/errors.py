"""What an error of the server means, wherever the server puts the words; and the errors of the store for it.

redis-py recognizes the first word of a message, and removes it. Redis 6.2 begins the message of an error in a script
with "Error running script", and has the first word of the error itself in the middle; other versions have it in front.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from redis import exceptions

from limits_app.engine.errors import RecordUnavailable, StoreFull, StoreUnavailable


class ErrorKind(Enum):
    """The kinds of errors by which the store decides; the values are the words of the server."""

    WRONG_TYPE = "WRONGTYPE"
    READ_ONLY = "READONLY"
    MASTER_DOWN = "MASTERDOWN"
    LOADING = "LOADING"
    NO_REPLICAS = "NOREPLICAS"
    NOT_SAVED = "MISCONF"
    OUT_OF_MEMORY = "OOM"
    NO_PERMISSION = "NOPERM"
    MOVED = "MOVED"
    ASK = "ASK"
    TRY_AGAIN = "TRYAGAIN"
    CLUSTER_DOWN = "CLUSTERDOWN"
    OTHER = "ERR"


NOT_PRIMARY: Final = frozenset(
    {ErrorKind.READ_ONLY, ErrorKind.MASTER_DOWN, ErrorKind.LOADING, ErrorKind.NO_REPLICAS},
)
"""Of a server that decides nothing now: a replica, one that has just started, or one that has lost the replicas which
`min-replicas-to-write` demands. Another may be the primary.
"""
SLOT_MOVED: Final = frozenset({ErrorKind.MOVED, ErrorKind.ASK, ErrorKind.TRY_AGAIN})
"""Of a server of a cluster whose keys are, or will soon be, on another one."""

LOST: Final = (OSError, exceptions.ConnectionError, exceptions.TimeoutError)
"""What redis-py raises when a connection was lost, or the server is silent."""
REFUSED: Final = (exceptions.ResponseError, exceptions.BusyLoadingError)
"""What redis-py raises for an error that the server has replied; the second is a ConnectionError."""
_WITHIN_SCRIPT: Final = frozenset({ErrorKind.NO_PERMISSION, ErrorKind.OTHER})
"""Of a call that may have changed something before: a script has no transaction that could be rolled back."""


class Unanswered(StoreUnavailable):
    """A call that was sent was not answered, or ended with an error: it may have been executed, and is not repeated."""


class NotPrimary(StoreUnavailable):
    """The server decides nothing now; the call was not executed, and may be sent over a new connection."""


_BY_CLASS: Final[Mapping[type[Exception], ErrorKind]] = {
    exceptions.ReadOnlyError: ErrorKind.READ_ONLY,
    exceptions.MasterDownError: ErrorKind.MASTER_DOWN,
    exceptions.BusyLoadingError: ErrorKind.LOADING,
    exceptions.OutOfMemoryError: ErrorKind.OUT_OF_MEMORY,
    exceptions.NoPermissionError: ErrorKind.NO_PERMISSION,
    exceptions.MovedError: ErrorKind.MOVED,
    exceptions.AskError: ErrorKind.ASK,
    exceptions.TryAgainError: ErrorKind.TRY_AGAIN,
    exceptions.ClusterDownError: ErrorKind.CLUSTER_DOWN,
}
"""The errors of redis-py whose message lacks the first word."""

_PHRASES: Final[Mapping[str, ErrorKind]] = {
    "can't run this command": ErrorKind.NO_PERMISSION,
    "can't access at least one of the keys": ErrorKind.NO_PERMISSION,
    "can't publish to the channel": ErrorKind.NO_PERMISSION,
    "ACL failure in script": ErrorKind.NO_PERMISSION,
    "while the cluster is down": ErrorKind.CLUSTER_DOWN,
}
"""How errors in scripts read that have no first word in some versions."""

_WORDS: Final = "|".join([kind.value for kind in ErrorKind if kind is not ErrorKind.OTHER])
_RECOGNIZED: Final = re.compile(rf"(?:^|(?<=[\s:-]))(?:{_WORDS})(?=\s|$)|{'|'.join(_PHRASES)}")


def error_kind(error: BaseException | None) -> ErrorKind:
    """Return what an error of redis-py means; the first word counts, since names such as those of users may follow."""
    by_class = _BY_CLASS.get(type(error)) if isinstance(error, Exception) else None
    match = _RECOGNIZED.search(str(error))
    if by_class is not None or match is None:
        return by_class or ErrorKind.OTHER
    return _PHRASES.get(match[0]) or ErrorKind(match[0])


def refusal(error: Exception) -> StoreUnavailable:
    """Return the error for a call to which the server has replied an error; Unanswered where it may have an effect."""
    kind = error_kind(error)
    if kind is ErrorKind.WRONG_TYPE:
        return RecordUnavailable(f"another program has written a key of this scope with another type: {error}")
    if kind is ErrorKind.OUT_OF_MEMORY:
        return StoreFull(
            f"Redis has no memory for more state ({error}): raise its maxmemory, or free memory on the server"
        )
    message = f"Redis refuses the call with {kind.value}: {error}"
    if kind is ErrorKind.NO_PERMISSION:
        message += " (docs/stores.md lists what the ACL user of the store needs)"
    if kind in _WITHIN_SCRIPT:
        return Unanswered(message)
    return NotPrimary(message) if kind in NOT_PRIMARY else StoreUnavailable(message)

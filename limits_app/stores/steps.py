"""What stores have in common: where they are open, locks of atomic steps, choices between claims, and idle scopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from time import sleep
from typing import Final, TypeVar, cast

from limits_app.acquiring.runtime import lock_over_forks
from limits_app.acquiring.store import Store
from limits_app.engine import engine
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.plan import Claim
from limits_app.engine.record import Record

S = TypeVar("S", bound=Store)

CHECKS_PER_NEW_SCOPE: Final = 2
"""How many scopes a store checks for being idle whenever one is added, so that idle ones do not accumulate."""
GRACE_US: Final = 60_000_000
"""How long a scope has been idle when a store deletes it."""

_TRIES: Final = 200

_OPENED: Final[dict[tuple[object, ...], Store]] = {}
_OPENING: Final = lock_over_forks()


def open_once(place: tuple[object, ...], make: Callable[[], S]) -> S:
    """Return the store that this process has opened at a place, which is made if there is none."""
    with _OPENING:
        if place not in _OPENED:
            _OPENED[place] = make()
        return cast("S", _OPENED[place])


class InStep(StoreUnavailable):
    """The calling thread is in the middle of a step of the store: the caller is a finalizer or a signal handler."""

    def __init__(self) -> None:
        super().__init__("a store cannot be called from a finalizer or signal handler within a step of the same thread")


def acquire_patiently(lock: RLock) -> None:
    """Acquire a lock that is held briefly. It is tried first, because each thread that blocks has to be woken."""
    for _ in range(_TRIES):
        sleep(0)
        if lock.acquire(blocking=False):
            return
    lock.acquire()


def first_admitted(
    claims: Sequence[Claim],
    acquire: Callable[[Claim], bool],
    peek: Callable[[Claim], None],
    *,
    emptiest_first: bool,
    failover: bool,
) -> Claim | None:
    """Charge the first of the claims that fits, as `Store.acquire_first` does. To be called within one step."""
    if emptiest_first:
        for claim in claims:
            peek(claim)
        claims = sorted(claims, key=Claim.load)
    for claim in claims if failover else claims[:1]:
        if acquire(claim):
            return claim
    return None


def is_idle(record: Record, now: int, *, grace_us: int = GRACE_US) -> bool:
    """Return whether a record has equaled an unused one for `grace_us`, after leases that have run out are reclaimed.

    A store deletes such scopes, so that its size depends on the active ones.
    """
    engine.reclaim(record, now)
    return engine.is_restored(record, now - grace_us, now)

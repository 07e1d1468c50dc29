"""Guards: one for each store alias, which notices that the store is down and sees to it that it comes back.

What a store cannot take at the moment is kept and done later; whoever asks it something while it is down
hears so at once, instead of waiting for it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import random
from threading import Lock
from typing import Final

from limits_app import conf, signals
from limits_app.core.clock import Clock, as_clock
from limits_app.core.errors import StoreBlocked, StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.plan import Amounts, Claim
from limits_app.core.runtime import on_fork
from limits_app.core.store import Store, is_remote
from limits_app.stores import registry
from limits_app.stores.attendant import Attendant
from limits_app.stores.breaker import Breaker, BreakerRules, BreakerState
from limits_app.stores.guarded import GuardedStore
from limits_app.stores.memory import MemoryStore, monotonic_us
from limits_app.stores.timed import timed

__all__ = ["Guard", "aliases", "forget_guards", "guard_of"]

logger = logging.getLogger("limits_app")

_SECOND: Final = 1_000_000
_MOST_UNSETTLED: Final = 10_000
_STEPS_BACK: Final = 8
"""By how much the steps of a store that comes back are shorter than the pauses in which it is asked at all."""
_PROBE: Final = CallLimit.per_second(1_000_000)


class Guard:
    """Watches over the store of one alias."""

    def __init__(self, alias: str, *, clock: Clock | None = None, jitter: Callable[[], float] = random) -> None:
        time = as_clock(monotonic_us) if clock is None else clock
        rules = BreakerRules(
            conf.get(conf.BREAKER_FAILURE_RATIO),
            conf.get(conf.BREAKER_MIN_CALLS),
            round(conf.get(conf.BREAKER_INTERVAL_SECONDS) * _SECOND),
        )
        self.alias = alias
        self.breaker = Breaker(rules, clock=time, tell=self._tell)
        self.probe_seconds = conf.get(conf.BREAKER_PROBE_SECONDS)
        self._pause_us = round(self.probe_seconds * _SECOND)
        self._attendant = Attendant(self._look, self._pause_us, clock=time, jitter=jitter)
        self._opened: Store | None = None
        self._guarded: GuardedStore | None = None
        self._probes: LimitSet | None = None
        self._retired = False
        self.degraded: Counter[conf.OnUnavailable] = Counter()
        """How many decisions each policy made in place of the store."""
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child settles nothing of its parent's."""
        self._lock = Lock()
        self._unsettled: deque[tuple[Claim, Amounts]] = deque(maxlen=_MOST_UNSETTLED)
        self._owes_version = False
        self._meanwhile: MemoryStore | None = None

    @property
    def unsettled(self) -> int:
        """How many releases wait for the store."""
        return len(self._unsettled)

    def store(self) -> GuardedStore:
        """The store of the alias; raises what `registry.store` does, and StoreUnavailable where there is none."""
        opened = self._open()
        if self._guarded is None or self._opened is not opened:
            if is_remote(opened):
                opened.settle_later = self.settle_later
            self._guarded = GuardedStore(timed(opened, self.alias), self)
            self._opened = opened
        return self._guarded

    def version(self) -> int:
        """The version of the store's configuration; StoreUnavailable at once where it is known to be down."""
        return self.present(self._guarded)[1]

    def present(self, known: GuardedStore | None = None) -> tuple[GuardedStore, int]:
        """The store (the one that is `known`, for those in a hurry), and what `version` says."""
        if not self.breaker.calm:
            with self.asking():
                store = self.store()
                return store, store.version()
        try:
            store = known or self.store()
            return store, store.version()
        except StoreUnavailable as error:
            self.failed(error)
            raise

    @contextmanager
    def call(self) -> Iterator[bool]:
        """Say whether the store may be asked, and note in the block how that goes; that it is unavailable ends here."""
        was_calm = self.breaker.calm
        with self.breaker.call() as granted:
            yield granted
        if not self.breaker.calm:
            if was_calm:
                self._log_failure(self.breaker.error)
            self._attendant.call()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask the store in the block; StoreUnavailable at once where it is known to be down."""
        with self.call() as granted:
            if granted:
                yield
                return
        raise self.down()

    def failed(self, error: StoreUnavailable) -> None:
        """A call failed that asked nobody because all was calm."""
        if self.breaker.calm:
            self._log_failure(error)
        self.breaker.failed(error)
        self._attendant.call()

    def down(self) -> StoreUnavailable:
        """The error for those who cannot be answered."""
        cause = self.breaker.error
        if isinstance(cause, StoreBlocked):
            return cause
        error = StoreUnavailable(f"the store {self.alias!r} is down: {cause}", retry_after=self.probe_seconds)
        error.__cause__ = cause
        return error

    def meanwhile(self) -> MemoryStore:
        """A store of this process alone that decides while the other one is down; dropped when all is well."""
        with self._lock:
            if self._meanwhile is None:
                self._meanwhile = MemoryStore()
            return self._meanwhile

    def count(self, policy: conf.OnUnavailable) -> None:
        """Count a decision that a policy made in place of the store."""
        with self._lock:
            self.degraded[policy] += 1

    def settle_later(self, claim: Claim, changes: Amounts) -> None:
        """Settle a claim when the store is back; what is too much to keep is left to the end of its lease."""
        if not self._unsettled:
            logger.warning("the store %r cannot take what is given back: that is settled later", self.alias)
        self._unsettled.append((claim, changes))
        self._attendant.call()

    def advance_version_later(self) -> None:
        """Tell the store when it is back that the configuration has changed."""
        self._owes_version = True
        self._attendant.call()

    def retire(self) -> None:
        """Watch no more."""
        self._retired = True
        self.breaker.retire()

    def _open(self) -> Store:
        # A resource may name a store that the settings have no longer, which is no reason for errors everywhere.
        if self.alias not in conf.get(conf.STORES):
            raise StoreUnavailable(f"LIMITS['STORES'] has no {self.alias!r}: add it, or name another for the resource")
        return registry.store(self.alias)

    def _look(self) -> int | None:
        """Do what is to be done; returns after which time to look again."""
        if self._retired:
            return None
        if self.breaker.state is BreakerState.CLOSED:
            self._catch_up()
        else:
            self._probe()
        if self.breaker.state is BreakerState.HALF_OPEN:
            return self._pause_us // _STEPS_BACK
        if self._meanwhile is not None:
            self._meanwhile.advance_version()  # whoever waits there looks whether the store is back
        if not self.breaker.settle_down() or self._unsettled or self._owes_version:
            return self._pause_us
        self._meanwhile = None
        return None

    def _probe(self) -> None:
        """Take something of a limit that nobody else has: only what writes proves that a store can."""
        try:
            opened = self._open()
            if self._probes is None or self._probes.store is not opened:
                self._probes = LimitSet([_PROBE], store=opened)
            self._probes.try_acquire()
        except StoreUnavailable as error:
            self.breaker.probed(error)
        else:
            self.breaker.probed()

    def _catch_up(self) -> None:
        """Do what the store could not do before, until it cannot again."""
        try:
            opened = self._open()
            if self._owes_version:
                opened.advance_version()
                self._owes_version = False
            while self._unsettled:
                first = self._unsettled[0]
                _settle(opened, *first)
                with suppress(ValueError):  # more came than is kept, and this was the oldest
                    self._unsettled.remove(first)
        except StoreUnavailable as error:
            self.breaker.failed(error)

    def _log_failure(self, error: StoreUnavailable | None) -> None:
        logger.warning("the store %r could not answer: %s", self.alias, error)

    def _tell(self, state: BreakerState) -> None:
        if self._retired:
            return
        if state is BreakerState.CLOSED:
            logger.warning("the store %r is back", self.alias)
            signals.store_restored.send_robust(sender=None, alias=self.alias)
        else:
            error = self.breaker.error
            logger.warning("the store %r is down, policies decide without it: %s", self.alias, error)
            signals.store_degraded.send_robust(sender=None, alias=self.alias, error=error)


def _settle(store: Store, claim: Claim, changes: Amounts) -> None:
    claim.settled = False  # whoever released it takes it as done already
    try:
        store.settle(claim, changes)
    finally:
        claim.settled = True


_GUARDS: Final[dict[str, Guard]] = {}


def guard_of(alias: str | None = None) -> Guard:
    """The guard of a store alias (None: the default one)."""
    name = conf.get(conf.STORE) if alias is None else alias
    found = _GUARDS.get(name)
    return _GUARDS.setdefault(name, Guard(name)) if found is None else found


def aliases() -> list[str]:
    """The stores of the settings, and those that resources name and the settings have no longer."""
    return [*dict.fromkeys([*conf.get(conf.STORES), *_GUARDS])]


def forget_guards() -> None:
    """Start anew, since the settings are others."""
    while _GUARDS:
        _GUARDS.popitem()[1].retire()

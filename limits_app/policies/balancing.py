"""The balancers of the pools that this process uses, and the cool-downs of members, which all processes share.

Cool-downs are rows in the database. A change of them is announced as one of the configuration is, so that the next
acquire of each process is rejected as stale: then it reads the cool-downs of the pools that it uses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Final

from django.core.exceptions import SynchronousOnlyOperation

from limits_app import conf
from limits_app.acquiring import Balancer, Cooling, balancer_named, on_fork
from limits_app.engine import Namespace, lasts
from limits_app.engine.errors import Unresolved
from limits_app.engine.locks import RLock
from limits_app.models import changes, write_alias
from limits_app.models.namespaces import current_keys
from limits_app.models.own_queries import DATABASE_ERRORS
from limits_app.models.pool import cool_downs, keep_cool_down

logger = logging.getLogger("limits_app")

_MOST_BALANCERS: Final = 4096
_MOST_READS: Final = 3
"""How often a thread reads cool-downs that change while it reads them."""
_COOL_DOWNS_RETRY_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 5.0
"""How long a thread waits for another one that reads; then it reads too."""


class _Used:
    """A pool that this process uses: its balancer, and when its cool-downs were last read.

    `generation` is the number of changes of its cool-downs that this process knows of, and `read_in` the generation
    in which those of the balancer were read or reported. A thread that reads them holds `reading`.
    """

    __slots__ = ("balancer", "generation", "read_at", "read_in", "reading")

    def __init__(self, balancer: Balancer) -> None:
        self.balancer = balancer
        self.read_at = -inf
        self.generation = self.read_in = 0
        self.reading = RLock()  # reentrant, as that of `Balancers`


class Balancers:
    """The balancers of at most `most` pools; all resources of a pool share one.

    Cool-downs stay in this process where `shares_cool_downs` is False, as in tests with their own stores.
    `clock` returns seconds, and decides when cool-downs are read again; `read` reads those of a pool, by member.
    A thread waits `wait_seconds` for another one that reads them.
    """

    def __init__(
        self,
        most: int = _MOST_BALANCERS,
        *,
        clock: Callable[[], float] = monotonic,
        read: Callable[[str], Mapping[str, Cooling]] = cool_downs,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        self.shares_cool_downs = True
        self.clock = clock
        self._most = most
        self._read = read
        self._wait_seconds = wait_seconds
        self._by_pool: dict[tuple[Namespace, str], _Used] = {}
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Make new locks in a child process, which keeps the balancers."""
        self._lock = RLock()  # reentrant, because a finalizer may resolve limits while this thread holds the lock
        for used in self._by_pool.values():
            used.reading = RLock()

    @contextmanager
    def sharing(self, *, shares_cool_downs: bool, clock: Callable[[], float] = monotonic) -> Iterator[None]:
        """Share cool-downs with other processes or not, and read them again by another clock, in a block of a test."""
        before = self.shares_cool_downs, self.clock
        self.shares_cool_downs, self.clock = shares_cool_downs, clock
        try:
            yield
        finally:
            self.shares_cool_downs, self.clock = before

    def find(self, pool: str, load_balancing: str, weights: tuple[float, ...]) -> Balancer:
        """The balancer of a pool; a new one, with the same cool-downs, when the balancing or a weight has changed."""
        key = current_keys(), pool
        with self._lock:
            used = self._by_pool.get(key)
            if used is None:
                if len(self._by_pool) >= self._most:
                    del self._by_pool[next(iter(self._by_pool))]
                used = self._by_pool[key] = _Used(balancer_named(load_balancing)(weights))
            elif (used.balancer.load_balancing, used.balancer.weights) != (load_balancing, weights):
                balancer = balancer_named(load_balancing)(weights)
                balancer.cooling = used.balancer.cooling
                used.balancer = balancer
        self.read_cool_downs(pool)
        return used.balancer

    @property
    def are_used(self) -> bool:
        """Whether this process uses any pool."""
        return bool(self._by_pool)

    def must_read(self, pool: str) -> bool:
        """Whether the cool-downs of a pool have changed, or were last read longer ago than limits are used.

        False for a pool that was not used yet.
        """
        used = self._by_pool.get((current_keys(), pool))
        return used is not None and self._must_read(used)

    def drop_cool_downs(self) -> None:
        """Have the cool-downs of all pools read again before they are next used."""
        with self._lock:
            for used in self._by_pool.values():
                used.generation += 1
                used.read_at = -inf

    def read_cool_downs(self, pool: str) -> None:
        """Read the cool-downs of a pool that other processes have reported, if `must_read`.

        A thread that finds another one reading them waits for it. While the database is down, and in a coroutine, the
        last ones stay in force, and are read again a second later.
        """
        used = self._by_pool.get((current_keys(), pool))
        if used is None or not self._must_read(used):
            return
        reading = used.reading
        is_held = reading.acquire(timeout=self._wait_seconds)
        try:
            for _ in range(_MOST_READS):
                if self._must_read(used) and not self._read_once(pool, used):
                    return
        finally:
            if is_held:
                reading.release()

    def _must_read(self, used: _Used) -> bool:
        ttl_seconds = conf.get(conf.RESOLVER_TTL_SECONDS)
        return self.shares_cool_downs and not lasts(used.read_at, ttl_seconds, self.clock())

    def _read_once(self, pool: str, used: _Used) -> bool:
        """Read the cool-downs of a pool; rows do not replace later ones, and are read again after a change.

        Returns False where another read would return the same: those of a snapshot are used once, and not kept.
        """
        generation = used.generation
        try:
            cooling = self._read(pool)
        except (Unresolved, SynchronousOnlyOperation) as error:
            logger.debug("the cool-downs of the pool %s could not be read: %s", pool, error)
            used.read_at = self.clock() - max(0, conf.get(conf.RESOLVER_TTL_SECONDS) - _COOL_DOWNS_RETRY_SECONDS)
            return False
        is_current = not changes.reads_snapshot(write_alias())
        with self._lock:
            if generation >= used.read_in:
                used.balancer.cooling, used.read_in = dict(cooling.items()), generation
            if generation == used.generation and is_current:
                used.read_at = self.clock()
        return is_current

    def report(self, pool: str, member: str, cooling: Cooling) -> None:
        """Do not use a member for a time in any process; a length of 0 ends a cool-down.

        It ends at a whole second, so that the reports of many rejected requests are one change. Other processes learn
        of it when the transaction of the caller, if any, is committed. While the database is down this process alone
        knows of it, until the database is back.
        """
        cooling = cooling.to_whole_second()
        try:
            if self.shares_cool_downs and keep_cool_down(pool, member, cooling):
                changes.announce(write_alias(), changes.Touched.cool_downs())
        except DATABASE_ERRORS as error:
            logger.warning(
                "other processes were not notified that %s of the pool %s cools down: %s", member, pool, error
            )
        with self._lock:
            used = self._by_pool.get((current_keys(), pool))
            if used is not None:
                used.generation = used.read_in = used.generation + 1
                used.balancer.cool(member, cooling)

    def clear(self) -> None:
        """Forget all cool-downs of this process, and start each rotation again."""
        with self._lock:
            self._by_pool.clear()


balancers: Final = Balancers()

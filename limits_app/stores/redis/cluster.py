"""The Redis store on a cluster: one call for each tag among the scopes of a request.

The groups of scopes with one tag are charged in a fixed order, and when a later one rejects, what the earlier ones have
charged is refunded. So no more is ever admitted than the limits allow; for a moment, less may be.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from time import sleep
from typing import Any, Final

from redis import exceptions
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool

from limits_app.acquiring import on_fork, start_thread
from limits_app.engine import IDEMPOTENCY_LEVEL, LEASE_LEVEL, Amounts, Claim, RequestPlan, State
from limits_app.engine.errors import LeaseEnded, StaleConfiguration, StoreUnavailable
from limits_app.engine.locks import RLock
from limits_app.stores.redis.commands import RedisCommand
from limits_app.stores.redis.connections import Connections
from limits_app.stores.redis.errors import SLOT_MOVED, Unanswered, error_kind
from limits_app.stores.redis.opening import open_store, tag_of
from limits_app.stores.redis.store import RedisStore

logger = logging.getLogger("limits_app")

_UNKNOWN: Final = (exceptions.RedisError, exceptions.RedisClusterException, IndexError, AttributeError, KeyError)
"""What redis-py raises when it does not know which server has a key; it has gaps while it looks for the servers."""

Parts = Sequence[tuple[Claim, Sequence[int]]]
"""The parts of a claim, each with the positions of its limits in the claim."""

_LAST: Final = (IDEMPOTENCY_LEVEL, LEASE_LEVEL)
"""The levels of the limits that are charged last, and settled first."""
_MOST_MOVES: Final = 5
_SECONDS_BETWEEN_MOVES: Final = 0.02


class ClusterConnections:
    """The connections to all servers of a cluster; a call goes to the one that has its keys."""

    task_class = None
    """Tasks use threads."""

    def __init__(
        self,
        client: Any,
        set_aside: Callable[[RedisCommand], RedisCommand],
        *,
        is_ours: bool,
        connect_seconds: float,
        reply_seconds: float,
    ) -> None:
        """`is_ours` says that no other code uses the client, so that its connections are closed with the store."""
        self._client = client
        self._is_ours = is_ours
        if is_ours:
            weakref.finalize(self, client.disconnect_connection_pools)
        self._set_aside = set_aside
        self._connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self.drop_idle_of_tasks: Callable[[], object] = lambda: None
        self._by_node: dict[str, Connections] = {}
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start again without a thread in a child process."""
        # Reentrant, because a finalizer may settle while this thread holds the lock.
        self._lock = RLock()
        self._updating: Thread | None = None

    def run(self, call: RedisCommand) -> Any:
        """As `Connections.run`; follows keys that have moved to another server."""
        for _ in range(_MOST_MOVES):
            try:
                return self._connections(next(iter(call.keys()), None)).run(call)
            except StoreUnavailable as error:
                if error_kind(error.__cause__) not in SLOT_MOVED:
                    self._update_nodes()
                    raise
            self._update_nodes(self.reply_seconds)
            sleep(_SECONDS_BETWEEN_MOVES)
        raise StoreUnavailable(f"gave up after {_MOST_MOVES} attempts: the slots of the cluster keep moving")

    def listening_pool(self) -> ConnectionPool:
        """See Connections; every server announces what any of them does."""
        return self._connections(None).listening_pool()

    def close(self) -> None:
        """Close idle connections."""
        for connections in list(self._by_node.values()):
            connections.close()
        if self._is_ours:
            self._client.disconnect_connection_pools()

    def _connections(self, key: bytes | None) -> Connections:
        try:
            node = self._client.get_node_from_key(key) if key else self._client.get_random_primary_node()
            pool = self._client.get_redis_connection(node).connection_pool
        except _UNKNOWN as error:
            raise StoreUnavailable(f"the cluster has no server for these keys: {error}") from error
        with self._lock:
            connections = self._by_node.get(node.name)
            if connections is None:
                seconds = {"connect_seconds": self._connect_seconds, "reply_seconds": self.reply_seconds}
                connections = self._by_node[node.name] = Connections(pool, self._set_aside, **seconds)
            return connections

    def _update_nodes(self, seconds: float = 0) -> None:
        """Learn in a thread which server has which keys, and wait for that so long at most: servers may be frozen."""
        with self._lock:
            updating = self._updating
            if updating is None or not updating.is_alive():
                updating = self._updating = start_thread(self._initialize, "limits-cluster")
        if updating is not None and seconds:
            updating.join(seconds)

    def _initialize(self) -> None:
        with suppress(*_UNKNOWN):
            self._client.nodes_manager.initialize()


class RedisClusterStore(RedisStore):
    """A RedisStore on a cluster: `client` is a RedisCluster of redis-py, or `url` names one of its servers.

    A request is decided at the time of the server that is asked first.
    """

    clustered = True

    def __init__(self, *, url: str | None = None, client: RedisCluster | None = None, **options: Any) -> None:
        super().__init__(url=url, client=client, **options)

    def _connect(self, **seconds: float) -> Any:
        try:
            client = self._source.cluster()
        except _UNKNOWN as error:
            raise StoreUnavailable(f"the cluster cannot be reached: {error}") from error
        return ClusterConnections(client, self._calls.set_aside, is_ours=self._source.is_ours, **seconds)

    def _acquire_one(self, claim: Claim) -> bool:
        parts = self._parts(claim)
        if not parts or claim.shape.is_blocked:
            return super()._acquire_one(claim)
        now = None
        try:
            for part, _ in parts:
                if self._decide([part], self._calls.prepared(part.plan).acquire, now) is None:
                    break
                now = part.decided_at
        except Unanswered:  # an idempotency key may be charged, and its amounts stay with it
            raise
        except (StoreUnavailable, StaleConfiguration, LeaseEnded):
            self._undo(parts)
            raise
        if all(part.admitted for part, _ in parts):
            _join(claim, parts)
            claim.admitted = True
            return True
        self._undo(parts)
        self.peek(claim)
        claim.admitted = False
        return False

    def _undo(self, parts: Parts) -> None:
        """Refund the charges of a moment ago, an idempotency key first; from a failure on, they stay."""
        try:
            for part, _ in reversed(parts):
                part.undoes = True
                super()._settle(part, [-amount for amount in part.amounts])
        except StoreUnavailable:
            logger.warning("a rejected request could not be refunded on all servers", exc_info=True)

    def _settle(self, claim: Claim, changes: Amounts) -> bool:
        parts = self._parts(claim)
        if not parts:
            return super()._settle(claim, changes)
        kept_leases, is_begun = True, False
        for part, positions in reversed(
            parts
        ):  # the group of a lease is settled first, then that of an idempotency key
            try:
                kept_leases &= super()._settle(part, [changes[position] for position in positions])
                claim.is_over = claim.is_over or part.is_over
            except StoreUnavailable as error:
                if is_begun:
                    raise Unanswered(f"a release is settled on some servers only: {error}") from error
                raise
            if claim.is_over and not claim.unanswered:
                break
            is_begun = True
        return kept_leases

    def peek(self, claim: Claim) -> None:
        parts = self._parts(claim) or [(claim, range(len(claim.amounts)))]
        for part, _ in parts:
            super().peek(part)
        _join(claim, parts)

    def _parts(self, claim: Claim) -> Parts:
        """Divide a claim by the tags of its scopes; return nothing where these have the same tag."""
        parts: list[tuple[Claim, Sequence[int]]] = []
        for plan, positions in _divided(claim.plan):
            part = Claim(plan, [claim.amounts[position] for position in positions], claim.version)
            part.number, part.holder = claim.number, claim.holder
            part.admitted, part.decided_at, part.unanswered = claim.admitted, claim.decided_at, claim.unanswered
            part.undoes, part.has_run = claim.undoes, claim.has_run
            part.states = [claim.states[position] for position in positions] if claim.states else ()
            parts.append((part, positions))
        return parts


def _join(claim: Claim, parts: Parts) -> None:
    """Fill in the states of a claim, and the time, from its parts."""
    states: dict[int, State] = {}
    for part, positions in parts:
        states.update(zip(positions, part.states, strict=True))
        claim.decided_at = part.decided_at
    claim.states = [states[position] for position in range(len(states))]


def _divided(plan: RequestPlan) -> list[tuple[RequestPlan, list[int]]]:
    """Return a plan for each tag among the scopes, with the positions of its limits; nothing where there is one tag."""
    tags = [tag_of(short) for short in plan.short_keys()]
    if len(set(tags)) <= 1:
        return []
    if not isinstance(plan.store_cache, list):
        # The group of an idempotency key is charged last: a key is never charged without the amounts of its request.
        # After it comes that of the lease of a token, which decides whether the other groups are settled.
        last = {
            tags[limit.scope_index]: level for level in _LAST for limit in plan.shape.limits if limit.level == level
        }
        ordered = sorted(set(tags), key=lambda tag: (_LAST.index(last[tag]) + 1 if tag in last else 0, tag))
        plan.store_cache = [_with_tag(plan, tags, tag) for tag in ordered]
    return plan.store_cache


def _with_tag(plan: RequestPlan, tags: Sequence[bytes], tag: bytes) -> tuple[RequestPlan, list[int]]:
    limits = [limit for limit in plan.shape.limits if tags[limit.scope_index] == tag]
    return plan.part(limits), [limit.position for limit in limits]


def open_redis_store(
    alias: str | None = None, *, url: str | None = None, cluster: bool = False, **options: Any
) -> RedisStore:
    """Open the store behind a cache or a URL, or return the one that this process has opened before.

    `cluster` says that the URL is that of one server of a cluster. `options` are those of RedisStore;
    other options are another store. Raises StoreUnavailable for a cache that is not on Redis.
    """
    return open_store(RedisClusterStore if cluster else RedisStore, alias, url, options)

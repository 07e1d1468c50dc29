"""The Redis store on a cluster: one call for each tag among the scopes of a request.

The groups of scopes with one tag are charged in a fixed order, and when a later one rejects, what the earlier ones have
charged is refunded. So no more is ever admitted than the limits allow; for a moment, less may be.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock, Thread
from time import sleep
from typing import Any, Final, NamedTuple

from redis import exceptions
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool

from limits_app.core.algorithms import State
from limits_app.core.errors import StoreUnavailable
from limits_app.core.plan import Amounts, Claim, Plan, PlannedLimit
from limits_app.core.runtime import on_fork, start_thread
from limits_app.stores.redis.calls import UNDO, Command, PreparedAcquire, PreparedPlan
from limits_app.stores.redis.connections import Connections
from limits_app.stores.redis.exactly_once import InDoubt, Slots, Unanswered
from limits_app.stores.redis.keys import TAGS, Keys, tag_of
from limits_app.stores.redis.store import WITHDRAWN, RedisStore, Steps

logger = logging.getLogger("limits_app")

_UNKNOWN: Final = (exceptions.RedisError, exceptions.RedisClusterException, IndexError, AttributeError, KeyError)
"""What redis-py raises when it does not know which server has a key; it has gaps while it looks for the servers."""

_MOVED: Final = (exceptions.AskError, exceptions.TryAgainError)
_MOST_MOVES: Final = 5
_SECONDS_BETWEEN_MOVES: Final = 0.02


class Charged(NamedTuple):
    """A group of scopes that has charged a claim: when, and the records after and before."""

    group: PreparedPlan
    charged_at: int
    records: bytes


class ClusterConnections:
    """The connections to all servers of a cluster; a call goes to the one that has its keys."""

    task_class = None
    """Tasks use threads."""

    def __init__(
        self, client: Any, slots: Slots, *, is_ours: bool, connect_seconds: float, reply_seconds: float
    ) -> None:
        """`is_ours` says that no other code uses the client, so that its connections are closed with the store."""
        self._client = client
        self._is_ours = is_ours
        if is_ours:
            weakref.finalize(self, client.disconnect_connection_pools)
        self.slots = slots
        self._connect_seconds = connect_seconds
        self.reply_seconds = reply_seconds
        self._by_node: dict[str, Connections] = {}
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start again without a thread in a child process."""
        self._lock = Lock()
        self._updating: Thread | None = None

    def run(self, call: Command) -> Any:
        """As `Connections.run`; follows keys that have moved to another server."""
        for _ in range(_MOST_MOVES):
            try:
                return self._connections(call.key).run(call)
            except Unanswered:
                self._update_nodes()
                raise
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, _MOVED):
                    self._update_nodes()
                    raise
            self._update_nodes(self.reply_seconds)
            sleep(_SECONDS_BETWEEN_MOVES)
        raise StoreUnavailable("the keys of the cluster move faster than they can be followed")

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
            found = self._by_node.get(node.name)
            if found is None:
                seconds = {"connect_seconds": self._connect_seconds, "reply_seconds": self.reply_seconds}
                found = self._by_node[node.name] = Connections(pool, self.slots, **seconds)
            return found

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

    def __init__(self, *, url: str | None = None, client: RedisCluster | None = None, **options: Any) -> None:
        self._charged: InDoubt[Claim, list[Charged]] = InDoubt()
        self._settled_groups: InDoubt[Claim, set[PreparedPlan]] = InDoubt()
        super().__init__(url=url, client=client, **options)

    def _keys(self) -> Keys:
        return Keys(self._options["prefix"], clustered=True)

    def _connect(self) -> Any:
        try:
            client = self._source.cluster()
        except _UNKNOWN as error:
            raise StoreUnavailable(f"the cluster cannot be reached: {error}") from error
        seconds = {name: self._options[name] for name in ("connect_seconds", "reply_seconds")}
        return ClusterConnections(client, self._slots, is_ours=self._source.is_ours, **seconds)

    def _acquire_one(self, claim: Claim) -> Steps[Claim | None]:
        groups = self._groups(claim.plan)
        charged: list[Charged] = []
        states: dict[PlannedLimit, State] = {}
        try:
            for group in groups:
                now = claim.decided_at if charged else None
                decision = yield from self._decide([claim], [group], group.acquire, now)
                if decision.claim is None:
                    break
                charged.append(Charged(group, claim.decided_at, decision.records))
                states.update(zip(group.limits, claim.states, strict=True))
        except StoreUnavailable:
            claim.admitted = None
            yield from self._undo(claim, charged)
            raise
        except BaseException:
            claim.admitted = None
            self._charged.keep(claim, charged)
            raise
        if len(charged) == len(groups):
            claim.states = [states[limit] for limit in claim.plan.limits]
            return claim
        yield from self._undo(claim, charged)
        if len(groups) > 1:
            yield from self._peek(claim)
        claim.admitted = False
        return None

    def _undo(self, claim: Claim, charged: Sequence[Charged]) -> Steps[None]:
        """Refund the charges of a moment ago; those that cannot be refunded now stay."""
        changes = [-amount for amount in claim.amounts]
        for group, charged_at, records in charged:
            claim.decided_at = charged_at
            try:
                yield from self._settle_plan(claim, changes, group, UNDO, records)
            except StoreUnavailable:
                logger.warning("what a rejected request charged on one server could not be refunded", exc_info=True)

    def _settle(self, claim: Claim, changes: Amounts) -> Steps[None]:
        if not claim.admitted and (claim in self._acquires_in_doubt or claim in self._charged):
            yield from self._settle_doubt(claim, changes)
            return
        settled = self._settled_groups.take(claim) or set()
        lease_was_lost = False
        try:
            for group in self._groups(claim.plan):
                if group not in settled and any(group.amounts(changes)):
                    lease_was_lost = (yield from self._settle_plan(claim, changes, group)) or lease_was_lost
                    settled.add(group)
        except BaseException:
            self._settled_groups.keep(claim, settled)
            raise
        finally:
            if lease_was_lost:
                claim.lose_lease()
        self._settled(claim)

    def _settle_doubt(self, claim: Claim, changes: Amounts) -> Steps[None]:
        """Settle in the groups that have charged a claim that was interrupted or not answered."""
        charged = self._charged.take(claim) or []
        doubt = self._acquires_in_doubt.take(claim)
        try:
            if doubt is not None:
                call, claims, plans = doubt
                reply: bytes = yield call.withdrawal()
                if reply != WITHDRAWN and self._read(claims, plans, reply, learn=False).claim is claim:
                    charged.append(Charged(plans[0], claim.decided_at, b""))
                doubt = None
            while charged:
                group, claim.decided_at, _ = charged[-1]
                yield from self._settle_plan(claim, changes, group)
                del charged[-1]
        except BaseException:
            self._charged.keep(claim, charged)
            if doubt is not None:
                self._acquires_in_doubt.keep(claim, doubt)
            raise
        finally:
            claim.admitted = None
        self._settled(claim)

    def _choice(self, plans: Sequence[PreparedPlan], **how: bool) -> PreparedAcquire | None:  # noqa: ARG002
        """Return None: scopes on several servers cannot be decided in one step."""
        return None

    def _peek_groups(self, plan: Plan) -> Sequence[Sequence[int]]:
        return [group.scope_indexes for group in self._groups(plan)]

    def _groups(self, plan: Plan) -> list[PreparedPlan]:
        found = plan.store_cache
        if not isinstance(found, list) or found[0].names is not self._names:
            tags = sorted({tag_of(short) for short in plan.short_keys()}) or TAGS[:1]
            found = plan.store_cache = [PreparedPlan(plan, self._names, self._codecs, tag) for tag in tags]
        return found

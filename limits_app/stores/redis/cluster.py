"""The Redis store on a cluster: one script for each tag among the scopes of a request.

The groups are asked in a fixed order, and when a later one refuses, what the earlier ones charged is given back.
So nothing is ever admitted beyond a limit, but for a moment less may be.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock, Thread
from time import sleep
from typing import Any, Final, TypeVar

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from limits_app.core.claim import Claim
from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.core.parts import Amounts, Part
from limits_app.core.plan import Plan
from limits_app.core.threads import started
from limits_app.core.unrolled import Record
from limits_app.stores.in_thread import AskedInThread
from limits_app.stores.redis.choosing import ask_one_after_the_other
from limits_app.stores.redis.commands import Call, Prepared, Slot
from limits_app.stores.redis.deciding import ADMITTED, NEVER_LEARNED, NEWCOMERS, NOT_YET
from limits_app.stores.redis.links import Link, Links, ServerError, Unanswered, unheard_in
from limits_app.stores.redis.moments import moment_of
from limits_app.stores.redis.names import TAGS, Names, tag_of
from limits_app.stores.redis.plans import PreparedPlan
from limits_app.stores.redis.remembered import Remembered
from limits_app.stores.redis.scripts import script
from limits_app.stores.redis.store import RedisStore

__all__ = ["ClusterLinks", "RedisClusterStore"]

C = TypeVar("C", bound=Claim)

logger = logging.getLogger("limits_app")

LOST_CLUSTER: Final = (RedisError, RedisClusterException, IndexError, AttributeError, KeyError)
"""What redis-py raises when it does not know who has a key; its own structures have gaps while it looks around."""

_MOST_PLANS: Final = 16_384
_MOST_PARTLY: Final = 10_000
_MOST_MOVES: Final = 5
_SECONDS_BETWEEN_MOVES: Final = 0.02
_MOVED: Final = frozenset({"MOVED", "ASK", "TRYAGAIN"})


class ClusterLinks:
    """The links to all servers of a cluster; a call goes to the one that has its keys."""

    encrypted = True
    """Tasks use threads."""

    def __init__(
        self, client: Any, reply_key: Any, *, is_ours: bool, connect_seconds: float, reply_seconds: float
    ) -> None:
        """`is_ours` says that nobody else uses the client, so that its connections are closed with the links."""
        self._client = client
        self._is_ours = is_ours
        if is_ours:
            weakref.finalize(self, client.disconnect_connection_pools)
        self._reply_key = reply_key
        self.reply_seconds = reply_seconds
        self._seconds = {"connect_seconds": connect_seconds, "reply_seconds": reply_seconds}
        self._by_node: dict[str, Links] = {}
        self._looking: Thread | None = None
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child has a lock of its own; nobody looks around in it."""
        self._lock = Lock()

    def run(self, call: Call, slot: Slot | None = None) -> Any:
        """As `Links.run`; follows keys that have moved to another server."""
        moved: StoreUnavailable | None = None
        for _ in range(_MOST_MOVES):
            try:
                return self._links(call.key).run(call, slot)
            except Unanswered:
                self._look_around()
                raise
            except StoreUnavailable as error:
                cause = error.__cause__
                if not isinstance(cause, ServerError) or cause.code not in _MOVED:
                    self._look_around()
                    raise
                self._look_around(self.reply_seconds)
                moved = error
                sleep(_SECONDS_BETWEEN_MOVES)
        raise StoreUnavailable(f"the keys of the cluster move faster than they can be followed: {moved}") from moved

    def open(self) -> Link:
        """A link to any of the servers."""
        return self._links(None).open()

    def close(self) -> None:
        """Close what is idle."""
        for links in list(self._by_node.values()):
            links.close()
        if self._is_ours:
            self._client.disconnect_connection_pools()

    def _links(self, key: bytes | None) -> Links:
        try:
            node = self._client.get_node_from_key(key) if key else self._client.get_random_primary_node()
            pool = self._client.get_redis_connection(node).connection_pool
        except LOST_CLUSTER as error:
            raise StoreUnavailable(f"the cluster has nobody for these keys: {error}") from error
        with self._lock:
            links = self._by_node.get(node.name)
            if links is None:
                links = self._by_node[node.name] = Links(pool, self._reply_key, **self._seconds)
            return links

    def _look_around(self, seconds: float = 0) -> None:
        """Have it learned who has which keys now, and wait for that so long at most: servers may stand still."""
        with self._lock:
            looking = self._looking
            if looking is None or not looking.is_alive():
                looking = self._looking = started(self._learn, "limits-cluster")
        if looking is not None and seconds:
            looking.join(seconds)

    def _learn(self) -> None:
        with suppress(*LOST_CLUSTER):
            self._client.nodes_manager.initialize()


class RedisClusterStore(RedisStore):
    """A RedisStore on a cluster: `client` is a RedisCluster of redis-py, or `url` names one of its servers.

    The scopes of a request are decided by the clock of the server that is asked first.
    """

    def __init__(self, *, url: str | None = None, client: RedisCluster | None = None, **options: Any) -> None:
        self._groups: dict[Plan, list[PreparedPlan]] = {}
        self._partly = Remembered[Claim, set[PreparedPlan]](_MOST_PARTLY)
        self._unheard = Remembered[Claim, tuple[Slot, PreparedPlan]](_MOST_PARTLY)
        super().__init__(url=url, client=client, **options)

    def _open_links(self, connect_seconds: float, reply_seconds: float) -> tuple[Names, Any]:
        names = Names(self._options["prefix"], spread=True)
        try:
            client = self._source.cluster()
        except LOST_CLUSTER as error:
            raise StoreUnavailable(f"the cluster cannot be reached: {error}") from error
        seconds = {"connect_seconds": connect_seconds, "reply_seconds": reply_seconds}
        return names, ClusterLinks(client, names.reply, is_ours=self._source.is_ours, **seconds)

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        done: list[tuple[PreparedPlan, bytes]] = []
        unheard: list[tuple[Slot, PreparedPlan]] = []
        groups = self._grouped(claim.plan)
        records: dict[Part, Record] = {}
        try:
            for group in groups:
                now = claim.decided_at if done else None
                reply = self._acquire_group(claim, group, now, unheard)
                if not claim.admitted:
                    break
                done.append((group, reply))
                records |= zip(group.parts, claim.records, strict=True)
        except BaseException:
            claim.admitted = None
            self._undo(claim, done)
            if unheard and self.settle_later is not None:
                self._unheard.keep(claim, unheard[0])
                self.settle_later(claim, [-amount for amount in claim.amounts])
            raise
        if len(done) < len(groups):
            self._undo(claim, done)
            if len(groups) > 1:
                self.peek(claim)
            return False
        claim.records = [records[part] for part in claim.plan.parts]
        return True

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`; they are on several servers, so that choice and charge are no single step."""
        return ask_one_after_the_other(self, claims, emptiest_first=emptiest_first, failover=failover)

    def _settle_now(self, claim: Claim, changes: Amounts) -> None:
        """Settle; groups that are settled stay so when another one fails."""
        unheard = None if claim.admitted else self._unheard.take(claim)
        if unheard is not None:
            self._settle_unheard(claim, changes, *unheard)
            return
        done = (self._partly.take(claim) if self._partly else None) or set()
        lapsed = False
        try:
            for group in self._grouped(claim.plan):
                if group.beside(claim.plan, changes) and group not in done:
                    lapsed = self._settle_in(claim, changes, group) or lapsed
                    done.add(group)
            self._settled(claim)
        except BaseException:
            self._partly.keep(claim, done)
            raise
        finally:
            if lapsed:
                claim.lapse()

    def _settle_unheard(self, claim: Claim, changes: Amounts, slot: Slot, group: PreparedPlan) -> None:
        """Settle where a server has charged a claim and was not heard, if it has; all else was given back before."""
        try:
            reply = slot.reply_in(self._links.run(slot.looking(group.acquire.tag)))
            if reply is not None and reply[0] in ADMITTED:
                self._decisions.fill(claim, group, reply, NEVER_LEARNED)
                self._settle_in(claim, changes, group)
        except StoreUnavailable:
            self._unheard.keep(claim, (slot, group))
            raise
        finally:
            claim.admitted = None
        self._settled(claim)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`; one call for each tag."""
        by_tag: dict[bytes, list[Claim]] = {}
        for claim in claims:
            for tag in {tag_of(ask.part.short_key) for _, ask in claim.plan.leases}:
                by_tag.setdefault(tag, []).append(claim)
        lost = [one for tag, some in by_tag.items() for one in self._renew_leases(some, tag)]
        return [claim for claim in claims if claim in lost]

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`; scopes are read one after the other."""
        if not claim.plan.parts:
            super().peek(claim)
            return
        records = []
        for part in claim.plan.parts:
            claim.decided_at, (states,) = self._drive(self._loader.look([part], claim.plan.version))
            records.append(states)
        claim.records = records
        self._moments.heard(claim.decided_at)

    def advance_version(self) -> int:
        """See `Store.advance_version`; the version is kept beside the scopes of every tag."""
        version = self._next_version()
        for tag in TAGS[1:]:
            prepared = Prepared(script("raise_version"), [self._names.version_at(tag)], b"", numbers=1, tag=tag)
            self._links.run(prepared.call((*self._moments.header(), version)))
        self._changed()
        return version

    aacquire = AskedInThread.aacquire
    aacquire_first = AskedInThread.aacquire_first
    asettle = AskedInThread.asettle

    def _grouped(self, plan: Plan) -> list[PreparedPlan]:
        groups = self._groups.get(plan)
        if groups is None:
            if len(self._groups) >= _MOST_PLANS:
                self._groups.clear()
            tags = sorted({tag_of(part.short_key) for part in plan.parts}) or TAGS[:1]
            groups = self._groups[plan] = [PreparedPlan(plan, self._names, self._codecs, tag) for tag in tags]
            for group in groups:
                self._prepared.define(group.codecs)
        return groups

    def _acquire_group(
        self, claim: Claim, group: PreparedPlan, now: int | None, unheard: list[tuple[Slot, PreparedPlan]]
    ) -> bytes:
        """What one server decides; where nobody hears that, it is told whose record has it."""
        while True:
            call = self._phrases.asking(claim, group, now)
            try:
                reply: bytes = self._links.run(call)
            except BaseException as error:
                slot = unheard_in(call, error)
                if slot is not None:
                    unheard.append((slot, group))
                raise
            if reply[0] not in NOT_YET:
                break
            self._put_right(reply, group.parts, claim.plan.version)
        if self._decisions.fill(claim, group, reply, NEVER_LEARNED) == NEWCOMERS:
            self._prepared.define_anew(group.codecs)
        return reply

    def _undo(self, claim: Claim, done: Sequence[tuple[PreparedPlan, bytes]]) -> None:
        """Give back what was charged a moment ago; what cannot be given back now stays spent."""
        for group, reply in done:
            claim.decided_at = moment_of(reply)
            self._moments.heard(claim.decided_at)
            leases = [
                (self._names.leases(ask.part.short_key, ask.key), member)
                for ask, _, member in self._phrases.leases(claim)
                if ask in group.asks
            ]
            try:
                changes = [-amount for amount in claim.amounts]
                charges = group.beside(claim.plan, changes)
                if not self._drive(self._loader.put_back(group, reply, charges, leases)):
                    self._links.run(self._phrases.changing(claim, changes, group, group.undo))
            except StoreUnavailable:
                logger.warning("what a refused request took on one server could not be given back", exc_info=True)

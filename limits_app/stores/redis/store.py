"""The Redis store: its verbs for threads, over connections of redis-py, and for tasks, over those of redis.asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from struct import iter_unpack, pack
from typing import Any, Final, TypeVar

from limits_app.acquiring.leases import Renewer
from limits_app.acquiring.runtime import on_fork
from limits_app.engine.changes import ALL, Change, ChangeLog, Changes, announced, least_version
from limits_app.engine.clock import Clock, as_clock
from limits_app.engine.errors import NotShareable, StoreUnavailable
from limits_app.engine.keys import short_key
from limits_app.engine.plan import Amounts, Claim
from limits_app.engine.record import lease_us_of
from limits_app.stores.in_thread import Settling
from limits_app.stores.redis.calls import Command
from limits_app.stores.redis.connections import Connections
from limits_app.stores.redis.hints import ServerClock
from limits_app.stores.redis.opening import DEFAULTS, Keys, Source, open_store
from limits_app.stores.redis.records import Steps
from limits_app.stores.redis.task_connections import TaskConnections
from limits_app.stores.redis.usage import UsageCollector
from limits_app.stores.redis.verbs import Verbs
from limits_app.stores.redis.waking import Waking
from limits_app.stores.steps import GRACE_US

logger = logging.getLogger("limits_app")

R = TypeVar("R")

_POLL_US: Final = (1_000_000, 1_000_000)


class RedisStore(Verbs):
    """Keeps state on a Redis or Valkey server, for all machines that reach it.

    Its server is given by the `alias` of a cache of Django or django-redis, a `url`, or a `client` of redis-py.
    All keys start with `prefix`. `clock` returns microseconds and replaces the clock of the server, for tests.
    Open it with `open_redis_store`: one store for each process and server is enough.
    Verbs raise StoreUnavailable when the server cannot be reached within `connect_seconds`, or does not answer within
    `reply_seconds`. A call whose reply was lost is sent again, and is executed once.
    """

    remote = True
    counting = True

    def __init__(
        self,
        alias: str | None = None,
        *,
        url: str | None = None,
        client: Any = None,
        clock: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        unknown = options.keys() - DEFAULTS.keys()
        if unknown:
            raise TypeError(f"RedisStore has no option {min(unknown)!r}; it has {', '.join(DEFAULTS)}")
        self._source = Source(alias, url, client)
        self._options = {**DEFAULTS, **options}
        self.prefix: str = self._options["prefix"]
        self.poll_us: tuple[int, int] | None = _POLL_US
        self.settle_later: Callable[[Claim, Amounts], object] | None = None
        """See RemoteStore; without it, calls in doubt are settled before the next request."""
        server_clock = ServerClock(clock, self._options["idle_factor"], GRACE_US)
        self.clock = Clock(server_clock.estimate) if clock is None else as_clock(clock)
        self.lease_us = lease_us_of(self._options["lease_seconds"])
        super().__init__(Keys(self.prefix, clustered=self.clustered), server_clock)
        self._connections = self._connect(
            **{name: self._options[name] for name in ("connect_seconds", "reply_seconds")}
        )
        self._tasks = TaskConnections(self._connections)
        self._settling = Settling()
        usage = UsageCollector(self._connections.run, self._calls)
        self.collect_counts, self.forget_counts = usage.collect, usage.forget
        self.oldest_hour = usage.oldest_hour
        self._waking = Waking(self._connections, self._calls, self._rejections.forget)
        self.line = self._waking.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        on_fork(self)

    def after_fork(self) -> None:
        """Leave to the parent process what it has still to settle."""
        self._unfinished.clear()

    def _connect(self, **seconds: float) -> Any:
        return Connections(self._source.pool(), self._slots, self._calls.set_aside, **seconds)

    def __reduce__(self) -> tuple[object, ...]:
        if self._clock.now is not None:
            raise NotShareable("a store with its own clock cannot be sent to another process: leave clock= out")
        return open_store, (type(self), *self._source.address(), self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source})"

    # The verbs for threads.

    def acquire(self, claim: Claim) -> bool:
        return self.acquire_first((claim,)) is not None

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        """See Store. Claims with different limits in one scope are decided in several steps."""
        claims = self._without_rejected(claims, emptiest_first=emptiest_first, failover=failover)
        if not claims:
            return None
        if self._unfinished and self.settle_later is None:
            self._settle_unfinished()
        try:
            return self._run(self._choose(claims, emptiest_first=emptiest_first, failover=failover))
        except BaseException:
            self._refund_in_doubt(claims)
            raise

    def settle(self, claim: Claim, changes: Amounts) -> None:
        token = object()
        try:
            if self._settling.begin(claim, token):
                self._run(self._settle(claim, changes))
        finally:
            self._settling.end(claim, token)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        lost = set[Claim]()
        for tag in sorted({self._names.tag(short) for claim in claims for short in claim.plan.short_keys()}):
            call, leases = self._calls.renew(claims, tag)
            reply = self._connections.run(call) if leases else b""
            for (claim, limit), (since,) in zip(leases, iter_unpack("<d", reply), strict=True):
                if since:
                    claim.note_held_since(limit, int(since))
                else:
                    lost.add(claim)
        return [claim for claim in claims if claim in lost]

    def peek(self, claim: Claim) -> None:
        self._run(self._peek(claim))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        for scope in scopes:
            self._run(self._records.reset(scope, keys))
            self._waking.announce(self._names.scope(short_key(scope)))
        self._rejections.forget()
        self.line.notify(scopes)

    def version(self, namespace: str = "") -> int:
        return int(self._connections.run(Command("GET", self._names.version(self._names.tags[0], namespace))) or 0)

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        """See Store. On a cluster, the version is stored with each tag, and the log with the first one."""
        first, *others = [self._names.version(tag, namespace) for tag in self._names.tags]
        encoded = b"".join([change.encode() for change in announced(changes)])
        keys, plan = [first, self._names.changes(namespace)], pack("<dd", 1, least_version())
        version = int(self._connections.run(self._calls.script("version", keys, plan, encoded)))
        for key in others:
            self._connections.run(self._calls.script("version", [key], pack("<dd", 0, version)))
        self._rejections.forget()
        self.line.notify_all()
        self._waking.announce()
        return version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        keys = self._names.version(self._names.tags[0], namespace), self._names.changes(namespace)
        current, log = self._connections.run(Command("MGET", *keys))
        return ChangeLog(int(current or 0), log or b"").since(version)

    def eviction_policy(self) -> str | None:
        """Return what the server evicts when its memory is full, such as `noeviction`; None where it is unknown."""
        lines = bytes(self._connections.run(Command("INFO", "memory"))).decode().splitlines()
        return dict(line.partition(":")[::2] for line in lines).get("maxmemory_policy")

    def close(self) -> None:
        """Close idle connections; later calls open others."""
        self._waking.close()
        self._tasks.after_fork()
        self._connections.close()

    # The verbs for tasks.

    async def aacquire(self, claim: Claim) -> bool:
        return await self.aacquire_first((claim,)) is not None

    async def aacquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        claims = self._without_rejected(claims, emptiest_first=emptiest_first, failover=failover)
        if not claims:
            return None
        try:
            return await self._arun(self._choose(claims, emptiest_first=emptiest_first, failover=failover))
        except asyncio.CancelledError:
            for claim in claims:
                if claim in self._unfinished and self._settling.begin(claim):
                    self._settle_in_thread(claim, [-amount for amount in claim.amounts])
            raise
        except BaseException:
            self._refund_in_doubt(claims)
            raise

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        if not self._settling.begin(claim):
            return
        try:
            await self._arun(self._settle(claim, changes))
        except asyncio.CancelledError:
            self._settle_in_thread(claim, changes)
            raise
        except BaseException:
            self._settling.end(claim)
            raise
        self._settling.end(claim)

    async def apeek(self, claim: Claim) -> None:
        await self._arun(self._peek(claim))

    # Sending.

    def _run(self, steps: Steps[R]) -> R:
        """Send the calls of a verb from this thread."""
        try:
            call = next(steps)
            while True:
                try:
                    reply = self._connections.run(call)
                except StoreUnavailable as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the result of the generator
        finally:
            steps.close()

    async def _arun(self, steps: Steps[R]) -> R:
        """Send the calls of a verb from this task."""
        try:
            call = next(steps)
            while True:
                try:
                    reply = await self._tasks.run(call)
                except StoreUnavailable as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the result of the generator
        finally:
            steps.close()

    def _without_rejected(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Sequence[Claim]:
        """Return the claims that may be admitted, as far as that is known."""
        for claim in claims:
            claim.repeated_us = None
        if not failover:
            return claims if emptiest_first else claims[:1]
        if not self._rejections:
            return claims
        return [claim for claim in claims if claim.version is not None or not self._rejections.reject(claim)]

    # Claims of which it is not known whether they were admitted, because a reply was lost.

    def _refund_in_doubt(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            if claim in self._unfinished and self.settle_later is not None:
                self.settle_later(claim, [-amount for amount in claim.amounts])

    def _settle_unfinished(self) -> None:
        with suppress(StoreUnavailable):
            for claim in list(self._unfinished):
                if claim.admitted is None:
                    self.settle(claim, [-amount for amount in claim.amounts])

    def _settle_in_thread(self, claim: Claim, changes: Amounts) -> None:
        def run() -> None:
            try:
                self._run(self._settle(claim, changes))
            except StoreUnavailable as error:
                if self.settle_later is None:
                    logger.warning("a cancelled request could not be settled: %s", error)
                else:
                    self.settle_later(claim, changes)
            finally:
                self._settling.end(claim)

        asyncio.get_running_loop().run_in_executor(None, run)

"""Plans: a request compiled once into a shape, and bound to the scopes of a client."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Final

from limits_app.engine.algorithms import Rule, rule_of_class
from limits_app.engine.amounts import MAX_AMOUNT, MILLI, checked_amount, checked_money
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, LEASE_LEVEL, Scope, digest_in, short_key
from limits_app.engine.limit_kinds import is_metered
from limits_app.engine.limits import CallLimit, CountedUnit, RateLimit
from limits_app.engine.record import Record, Schema
from limits_app.engine.scoped_limits import PlannedScope, PricedKey

Amounts = Sequence[int]
"""Amounts, or changes of amounts, in parts: one for each limit of a plan."""

ReportedUse = Mapping[int, int]
"""The reported use in parts, by the position of the limit; limits of which none was reported are missing."""

Bucket = tuple[str, str]
"""The key of a scope and the key of a limit."""

MOST_SHAPES: Final = 256
"""How many shapes of one set of limits are kept."""


class PlannedLimit:
    """One limit of a plan: rule `index` of scope `scope_index`, and amount `position` of the request.

    `level` is where it was set. `every_key` are the keys that requests may use for it, and `keys` those of them that a
    request of this shape names, whose amounts are added up; `key` is the first. A limit in money is also charged for
    the `priced` keys, which are those of units. `priority` is the class of the request where the limit keeps a share
    free for higher ones, else empty: its rule then leaves that share free.
    """

    def __init__(
        self,
        schema: Schema,
        index: int,
        scope_index: int,
        position: int,
        *,
        level: str,
        every_key: tuple[str, ...],
        named: Collection[str] = (),
        priced: tuple[PricedKey, ...] = (),
        priority: str = "",
    ) -> None:
        self.schema = schema
        self.index = index
        self.scope_index = scope_index
        self.position = position
        self.level = level
        self.every_key = every_key
        rule = schema.rules[index]
        self.priority = priority if rule.limit.keep else ""
        self.rule: Rule = rule_of_class(rule, priority) if self.priority else rule
        self.is_permit = self.rule.is_permit
        self.is_sum = len(every_key) > 1
        """Whether the amounts of several keys are added up for it."""
        self.adds_up = self.is_sum or bool(priced)
        """Whether its amount may be another one than that of its key."""
        self.priced = priced
        self.keys = tuple([key for key in every_key if key in named]) or (() if priced else every_key[:1])
        self.key = self.keys[0] if self.keys else every_key[0]
        limit = self.rule.limit
        self.refunds = not isinstance(limit, RateLimit | CallLimit) or limit.algorithm.refunds
        """Whether unused amounts are refunded."""
        self.must_report = False
        """Whether usage must be reported; the shape sets it."""
        self.most_units = -1 if self.is_sum else min(self.rule.most_parts // self.rule.parts_per_amount, MAX_AMOUNT)
        """The largest whole amount that the limit can ever admit; -1 where amounts are added up."""

    @property
    def is_beside(self) -> bool:
        """Whether it counts amounts that another limit of the request counts too."""
        limit = self.rule.limit
        return isinstance(limit, CountedUnit) and (limit.is_money or limit.member != "")

    def moved(self, scope_index: int, position: int, named: Collection[str] = ()) -> PlannedLimit:
        """Return the same limit at another position."""
        return PlannedLimit(
            self.schema,
            self.index,
            scope_index,
            position,
            level=self.level,
            every_key=self.every_key,
            named=named,
            priority=self.priority,
        )

    def bounded(self, parts: int) -> int:
        """Return `parts`, for a soft limit at most `most_parts`."""
        return min(parts, self.rule.most_parts) if self.rule.is_soft else parts


class PlanShape:
    """A compiled kind of request: the requested amounts of the `named` limits, and one unit of every other limit.

    It has no key of a scope and no version of the configuration, so that all clients with the same limits share it.

    - `limits` are all limits, scope by scope; amounts and changes are in their order. `permits` are those that are
      resource limits, `by_key` those with a key.
    - `scopes` are the scopes with limits in it, `schemas` their schemas, and `positions` where they are in the set.
    - `has_sums` says whether the amounts of several keys are added up for a limit.
    - `must_report` are the keys whose usage must be reported: those of rates, and `many_calls`, of which more than one
      call is requested; `reporting` are their limits. `needs_settling` is True where each release settles.
    - `rank` is that of its class, from 0 for the highest on; the lowest of those of its scopes.
    - `fixed_amounts` are the amounts where none depends on the request. `fits` is False when an amount that is not
      named exceeds what its limit can ever admit.
    - A plan that `is_blocked` is always rejected. One that `is_degraded` is decided without its store, which is
      unavailable. One that `is_credit` can only be settled: it reduces recorded use that belongs to no claim.
    - `slice_us` is for how many microseconds slices of it may be held; 0: it has none. `recorded_us` is for how long
      the store records a slice of which this is the shape, so that resets leave it charged; 0 for others. `in_slices`
      is the shape of its slices, once one was taken.
    - `token_lease` is the permit that is the lease of a token, which holds claims of this shape; None for others.
    - `store_cache` is for values that a store computes for the shape once.
    - `is_priced` says whether limits in money are charged for units with prices.
    """

    in_slices: PlanShape | None = None
    store_cache: object = None

    def __init__(
        self,
        limits: Sequence[PlannedLimit],
        scopes: Sequence[PlannedScope],
        positions: Sequence[int],
        named: Collection[str],
        *,
        many_calls: Collection[str] = (),
        is_credit: bool = False,
        recorded_us: int = 0,
        rank: int = 0,
    ) -> None:
        self.limits = tuple(limits)
        self.scopes, self.positions, self._no_changes = tuple(scopes), tuple(positions), [0] * len(limits)
        self.schemas = tuple([scope.schema for scope in scopes])
        self.is_credit, self.recorded_us, self.rank = is_credit, recorded_us, rank
        self.is_blocked = any(schema.is_blocked for schema in self.schemas)
        self.is_degraded = any(scope.degraded for scope in scopes)
        self.slice_us = 0 if is_credit else min([scope.slice_us for scope in scopes], default=0)
        self.counts_usage = not is_credit and any(schema.counts_usage for schema in self.schemas)
        self.permits = tuple([limit for limit in limits if limit.is_permit])
        self.token_lease = next((limit for limit in self.permits if limit.level == LEASE_LEVEL), None)
        self.must_report = frozenset(many_calls).union(
            [key for limit in limits if is_metered(limit.rule.limit) for key in limit.keys]
        )
        for limit in limits:
            limit.must_report = bool(limit.keys) and limit.key in self.must_report
        self.reporting = tuple([limit for limit in limits if limit.must_report])
        self.needs_settling = bool(self.permits or self.must_report)
        self.has_sums = any(limit.is_sum for limit in limits)
        self.by_key: dict[str, tuple[PlannedLimit, ...]] = {}
        for limit in limits:
            for key in limit.keys:
                self.by_key[key] = (*self.by_key.get(key, ()), limit)
        self.named = tuple([limit for limit in limits if limit.key in named])
        self._idempotency = tuple([limit for limit in limits if limit.level == IDEMPOTENCY_LEVEL])
        self._defaults = [
            0 if limit.key in named or limit.priced else limit.bounded(limit.rule.parts_per_unit)
            for limit in self.limits
        ]
        self.fits = all(amount <= limit.rule.most_parts for limit, amount in zip(limits, self._defaults, strict=True))
        self.fixed_amounts: Amounts | None = None if self.named else tuple(self._defaults)
        self.is_priced = False
        self._parts: dict[tuple[int, ...], PlanShape] = {}

    @property
    def permit_keys(self) -> frozenset[str]:
        """The keys of the permits, without that of the lease of a token."""
        return frozenset([limit.key for limit in self.permits if limit is not self.token_lease])

    def part(self, limits: Iterable[PlannedLimit]) -> PlanShape:
        """Return the shape of some of its limits, which are in its order; it is compiled once."""
        kept = list(limits)
        at = tuple([limit.position for limit in kept])
        part = self._parts.get(at)
        if part is None:
            indexes = scope_indexes(kept)
            named = {key for limit in self.named for key in limit.keys}
            planned = [
                limit.moved(indexes.index(limit.scope_index), position, named) for position, limit in enumerate(kept)
            ]
            scopes = [self.scopes[index] for index in indexes]
            positions = [self.positions[index] for index in indexes]
            if len(self._parts) >= MOST_SHAPES:
                self._parts.clear()
            part = self._parts[at] = PlanShape(
                planned,
                scopes,
                positions,
                named,
                is_credit=self.is_credit,
                recorded_us=self.recorded_us,
                rank=self.rank,
            )
        return part

    def permits_only(self) -> PlanShape:
        """Return the shape of its permits; with the limits of an idempotency key, whose amount must be 0."""
        return self.part([limit for limit in self.limits if limit.is_permit or limit.level == IDEMPOTENCY_LEVEL])

    def amounts(self, requested: Mapping[str, object]) -> tuple[list[int], bool]:
        """Return the amounts of a request in parts, and whether they can ever fit.

        Raises InvalidRequest with the key of an invalid amount.
        """
        amounts, fits = [*self._defaults], self.fits
        for limit in self.named:
            amount = requested[limit.key]
            if type(amount) is int and 0 <= amount <= limit.most_units:
                amounts[limit.position] = amount * limit.rule.parts_per_amount
            else:
                parts = limit.bounded(_requested_parts(limit, requested))
                amounts[limit.position] = parts
                fits = fits and parts <= limit.rule.most_parts
        return self.charged(amounts, fits) if self.is_priced else (amounts, fits)

    def charged(self, amounts: list[int], fits: bool = True) -> tuple[list[int], bool]:
        """Add to amounts what limits in money are charged for units with prices; return whether they can ever fit."""
        return amounts, fits

    def own_amounts(self, amounts: Amounts) -> Amounts:
        """Return the amounts without what limits in money are charged for units with prices."""
        return amounts

    def is_reported(self, used: ReportedUse) -> bool:
        """Return whether the use of each limit of which it must be reported was; sums of several keys left aside."""
        for limit in self.reporting:  # noqa: SIM110 - a generator takes longer
            if limit.position not in used:
                return False
        return True

    def unreported(self, used: ReportedUse, reports: Container[str]) -> list[str]:
        """Return the keys whose usage must be reported and was not.

        `reports` are the reported keys, for limits that add up the amounts of several.
        """
        missing = []
        for limit in self.reporting:
            if limit.is_sum:
                missing += [key for key in limit.keys if key in self.must_report and key not in reports]
            elif limit.position not in used:
                missing.append(limit.key)
        return missing

    def changes(self, used: ReportedUse, amounts: Amounts) -> list[int]:
        """Return what to settle: the reported use, which is at least 0, less the charged amounts; and all permits."""
        changes = [*self._no_changes]
        for position in used:
            changes[position] = used[position] - amounts[position]
        for limit in self.permits:
            changes[limit.position] = -amounts[limit.position]
        return changes

    def changes_of_cancel(self, used: ReportedUse, amounts: Amounts, *, is_extended: bool = False) -> list[int]:
        """Return what to settle where amounts that must be reported and were not are refunded too.

        A refund then includes the idempotency key, so that the same request is charged when it is sent again; so does
        that of an acquisition that `is_extended`, whose extensions are refunded with it.
        """
        unused = dict.fromkeys([limit.position for limit in self.reporting if limit.position not in used], 0)
        changes = self.changes({**used, **unused}, amounts)
        refunded = [limit for limit in self.limits if limit.refunds and changes[limit.position] < 0]
        for limit in self._idempotency if refunded or is_extended else ():
            changes[limit.position] = -amounts[limit.position]
        return changes


class RequestPlan:
    """A shape that is bound to the scopes of a client: binding compiles nothing.

    `namespace` is that of the configuration, by whose version claims are current.
    `scopes` are in the order of those of the shape, and `scope_keys` are their keys. `store_cache` is for values that a
    store computes for the plan once; those that depend on no scope are kept with the shape. `records` are those of its
    scopes in a store that keeps records as they are, while that is in the `era` in which it has found them.
    """

    __slots__ = (
        "_buckets",
        "_short_keys",
        "era",
        "namespace",
        "records",
        "scope_keys",
        "scopes",
        "shape",
        "store_cache",
    )

    def __init__(self, shape: PlanShape, scopes: tuple[Scope, ...], namespace: str) -> None:
        self.shape = shape
        self.namespace = namespace
        self.scopes = scopes
        self.scope_keys = tuple([scope.key for scope in scopes])
        self.store_cache: object = None
        self.era: object = None
        self.records: list[Record] = []
        self._buckets: tuple[Bucket, ...] | None = None
        self._short_keys: list[bytes] | None = None

    @property
    def identity(self) -> tuple[PlanShape, tuple[str, ...]]:
        """What equal plans have in common: a client may be bound again for each request."""
        return self.shape, self.scope_keys

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """What each limit charges, in their order."""
        buckets = self._buckets
        if buckets is None:
            keys = self.scope_keys
            buckets = tuple([(keys[limit.scope_index], limit.rule.key) for limit in self.shape.limits])
            self._buckets = buckets
        return buckets

    @property
    def counters(self) -> bytes:
        """The digest of the namespace that its scopes are in."""
        return digest_in(self.scope_keys[0]) if self.scope_keys else b""

    def short_keys(self) -> list[bytes]:
        """Return the keys of the scopes as 16 bytes each, for stores in which long keys cost."""
        shorts = self._short_keys
        if shorts is None:
            shorts = self._short_keys = [short_key(key) for key in self.scope_keys]
        return shorts

    def part(self, limits: Sequence[PlannedLimit]) -> RequestPlan:
        """Return a plan of some of its limits, which are in its order."""
        scopes = tuple([self.scopes[index] for index in scope_indexes(limits)])
        return RequestPlan(self.shape.part(limits), scopes, self.namespace)


def scope_indexes(limits: Iterable[PlannedLimit]) -> list[int]:
    """Return which scopes some limits of a plan are in, in rising order."""
    return sorted({limit.scope_index for limit in limits})


def _requested_parts(limit: PlannedLimit, requested: Mapping[str, object]) -> int:
    """Return the sum of the requested amounts of a limit in parts of its unit."""
    return sum([parts_of(limit, requested[key]) for key in limit.keys])


def parts_of(limit: PlannedLimit, amount: object) -> int:
    """Return an amount in parts of a limit's unit; InvalidRequest names the limit and the rule that was broken."""
    rule = limit.rule
    if rule.is_money:
        return checked_money(limit.key, amount) * rule.parts_per_unit
    if type(amount) is int and 0 <= amount <= MAX_AMOUNT:
        return amount * rule.parts_per_unit
    if rule.is_counted:
        decimals = is_metered(rule.limit)
    else:
        decimals = isinstance(rule.limit, RateLimit | CallLimit) and rule.limit.algorithm.takes_decimals
    milli = checked_amount(limit.key, amount, decimals=decimals)
    return milli * rule.parts_per_unit // MILLI

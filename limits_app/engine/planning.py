"""Planning: which shape the plan of a request has, compiled for each form of request and kept, and if it is priced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from limits_app.engine.algorithms import Rule
from limits_app.engine.amounts import MILLI, OfClass, PermitsOnly, check_amounts, shown, to_milli
from limits_app.engine.charging import PricedShape
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.keys import BLOCK_LEVEL, IDEMPOTENCY_LEVEL, LEASE_LEVEL
from limits_app.engine.limit_kinds import CALL_KEYS, counts_requests, is_metered
from limits_app.engine.limits import AnyLimit, CountedUnit, ResourceLimit
from limits_app.engine.plan import MOST_SHAPES, PlannedLimit, PlanShape, RequestPlan
from limits_app.engine.priorities import known_priority, rank_of
from limits_app.engine.runtime import present
from limits_app.engine.scoped_limits import PlannedScope, ScopedLimits

logger = logging.getLogger("limits_app")

_MOST_WARNINGS: Final = 256
_WARNED: Final[set[object]] = set()
"""The warnings that this process has given about sets with the name of a resource."""

RequestKeys = tuple[str, ...] | None
"""The keys that a request names, in its order; None where it names none."""

LimitPlace = tuple[int, str]
"""The position of a scope among those of a set, and the key of a limit of it."""


class KeyWarnings:
    """Warns of keys that are not among the limits of a set, once for each key.

    The sets of all entities on a resource warn once together: the number of entities is not bounded.
    """

    def __init__(self, keys: Collection[str]) -> None:
        self._known = keys
        self._warned: set[object] = set()

    def report(self, key: object, resource: str | None, *, reported: bool) -> None:
        """Warn of a requested key, or raise InvalidRequest where the runtime says so.

        A key that is `reported` is one of a usage report, and has its own warning. That is never an error, since it
        would discard amounts that were really used.
        """
        raises = not reported and present().unknown_keys_raise()
        if reported and key in self._known:
            message = f"key {shown(key)} was not requested: its usage is not recorded"
        else:
            existing = ", ".join(self._known) or "none"
            skipped = "" if raises else " and is skipped"
            message = f"key {shown(key)} is not one of the limits of this request{skipped}; the set has: {existing}"
        if raises:
            raise InvalidRequest(message)
        warned = self._warned if resource is None else _WARNED
        if (resource, reported, key) not in warned and len(warned) < _MOST_WARNINGS:
            warned.add((resource, reported, key))
            logger.warning(message)


def forget_warnings() -> None:
    """Forget which warnings were logged, so that each is logged again."""
    _WARNED.clear()


class Shapes:
    """The shapes of the plans of one limit set, compiled for each form of request and kept; all its clients share them.

    `limits` are the limits by the keys that requests use, `rates` the keys whose amounts must be requested; those of
    totals need not be, since callers do not know of them, nor those of limits in money that each request charges.
    `on_unknown` is called with each requested key that the set does not have.
    """

    def __init__(self, scoped: Sequence[ScopedLimits], on_unknown: Callable[[object], None]) -> None:
        self.limits: dict[str, AnyLimit] = {}
        self._permits: dict[LimitPlace, str] = {}
        self._unpriced: list[_Unpriced] = []
        demanded: set[str] = set()
        requestable: dict[str, None] = {}
        for position, scope in reversed([*enumerate(scoped)]):
            for rule in scope.schema.rules:
                keys = scope.keys_of(rule)
                self._unpriced += _unpriced_of(scope, rule)
                self.limits |= {key: rule.limit for key in keys if not (rule.is_counted and key in self.limits)}
                if scope.level not in {BLOCK_LEVEL, IDEMPOTENCY_LEVEL, LEASE_LEVEL}:
                    requestable |= dict.fromkeys(keys)
                if rule.is_permit:
                    self._permits[position, rule.key] = keys[0]
                if is_metered(rule.limit) and not (scope.scope.total or rule.is_counted or _has_default(scope, rule)):
                    demanded.update(keys)
        self.unknown_keys = KeyWarnings(requestable)
        self.rates = [key for key in self.limits if key in demanded]
        self.unpriced_totals = [unpriced.key for unpriced in self._unpriced if unpriced.is_total]
        self._are_only_rates = bool(self.rates) and all(
            key in demanded or isinstance(limit, CountedUnit) for key, limit in self.limits.items()
        )
        self._scoped = scoped
        self._on_unknown = on_unknown
        self._by_form: dict[object, PlanShape] = {}
        self.by_keys: dict[RequestKeys, PlanShape] = {}
        """The shapes of requests by their keys, where the shape depends on nothing else."""

    def find(self, requested: Mapping[str, object] | None, holding: frozenset[LimitPlace]) -> PlanShape:
        """Return the shape of a request; permits of the limits `holding` are not taken again unless they are named.

        Raises InvalidRequest when a rate must be requested and nothing is, and for a request that is not a mapping.
        `{}` is the same as nothing. `NOTHING` takes nothing from rates and quotas; it is invalid where the set has only
        those.
        """
        if isinstance(requested, OfClass):
            return self._of_class(requested, holding)
        is_empty = type(requested) is dict and not requested
        if self.rates and (requested is None or is_empty or (self._are_only_rates and requested == {})):
            raise nothing_requested(", ".join(self.rates))
        if requested is None:
            return self._found(None, {}, holding)
        if not isinstance(requested, Mapping):
            raise InvalidRequest(f"requested must map keys to amounts, not {shown(requested)}")
        return self._found(tuple(requested), requested, holding)

    def _of_class(self, requested: OfClass, permits: frozenset[LimitPlace]) -> PlanShape:
        """See `find`, for a request that names its class, or of which only the permits are taken."""
        if isinstance(requested, PermitsOnly):
            return self._found((), requested, permits, requested.priority).permits_only()
        if self.rates and (requested.is_default or (self._are_only_rates and not requested)):
            raise nothing_requested(", ".join(self.rates))
        return self._found((), requested, permits, requested.priority)

    def extension(self, requested: object, priority: str | None = None) -> PlanShape:
        """Return the shape of a request for the named limits alone, by which an acquisition is extended.

        Raises InvalidRequest for a request that is not a mapping, is empty, or names units that a limit in money cannot
        charge.
        """
        if not isinstance(requested, Mapping) or not requested:
            raise InvalidRequest(
                f"an extension must map keys to amounts, as in {{'tokens': 200}}, not {shown(requested)}"
            )
        named = self._named(requested)
        if any(is_metered(self.limits[key]) for key in named) or len(named) < len(requested):
            self.check_priced(requested)
        named = [
            key for key in named if not (isinstance(self.limits[key], ResourceLimit) and _milli(requested[key]) == 0)
        ]
        many_calls = self._many_calls(named, requested)
        left_out = frozenset(self.limits).difference(named)
        return self._compiled(tuple(named), left_out, frozenset(), many_calls, priority=priority)

    def all(self) -> PlanShape:
        """Return the shape of a request for every limit."""
        return self._compiled(tuple(self.limits), frozenset(), frozenset(), frozenset())

    def _found(
        self,
        keys: tuple[str, ...] | None,
        requested: Mapping[str, object],
        holding: frozenset[LimitPlace],
        priority: str | None = None,
    ) -> PlanShape:
        named = self._named(requested)
        self.check_priced(requested)
        permit_keys = frozenset(self._permits.values())
        left_out = permit_keys.intersection([key for key in named if _milli(requested[key]) == 0])
        named = [key for key in named if key not in left_out or not isinstance(self.limits[key], ResourceLimit)]
        nested = frozenset([position for position in holding if self._permits.get(position) not in {None, *named}])
        many_calls = self._many_calls(named, requested)
        shape = self._compiled(tuple(named), left_out, nested, many_calls, priority=priority)
        # Zero permits, several calls and unknown keys are treated differently; the amounts of rates and quotas are not.
        metered = [key for key in named if is_metered(self.limits[key])]
        depends_on_keys = len(metered) == len(requested) and not self._unpriced
        if depends_on_keys and not permit_keys.intersection(requested) and not nested and keys != ():
            self.by_keys[keys] = shape
        return shape

    def _named(self, requested: Mapping[str, object]) -> list[str]:
        """Return the requested keys that the set has; `on_unknown` receives the others."""
        named = []
        entries: Iterable[tuple[object, object]] = requested.items()
        for key, amount in entries:
            if isinstance(key, str) and key in self.limits:
                named.append(key)
            else:
                check_amounts("requested", {key: amount})
                self._on_unknown(key)
        return named

    def _compiled(
        self,
        named: tuple[str, ...],
        left_out: frozenset[str],
        holding: frozenset[LimitPlace],
        many_calls: frozenset[str],
        *,
        priority: str | None = None,
    ) -> PlanShape:
        form = (named, left_out, holding, many_calls, priority)
        shape = self._by_form.get(form)
        if shape is None:
            if len(self._by_form) >= MOST_SHAPES:
                self._by_form.clear()
                self.by_keys.clear()
            shape = self._by_form[form] = _shape(
                self._scoped, named, left_out=left_out, holding=holding, many_calls=many_calls, priority=priority
            )
        return shape

    def check_priced(self, requested: Mapping[str, object]) -> None:
        """Raise InvalidRequest where a limit in money would not be charged, since the resource has no price.

        A limit over all resources does not concern requests that name no amounts of units. Keys that the set does not
        have are units too, except those that count requests.
        """
        if not self._unpriced or present().unpriced_is_free():
            return
        named = [key for key in requested if key in self.limits]
        units = [key for key in named if is_metered(self.limits[key])]
        units += [key for key in requested if key not in self.limits and key.rpartition(":")[2] not in CALL_KEYS]
        with_units = {key[: key.rfind(":") + 1] for key in units}
        for unpriced in self._unpriced:
            currency, key = unpriced.currency, unpriced.key
            if key not in named and (unpriced.prefix in with_units or not unpriced.is_total):
                scopes = [limits.scope for limits in self._scoped if limits.prefix == unpriced.prefix]
                resource = next((scope.resource for scope in scopes if scope.resource and not scope.member), None)
                raise InvalidRequest(
                    f"{resource or 'the resource'} has no price in {currency}, and a limit in {currency}: set a price, "
                    f"request an amount of {key!r}, or set LIMITS['UNPRICED'] = 'free'"
                )

    def _many_calls(self, named: Sequence[str], requested: Mapping[str, object]) -> frozenset[str]:
        """Return the keys of call limits of which more than one call is requested."""
        calls = [key for key in named if counts_requests(self.limits[key])]
        return frozenset([key for key in calls if _milli(requested[key]) > MILLI])


class _Unpriced(NamedTuple):
    """A limit in money, and a resource without a price in its currency; requests name its units with the prefix."""

    currency: str
    prefix: str
    is_total: bool

    @property
    def key(self) -> str:
        """The key under which requests name the currency."""
        return self.prefix + self.currency


def _unpriced_of(scope: ScopedLimits, rule: Rule) -> Iterator[_Unpriced]:
    """The resources that a limit in money is for, and that have no price in its currency; none for limits of code."""
    if rule.is_money and not rule.is_counted and scope.prices is not None:
        for prefix, prices in scope.prices_by_prefix():
            if not any(price.currency == rule.key for price in prices):
                yield _Unpriced(rule.key, prefix, scope.scope.total)


def _has_default(scope: ScopedLimits, rule: Rule) -> bool:
    """Whether each request of one resource takes something that a limit in money is charged for."""
    units = [key.rpartition(":")[2] for key, _ in scope.priced_keys(rule)]
    return any(unit in CALL_KEYS for unit in units)


def _milli(amount: object) -> int:
    """Return an amount in thousandths; -1 for an invalid one, which is rejected where amounts are read."""
    try:
        return to_milli(amount, decimals=True)
    except ValueError:
        return -1


def plan_for(
    scoped: Iterable[ScopedLimits],
    named: Collection[str],
    *,
    left_out: Collection[str],
    is_credit: bool = False,
    priority: str | None = None,
) -> RequestPlan:
    """Compile a request for the limits `named`, and for every call and resource limit that is not left out.

    `priority` is its class; None for that of each scope. A plan that `is_credit` can only be settled, with changes that
    are not positive.
    """
    listed = list(scoped)
    shape = _shape(listed, named, left_out=left_out, is_credit=is_credit, priority=priority)
    scopes = tuple([listed[position].scope for position in shape.positions])
    return RequestPlan(shape, scopes, present().namespace().configuration)


def _shape(
    scoped: Sequence[ScopedLimits],
    named: Collection[str],
    *,
    left_out: Collection[str],
    holding: Collection[LimitPlace] = (),
    many_calls: Collection[str] = (),
    is_credit: bool = False,
    priority: str | None = None,
) -> PlanShape:
    """Compile the shape of such a request; permits of `holding` are not taken, unless they are named.

    Of `many_calls` more than one is requested, so that their usage must be reported. `priority` is the class of the
    request; None for that of each scope.
    """
    limits: list[PlannedLimit] = []
    scopes: list[PlannedScope] = []
    positions: list[int] = []
    form = _Form(named, {*named, *_default_keys(scoped, left_out, holding)}, left_out, holding, is_credit)
    ranks = [0 if priority is None else rank_of(priority)]
    for position, scope in enumerate(scoped):
        before, of_class = len(limits), known_priority(scope.priority) if priority is None else priority
        for index, rule in enumerate(scope.schema.rules):
            if form.takes(scope, rule, position):
                planned = PlannedLimit(
                    scope.schema,
                    index,
                    len(scopes),
                    len(limits),
                    level=scope.level_of(index),
                    every_key=scope.keys_of(rule),
                    named=named,
                    priced=scope.priced_keys(rule),
                    priority=of_class,
                )
                limits.append(planned)
        if len(limits) > before:
            scopes.append(scope.planned)
            positions.append(position)
            ranks.append(rank_of(of_class))
    if any(limit.priced for limit in limits) and not is_credit:
        return PricedShape(limits, scopes, positions, named, many_calls=many_calls, rank=max(ranks))
    return PlanShape(limits, scopes, positions, named, many_calls=many_calls, is_credit=is_credit, rank=max(ranks))


class _Form(NamedTuple):
    """What a request takes: `taken` are the named keys and those of which each request takes 1; `holds` are
    the positions of permits that it holds already."""

    named: Collection[str]
    taken: Collection[str]
    left_out: Collection[str]
    holds: Collection[LimitPlace]
    is_credit: bool

    def takes(self, scope: ScopedLimits, rule: Rule, position: int) -> bool:
        """Whether a request takes from a limit of the scope at a position; a credit is not of units that are counted.

        What a member of a pool serves is counted where that member serves the request.

        Rates and quotas are taken from only when they are named, or in money when it is charged for a unit.
        """
        if isinstance(rule.limit, CountedUnit) and (self.is_credit or rule.limit.member not in {"", scope.member}):
            return False
        keys = scope.keys_of(rule)
        if any(name in self.named for name in keys):
            return not (rule.is_permit and keys[0] in self.left_out)
        if not is_metered(rule.limit):
            return keys[0] not in self.left_out and (position, rule.key) not in self.holds
        return any(name in self.taken for name, _ in scope.priced_keys(rule))


def _default_keys(
    scoped: Sequence[ScopedLimits], left_out: Collection[str], holds: Collection[LimitPlace]
) -> Iterator[str]:
    """The keys of which a request takes 1 without naming them."""
    for position, scope in enumerate(scoped):
        for rule in scope.schema.rules:
            key = scope.keys_of(rule)[0]
            if not is_metered(rule.limit) and key not in left_out and (position, rule.key) not in holds:
                yield key


def nothing_requested(names: str) -> InvalidRequest:
    """Return the error for a request that leaves out amounts that have no default."""
    return InvalidRequest(f"nothing is requested of {names}: rates and quotas need {{key: amount}}")

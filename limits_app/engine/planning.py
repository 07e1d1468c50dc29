"""Planning: which shape the plan of a request has, compiled for each form of request and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from limits_app.engine.amounts import MILLI, PermitsOnly, check_amounts, shown, to_milli
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, LEASE_LEVEL
from limits_app.engine.limit_kinds import counts_requests, is_metered
from limits_app.engine.limits import AnyLimit, ResourceLimit
from limits_app.engine.plan import MOST_SHAPES, PlannedLimit, PlannedScope, PlanShape, RequestPlan, ScopedLimits
from limits_app.engine.runtime import present

logger = logging.getLogger("limits_app")

_MOST_WARNINGS: Final = 256
_WARNED: Final[set[object]] = set()
"""The warnings that this process has given about sets with the name of a resource."""

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
    totals need not be, since callers do not know of them.
    `on_unknown` is called with each requested key that the set does not have.
    """

    def __init__(self, scoped: Sequence[ScopedLimits], on_unknown: Callable[[object], None]) -> None:
        self.limits: dict[str, AnyLimit] = {}
        self._permits: dict[LimitPlace, str] = {}
        demanded: set[str] = set()
        requestable: dict[str, None] = {}
        for position, scope in reversed([*enumerate(scoped)]):
            for rule in scope.schema.rules:
                keys = scope.keys_of(rule)
                self.limits |= dict.fromkeys(keys, rule.limit)
                if scope.level not in {IDEMPOTENCY_LEVEL, LEASE_LEVEL}:
                    requestable |= dict.fromkeys(keys)
                if rule.is_permit:
                    self._permits[position, rule.key] = keys[0]
                if is_metered(rule.limit) and not scope.scope.total:
                    demanded.update(keys)
        self.unknown_keys = KeyWarnings(requestable)
        self.rates = [key for key in self.limits if key in demanded]
        self._scoped = scoped
        self._on_unknown = on_unknown
        self._by_form: dict[object, PlanShape] = {}
        self.by_keys: dict[tuple[str, ...] | None, PlanShape] = {}
        """The shapes of requests by their keys, where the shape depends on nothing else."""

    def find(self, requested: Mapping[str, object] | None, held: frozenset[LimitPlace]) -> PlanShape:
        """Return the shape of a request; permits of the limits `held` are not taken again unless they are named.

        Raises InvalidRequest when a rate must be requested and nothing is, and for a request that is not a mapping.
        `{}` takes nothing from rates and quotas; it is invalid where the set has only those.
        """
        if isinstance(requested, PermitsOnly):
            return self.find(dict(requested), held).permits_only()
        if requested is None or (len(self.rates) == len(self.limits) > 0 and requested == {}):
            if self.rates:
                raise nothing_requested(", ".join(self.rates))
            return self._found(None, {}, held)
        if not isinstance(requested, Mapping):
            raise InvalidRequest(f"requested must map keys to amounts, not {shown(requested)}")
        return self._found(tuple(requested), requested, held)

    def extension(self, requested: object) -> PlanShape:
        """Return the shape of a request for the named limits alone, by which an acquisition is extended.

        Raises InvalidRequest for a request that is not a mapping, or is empty.
        """
        if not isinstance(requested, Mapping) or not requested:
            raise InvalidRequest(
                f"an extension must map keys to amounts, as in {{'tokens': 200}}, not {shown(requested)}"
            )
        named = self._named(requested)
        named = [
            key for key in named if not (isinstance(self.limits[key], ResourceLimit) and _milli(requested[key]) == 0)
        ]
        many_calls = self._many_calls(named, requested)
        return self._compiled(tuple(named), frozenset(self.limits).difference(named), frozenset(), many_calls)

    def all(self) -> PlanShape:
        """Return the shape of a request for every limit."""
        return self._compiled(tuple(self.limits), frozenset(), frozenset(), frozenset())

    def _found(
        self, keys: tuple[str, ...] | None, requested: Mapping[str, object], held: frozenset[LimitPlace]
    ) -> PlanShape:
        named = self._named(requested)
        permit_keys = frozenset(self._permits.values())
        left_out = permit_keys.intersection([key for key in named if _milli(requested[key]) == 0])
        named = [key for key in named if key not in left_out or not isinstance(self.limits[key], ResourceLimit)]
        held = frozenset([place for place in held if self._permits.get(place) not in {None, *named}])
        many_calls = self._many_calls(named, requested)
        shape = self._compiled(tuple(named), left_out, held, many_calls)
        # Zero permits, several calls and unknown keys are treated differently; the amounts of rates and quotas are not.
        metered = [key for key in named if is_metered(self.limits[key])]
        depends_on_keys = len(metered) == len(requested)
        if depends_on_keys and not permit_keys.intersection(requested) and not held and keys != ():
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
        self, named: tuple[str, ...], left_out: frozenset[str], held: frozenset[LimitPlace], many_calls: frozenset[str]
    ) -> PlanShape:
        form = (named, left_out, held, many_calls)
        shape = self._by_form.get(form)
        if shape is None:
            if len(self._by_form) >= MOST_SHAPES:
                self._by_form.clear()
                self.by_keys.clear()
            shape = self._by_form[form] = _shape(
                self._scoped, named, left_out=left_out, held=held, many_calls=many_calls
            )
        return shape

    def _many_calls(self, named: Sequence[str], requested: Mapping[str, object]) -> frozenset[str]:
        """Return the keys of call limits of which more than one call is requested."""
        calls = [key for key in named if counts_requests(self.limits[key])]
        return frozenset([key for key in calls if _milli(requested[key]) > MILLI])


def _milli(amount: object) -> int:
    """Return an amount in thousandths; -1 for an invalid one, which is rejected where amounts are read."""
    try:
        return to_milli(amount, decimals=True)
    except ValueError:
        return -1


def plan_for(
    scoped: Iterable[ScopedLimits], named: Collection[str], *, left_out: Collection[str], is_credit: bool = False
) -> RequestPlan:
    """Compile a request for the limits `named`, and for every call and resource limit that is not left out.

    A plan that `is_credit` can only be settled, with changes that are not positive.
    """
    listed = list(scoped)
    shape = _shape(listed, named, left_out=left_out, is_credit=is_credit)
    scopes = tuple([listed[position].scope for position in shape.positions])
    return RequestPlan(shape, scopes, present().namespace().configuration)


def _shape(
    scoped: Sequence[ScopedLimits],
    named: Collection[str],
    *,
    left_out: Collection[str],
    held: Collection[LimitPlace] = (),
    many_calls: Collection[str] = (),
    is_credit: bool = False,
) -> PlanShape:
    """Compile the shape of such a request; permits that are `held` are not taken, unless they are named.

    Of `many_calls` more than one is requested, so that their usage must be reported.
    """
    limits: list[PlannedLimit] = []
    scopes: list[PlannedScope] = []
    positions: list[int] = []
    for position, scope in enumerate(scoped):
        before = len(limits)
        for index, rule in enumerate(scope.schema.rules):
            keys = scope.keys_of(rule)
            key = keys[0]
            if any(name in named for name in keys):
                is_requested = not (rule.is_permit and key in left_out)
            else:
                # Rates and quotas are taken from only when they are named.
                is_free = key not in left_out and (position, rule.key) not in held
                is_requested = is_free and not is_metered(rule.limit)
            if is_requested:
                level, place = scope.level_of(index), len(limits)
                limits.append(
                    PlannedLimit(scope.schema, index, len(scopes), place, level=level, every_key=keys, named=named)
                )
        if len(limits) > before:
            scopes.append(scope.planned)
            positions.append(position)
    return PlanShape(limits, scopes, positions, named, many_calls=many_calls, is_credit=is_credit)


def nothing_requested(names: str) -> InvalidRequest:
    """Return the error for a request that leaves out amounts that have no default."""
    return InvalidRequest(f"nothing is requested of {names}: rates and quotas need {{key: amount}}")

"""Shapes of requests: which limits a request takes from, decided by its keys and compiled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from limits_app.core.acquisition import check_signs
from limits_app.core.amounts import MILLI, Amount, shown, to_milli
from limits_app.core.errors import InvalidRequest
from limits_app.core.limits import AnyLimit, CallLimit, MeteredLimit, ResourceLimit
from limits_app.core.parts import Amounts, Bucket, ScopedLimits
from limits_app.core.plan import Plan, plan_for

__all__ = ["Shapes", "amounts_of", "nothing_requested"]

_MOST: Final = 256


class Shapes:
    """The plans of one limit set, by shape of request."""

    def __init__(
        self, scoped: Sequence[ScopedLimits], version: int | None, skip_unknown: Callable[[object], None]
    ) -> None:
        self.limits: dict[str, AnyLimit] = {}
        for one in reversed(scoped):
            self.limits |= {one.prefix + rule.key: rule.limit for rule in one.layout.rules}
        self.rates = [key for key, limit in self.limits.items() if isinstance(limit, MeteredLimit)]
        self._only_rates = bool(self.rates) and len(self.rates) == len(self.limits)
        self._permits: dict[Bucket, str] = {
            (one.scope.key, key): one.prefix + key for one in scoped for _, key in one.layout.permits
        }
        self._permit_keys = frozenset(self._permits.values())
        self._scoped = scoped
        self._version = version
        self._skip_unknown = skip_unknown
        self._plans: dict[tuple[object, ...], Plan] = {}
        self.usual: dict[tuple[object, ...] | None, Plan] = {}
        """Plans by the keys of requests in which nothing is special, for those who are in a hurry."""

    def plan(self, requested: Mapping[str, Amount] | None, held: frozenset[Bucket]) -> Plan:
        """The plan of a request whose thread or task already holds permits of the limits `held`.

        Raises InvalidRequest when a rate limit must be requested and nothing is, or `requested` is no mapping, and for
        what could be no amount of any limit.
        Naming no limit leaves rates alone, but where there is nothing else it requests nothing.
        """
        if requested is None or (self._only_rates and requested == {}):
            if self.rates:
                raise nothing_requested(", ".join(self.rates))
            requested = {}
            asked: tuple[object, ...] | None = None
        elif isinstance(requested, Mapping):
            asked = tuple(requested)
        else:
            raise _no_mapping(requested)
        for key in requested:
            if key not in self.limits:
                check_signs("requested", {key: requested[key]})
                self._skip_unknown(key)
        named = [key for key in requested if key in self.limits]
        none_wanted = {key for key in named if key in self._permit_keys and _is_zero(requested[key])}
        named = [key for key in named if key not in none_wanted or not self._is_permit(key)]
        held = frozenset([bucket for bucket in held if self._permits.get(bucket) not in {None, *named}])
        calls = [key for key in named if isinstance(self.limits[key], CallLimit)]
        many_calls = frozenset([key for key in calls if _more_than_one(requested[key])])
        plan = self._compiled(tuple(named), frozenset(none_wanted), held, many_calls)
        rates_only = all(isinstance(self.limits.get(key), MeteredLimit) for key in requested)
        if rates_only and not self._permit_keys.intersection(requested) and not held and asked != ():
            self.usual[asked] = plan
        return plan

    def plain(self) -> tuple[Plan, Amounts] | None:
        """The request of nothing in particular, where what it takes never depends on anything."""
        if self.rates:
            return None
        plan = self.plan(None, frozenset())
        return None if plan.fixed is None or plan.permits or not plan.fits else (plan, plan.fixed)

    def all(self) -> Plan:
        """A plan over every limit."""
        return self._compiled(tuple(self.limits))

    def _compiled(
        self,
        named: tuple[str, ...],
        left_out: frozenset[str] = frozenset(),
        held: frozenset[Bucket] = frozenset(),
        many_calls: frozenset[str] = frozenset(),
    ) -> Plan:
        shape = (named, left_out, held, many_calls)
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= _MOST:
                self._plans.clear()
                self.usual.clear()
            plan = self._plans[shape] = plan_for(
                self._scoped, named, version=self._version, left_out=left_out, held=held, many_calls=many_calls
            )
        return plan

    def _is_permit(self, key: str) -> bool:
        return isinstance(self.limits[key], ResourceLimit)


def amounts_of(plan: Plan, requested: Mapping[str, Amount]) -> tuple[Amounts, bool]:
    """The amounts of a request in parts, and whether they can ever fit.

    Raises InvalidRequest for an amount that cannot be, and for what is no mapping.
    """
    try:
        amounts = None if plan.read is None else plan.read(requested)
        return plan.amounts(requested) if amounts is None else (amounts, plan.fits)
    except TypeError:
        # Something that has the keys of an earlier request, such as a list of them.
        raise _no_mapping(requested) from None


def nothing_requested(names: str) -> InvalidRequest:
    """The error for a request that says nothing of limits that have no amount of their own."""
    return InvalidRequest(f"nothing is requested of {names}: rates and quotas need {{key: amount}}")


def _no_mapping(requested: object) -> InvalidRequest:
    """The error for a request that is something else."""
    return InvalidRequest(f"requested must map keys to amounts, not {shown(requested)}")


def _is_zero(amount: object) -> bool:
    return amount == 0 and not isinstance(amount, bool)


def _more_than_one(amount: object) -> bool:
    try:
        return to_milli(amount, decimals=True) > MILLI
    except ValueError:
        # What is no amount is refused where amounts are read.
        return False

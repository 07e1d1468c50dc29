"""The charges of a request, by resource and entity, so that each is charged once however many integrations apply.

Amounts are computed when the effective limits are known.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.amounts import Amount
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limits import Blocked, CallLimit, MeteredLimit, ResourceLimit
from limits_app.engine.outcome import LimitUse
from limits_app.integrations.access import is_exempt
from limits_app.policies import Limits
from limits_app.services import Share, try_acquire_all
from limits_app.services.amounts import RequestedAmounts
from limits_app.services.several import prefixes_of

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

Key = tuple[str, str | None]
"""A resource and an entity."""

Demand = tuple[Share, Mapping[str, Amount]]
"""A share of a request, and the amounts that it names."""

NOTHING: Final[Mapping[str, Amount]] = {}


class Charge(NamedTuple):
    """What integrations took of one resource for one entity, in order, and the amounts that they named.

    `prefix` comes before its keys in the first acquisition, where that was taken in one step with other resources.
    """

    acquisitions: tuple[Acquisition, ...]
    named: Mapping[str, Amount] = NOTHING
    prefix: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it took something, also for policies in shadow mode, and was not released."""
        return not self.acquisitions[-1].claim.released and any(
            one.has_limits or one.companion is not None for one in self.acquisitions
        )

    def uses(self, acquisition: Acquisition) -> dict[str, LimitUse]:
        """Return what one of the acquisitions took of this resource for this entity, by key without the prefix."""
        prefix = self._prefix_of(acquisition)
        uses = acquisition.acquisitions.items()
        found = {name.removeprefix(prefix): use for name, use in uses if name.startswith(prefix)}
        return {key: use for key, use in found.items() if ":" not in key}  # others are of another entity

    def taken(self) -> dict[str, Amount]:
        """Return the amounts that all acquisitions took together, by key."""
        taken: dict[str, Amount] = {}
        for acquisition in self.acquisitions:
            for key, use in self.uses(acquisition).items():
                taken[key] = taken.get(key, 0) + use.requested
        return taken

    def update(self, acquisition: Acquisition, used: Mapping[str, Amount]) -> None:
        """Report the usage of one of the acquisitions, by key without the prefix."""
        prefix = self._prefix_of(acquisition)
        acquisition.update({prefix + key: amount for key, amount in used.items()})

    def report_unused(self, acquisition: Acquisition, keys: Container[str]) -> None:
        """Report 0 used of some limits whose usage was not reported."""
        uses = self.uses(acquisition)
        self.update(acquisition, {key: 0 for key, use in uses.items() if key in keys and use.used is None})

    def missing(self, named: Mapping[str, Amount]) -> RequestedAmounts:
        """Return the amounts that are still to be requested; None where none are."""
        new = {name: amount for name, amount in named.items() if name not in self.named}
        return partial(_remaining_amounts, self.taken(), new) if new else None

    def followed_by(self, later: Charge) -> Charge:
        """Return both together; an amount that the later one names replaces the 1 that was taken before."""
        for earlier in self.acquisitions:
            self.report_unused(earlier, later.named.keys() - self.named.keys())
        return Charge((*self.acquisitions, *later.acquisitions), {**later.named, **self.named}, self.prefix)

    def _prefix_of(self, acquisition: Acquisition) -> str:
        return self.prefix if acquisition is self.acquisitions[0] else ""


class Charges(dict[Key, Charge]):
    """The charges of a request, including refunded ones."""

    def held(self, key: Key) -> Charge | None:
        """Return the charge that is held; None where there was none, or it was refunded."""
        charge = self.get(key)
        return charge if charge is not None and charge.is_held else None

    def resources_of(self, acquisition: Acquisition) -> list[str]:
        """Return the resources that an acquisition was charged for."""
        return [key[0] for key, charge in self.items() if acquisition in charge.acquisitions]

    def withdraw(self, key: Key) -> Charge | None:
        """Forget a charge and report it as unused; the caller releases it.

        None where nothing is held, or where it was taken in one step with another resource.
        """
        charge = self.held(key)
        if charge is None:
            return None
        others = [one for other, each in self.items() if other != key for one in each.acquisitions]
        if any(one in others for one in charge.acquisitions):
            return None
        del self[key]
        for acquisition in charge.acquisitions:
            if not acquisition.claim.released:
                charge.report_unused(acquisition, charge.uses(acquisition))
        return charge

    def refund(self, acquisitions: Sequence[Acquisition]) -> None:
        """Report the charges among some acquisitions as unused, calls included, and cancel all of them."""
        for charge in self.values():
            for acquisition in charge.acquisitions:
                if not acquisition.claim.released and acquisition in acquisitions:
                    charge.report_unused(acquisition, charge.uses(acquisition))
        for acquisition in acquisitions:
            acquisition.cancel()


def refund(acquisition: Acquisition) -> None:
    """Report everything that one acquisition took as unused, calls included, and cancel it."""
    if not acquisition.claim.released:
        acquisition.update(dict.fromkeys(acquisition.acquisitions, 0))
        acquisition.cancel()


def transfer_former_charge(limits: RequestLimits, resource: str, entity: str | None, default_limits: Limits) -> None:
    """Refund what a former entity of a request was charged, and charge the present one instead.

    The entity changes when the user is authenticated after the first charge.
    """
    if entity != limits.entity:
        return
    for former in limits.identities:
        charge = None if former.entity == entity else limits.charges.withdraw((resource, former.entity))
        if charge is None:
            continue
        limits.acquired = [one for one in limits.acquired if one not in charge.acquisitions]
        for acquisition in charge.acquisitions:
            acquisition.release()
        try:
            limits.charge(resource, entity, charge.named, default_limits=default_limits)
        except InvalidRequest:  # the amounts are of limits that only the former entity has
            limits.charge(resource, entity, default_limits=default_limits)
        return


def charge_all(limits: RequestLimits, demands: Sequence[Demand]) -> None:
    """Charge a request for several resources, all or nothing, as far as it was not charged before.

    Resources in several stores are charged one after the other, and refunded when a later one rejects.
    Raises what `limits.acquire` raises.
    """
    exempt = [one for one in demands if is_exempt(limits, one[0].key[:2])]
    for share, named in exempt:
        limits.charge(*share.key[:2], named, requested=share.requested)
    demands = [one for one in demands if one not in exempt] if exempt else demands
    for share, _ in demands if limits.charges else ():
        transfer_former_charge(limits, *share.key[:3])
    new = [one for one in demands if not limits.was_charged(*one[0].key[:2])]
    before = len(limits.acquired)
    try:
        if len(new) > 1 and _charged_together(limits, new):
            demands = [one for one in demands if one not in new]
        for share, named in demands:
            resource, entity, default_limits, _ = share.key
            limits.charge(resource, entity, named, requested=share.requested, default_limits=default_limits)
    except BaseException:
        limits.charges.refund(limits.acquired[before:])
        del limits.acquired[before:]
        raise


def _charged_together(limits: RequestLimits, demands: Sequence[Demand]) -> bool:
    """Charge all in one step, 1 of each limit where no amounts are requested; False where they are in several stores.

    Raises LimitExceeded for a rejection.
    """
    shares = [
        share._replace(requested=share.requested or partial(one_of_each, NOTHING), plan=limits.plan_of(share.key[1]))
        for share, _ in demands
    ]
    try:
        acquisition = try_acquire_all(shares, limits.source)
    except InvalidRequest:
        return False
    prefixes = prefixes_of(tuple([share.resource for share in shares]))
    charged = zip(demands, prefixes, strict=True)
    limits.note_charge(acquisition, [(share.key[:2], named, one) for (share, named), one in charged])
    return True


def one_of_each(named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount] | None:
    """Return the amounts that are named, and 1 of every other limit.

    Calls and permits count 1 by default. Without this, a rate that an administrator adds to a resource would be an
    error wherever no code names it.
    """
    if not named:
        return found.ones
    if all(isinstance(limit, Blocked) for limit in found):
        return None  # a name cannot be wrong where there are no limits
    return {**(found.ones or {}), **named}


def amount_of_each(amount: Amount, found: LimitSet) -> Mapping[str, Amount] | None:
    """Return the amount for every rate and for the calls; permits count 1."""
    return {limit.key: amount for limit in found if isinstance(limit, MeteredLimit | CallLimit)}


def _remaining_amounts(
    taken: Mapping[str, Amount], named: Mapping[str, Amount], found: LimitSet
) -> Mapping[str, Amount]:
    """Return the amounts that are named now, less the permits that are held; 0 of everything else that was taken."""
    rest: dict[str, Amount] = {
        limit.key: 0 for limit in found if limit.key in taken and not isinstance(limit, MeteredLimit)
    }
    permits = {limit.key for limit in found if isinstance(limit, ResourceLimit)}
    for key, amount in named.items():
        rest[key] = max(amount - taken[key], 0) if key in permits and key in taken else amount
    return rest

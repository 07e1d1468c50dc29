"""Charges: what a request is charged on a resource, each resource and entity once however many integrations apply."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from limits_app.engine.errors import InvalidRequest
from limits_app.engine.limit_use import LimitUse
from limits_app.integrations.request_access import is_exempt
from limits_app.services import Share
from limits_app.services.amounts import RequestedAmounts, one_of_each, remaining_amounts, without_permits
from limits_app.services.combinations import CombinedSource
from limits_app.services.held_charges import charge_together
from limits_app.services.integration import Acquisition, Amount, DefaultLimits, GivenAmount, ResolutionKey
from limits_app.services.request import AmountsRequest, SetResolver
from limits_app.services.rule_requests import RuleRequest
from limits_app.services.several import prefixes_of
from limits_app.services.shadow import is_limited
from limits_app.services.url_rules import UrlRule

if TYPE_CHECKING:
    from limits_app.integrations.holding import ViewCall
    from limits_app.integrations.request import RequestLimits

ChargeKey = tuple[str, str | None]
"""A resource and an entity."""

NOTHING: Final[Mapping[str, GivenAmount]] = {}


@dataclass(slots=True, eq=False)
class Charge:
    """The charge of a request for one entity on one resource: the requested amounts, and the acquisition that holds it.

    A rule that combines parts of a request charges an entity of its own, for the `client` that it counts by.
    It takes the `named` amounts, and 1 of every other limit; `requested` replaces `named` where nothing was charged
    before. `rules` are the URL rules that it comes from.
    Several resources may share an acquisition, where `prefix` comes before the keys of this one.
    """

    resource: str
    entity: str | None
    named: Mapping[str, GivenAmount] = field(default_factory=dict)
    requested: RequestedAmounts = None
    default_limits: DefaultLimits = ()
    rules: tuple[UrlRule, ...] = ()
    acquisition: Acquisition | None = None
    prefix: str = ""
    priority: str | None = None
    """The priority that it names; None for that of the plan or the resource."""
    by_view: bool = False
    """Whether code of the site has acquired it, which is charged each time."""
    is_former: bool = False
    """Whether it was released before the same resource was charged again."""
    client: str | None = None
    """Who has the plan of the request, where that is not the entity."""
    request: RuleRequest | None = None
    """What has charged it by itself, and counts its response."""
    calls: tuple[ViewCall, ...] = ()
    """The calls of decorated views that answer for it, where there is no middleware."""
    was_used: bool = False
    """Whether such a call has returned, so that nothing is refunded when another one raises."""

    @property
    def key(self) -> ChargeKey:
        """The resource and the entity, which integrations charge once."""
        return self.resource, self.entity

    @property
    def is_combined(self) -> bool:
        """Whether its entity is a combination of parts of the request."""
        return any(rule.parts for rule in self.rules)

    @property
    def counts_responses(self) -> bool:
        """Whether only certain responses count; not where a rule with the same resource and entity counts all."""
        return bool(self.rules) and all(rule.statuses is not None for rule in self.rules)

    @property
    def block_seconds(self) -> float:
        """For how long an exceeded limit blocks; 0 for not at all."""
        return max([rule.block_seconds for rule in self.rules], default=0)

    @property
    def blocks_by_responses(self) -> bool:
        """Whether only certain responses begin the block, also where another rule counts all of them."""
        return all(rule.statuses is not None for rule in self.rules if rule.block_seconds)

    @property
    def is_charged_alone(self) -> bool:
        """Whether it is not charged together with other resources."""
        return any(rule.is_charged_alone for rule in self.rules)

    def counts(self, status: int) -> bool:
        """Whether a response with a status counts."""
        return any(rule.counts(status) for rule in self.rules)

    def may_block(self, status: int) -> bool:
        """Whether a response with a status counts for a rule that blocks by responses."""
        return self.blocks_by_responses and any(rule.block_seconds and rule.counts(status) for rule in self.rules)

    def make_request(
        self, key: ResolutionKey, requested: RequestedAmounts, source: SetResolver, *, is_of_view: bool
    ) -> AmountsRequest:
        """Return the request that charges it, as URL rules say; the arguments are those of `AmountsRequest`."""
        if not self.is_charged_alone:
            return AmountsRequest(key, requested, source, is_of_view=is_of_view)
        self.request = RuleRequest(
            key, requested, source, block_seconds=self.block_seconds, blocks_by_responses=self.blocks_by_responses
        )
        return self.request

    @property
    def amounts(self) -> RequestedAmounts:
        """The amounts to request, where nothing was charged before."""
        return self.requested or partial(one_of_each, self.named)

    @property
    def is_released(self) -> bool:
        """Whether nothing is held."""
        return self.acquisition is None or self.acquisition.is_released

    def uses(self) -> dict[str, LimitUse]:
        """Return the amounts that were taken of this resource for this entity, by key without the prefix."""
        uses = {} if self.acquisition is None else self.acquisition.acquisitions
        own = {name.removeprefix(self.prefix): use for name, use in uses.items() if name.startswith(self.prefix)}
        return {key: use for key, use in own.items() if ":" not in key}  # others are of another entity

    def update(self, used: Mapping[str, GivenAmount]) -> None:
        """Report the usage, by key without the prefix."""
        if self.acquisition is not None:
            self.acquisition.update({self.prefix + key: amount for key, amount in used.items()})

    def report_unused(self, keys: Collection[str] | None = None) -> None:
        """Report 0 used of all limits, or of some, whose usage was not reported."""
        if not self.is_released:
            uses = self.uses()
            chosen = uses if keys is None else keys
            self.update({key: 0 for key, use in uses.items() if key in chosen and use.used is None})


def are_held(charges: Sequence[Charge]) -> bool:
    """Whether some charges of one resource took something, also for policies in shadow mode, and hold it."""
    taken = [charge.acquisition for charge in charges if charge.acquisition is not None]
    return bool(charges) and not charges[-1].is_released and any(map(is_limited, taken))


def missing(earlier: Sequence[Charge], named: Mapping[str, GivenAmount]) -> RequestedAmounts:
    """Return the amounts that are requested after earlier charges of the same resource; None where none are."""
    named_before = named_by(earlier)
    new = {name: amount for name, amount in named.items() if name not in named_before}
    taken: dict[str, Amount] = {}
    for charge in earlier:
        for key, use in charge.uses().items():
            taken[key] = taken.get(key, 0) + use.requested
    return partial(remaining_amounts, taken, new) if new else None


def named_by(charges: Iterable[Charge]) -> set[str]:
    """Return the keys that charges name."""
    return {name for charge in charges for name in charge.named}


def refund_all(charges: Iterable[Charge], acquisitions: Collection[Acquisition]) -> None:
    """Report the charges by integrations among some acquisitions as unused, calls included, and cancel all of them."""
    for charge in charges:
        acquisition = charge.acquisition
        if charge.rules and charge.counts_responses and acquisition is not None and acquisition in acquisitions:
            acquisition.undo(has_run=True)  # no response of the view counts
        elif not charge.by_view and charge.acquisition in acquisitions:
            charge.report_unused()
    for acquisition in acquisitions:
        acquisition.cancel()


def refund(acquisition: Acquisition) -> None:
    """Report everything that one acquisition took as unused, calls included, and cancel it."""
    if not acquisition.is_released:
        acquisition.update(dict.fromkeys(acquisition.acquisitions, 0))
        acquisition.cancel()


def transfer_former_charge(limits: RequestLimits, charge: Charge) -> None:
    """Refund what a former entity of a request was charged on a resource, and charge the present one instead.

    The entity changes when the user is authenticated after the first charge.
    """
    if charge.entity != limits.entity:
        return
    for former in limits.identities:
        withdrawn = [] if former.entity == charge.entity else _withdrawn(limits, charge.resource, former.entity)
        if not withdrawn:
            continue
        limits.charges = [kept for kept in limits.charges if kept not in withdrawn]
        for earlier in withdrawn:
            if earlier.acquisition is not None:
                earlier.acquisition.release()
        named = {name: amount for earlier in reversed(withdrawn) for name, amount in earlier.named.items()}
        try:
            limits.charge(*charge.key, named, default_limits=charge.default_limits, priority=charge.priority)
        except InvalidRequest:  # the amounts are of limits that only the former entity has
            limits.charge(*charge.key, default_limits=charge.default_limits, priority=charge.priority)
        return


def _withdrawn(limits: RequestLimits, resource: str, entity: str | None) -> list[Charge]:
    """Report the held amounts of a resource as unused; return these charges, which the caller releases.

    None where nothing is held, or where it was taken in one step with another resource.
    """
    charges = limits.held(resource, entity)
    if any(charge.is_charged_alone for charge in charges):
        return []  # its response counts for the former entity
    taken = [charge.acquisition for charge in charges]
    if any(charge.acquisition in taken and charge not in charges and not charge.by_view for charge in limits.charges):
        return []
    for charge in charges:
        charge.report_unused()
    return charges


def source_of(limits: RequestLimits, charges: Iterable[Charge]) -> SetResolver:
    """Return what resolves the limits of some charges; combinations are bounded for their client."""
    clients = {charge.entity: charge.client for charge in charges if charge.is_combined}
    return CombinedSource(limits.source, clients) if clients else limits.source


def charge_all(limits: RequestLimits, charges: Sequence[Charge]) -> None:
    """Charge a request on several resources, all or nothing, as far as it was not charged before.

    Resources in several stores are charged one after the other, and refunded when a later one rejects.
    Raises what `limits.acquire` raises.
    """
    if len(charges) == 1:
        limits.take(charges[0])
        return
    exempt = [charge for charge in charges if is_exempt(limits, charge.key)] if limits.table.needs_verdict else []
    for charge in exempt:
        limits.take(charge)
    charges = [charge for charge in charges if charge not in exempt] if exempt else charges
    for charge in charges if limits.charges else ():
        transfer_former_charge(limits, charge)
    together = [charge for charge in charges if not charge.is_charged_alone]
    new = [charge for charge in together if not limits.was_charged(*charge.key)]
    before = limits.acquired
    try:
        if len(new) > 1 and _are_charged_together(limits, new):
            charges = [charge for charge in charges if charge not in new]
        for charge in charges:
            limits.take(charge)
    except BaseException:
        charged = [acquisition for acquisition in limits.acquired if acquisition not in before]
        for acquisition in charged:
            acquisition.undo()  # a rejected request is charged nothing, with every algorithm
        limits.refund(charged)
        raise


def _are_charged_together(limits: RequestLimits, charges: Sequence[Charge]) -> bool:
    """Charge all in one step, 1 of each limit where no amounts are requested; False where they are in several stores.

    Raises LimitExceeded for a rejection.
    """
    shares = [
        Share(
            *charge.key,
            charge.amounts if limits.takes_permits else partial(without_permits, charge.amounts),
            charge.default_limits,
            limits.plan_of(charge.client or charge.entity),
            charge.priority,
        )
        for charge in charges
    ]
    try:
        acquisition = charge_together(shares, source_of(limits, charges))
    except InvalidRequest:
        return False
    for charge, prefix in zip(charges, prefixes_of(tuple([share.resource for share in shares])), strict=True):
        charge.prefix = prefix
        limits.note(charge, acquisition)
    return True

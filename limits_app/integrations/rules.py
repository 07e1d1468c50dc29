"""Rules for URLs, compiled: which requests a rule matches, and who is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from limits_app.conf.parsers import parsed_network
from limits_app.engine.amounts import Amount, shown
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.keys import check_resource
from limits_app.integrations.charges import Demand, one_of_each
from limits_app.integrations.exemptions import Exemptions
from limits_app.integrations.identities import names_of
from limits_app.integrations.identity import (
    client_of,
    entity_of_api_key,
    entity_of_header,
    entity_of_session,
    entity_of_user,
)
from limits_app.integrations.routes import Route
from limits_app.models import CountedBy, Endpoint
from limits_app.models.endpoint import lines_of
from limits_app.models.patterns import Patterns
from limits_app.models.validators import WILDCARD
from limits_app.services import Share
from limits_app.services.amounts import RequestedAmounts
from limits_app.services.site_views import fits_method

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

logger = logging.getLogger("limits_app")

_route: Final = lru_cache(maxsize=4096)(Route)  # most routes are the same after a change

Confirm = Callable[[Mapping[str, Amount]], RequestedAmounts]
"""Returns amounts that are requested only of limits of the same configuration as the rules."""


@dataclass(slots=True)
class Rule:
    """An endpoint, compiled; `route` is None for a rule whose path or view was looked up by name.

    `if_current` are its amounts for limits of the same configuration; for others it raises OutdatedEndpoints.
    """

    name: str
    resource: str
    amounts: Mapping[str, Amount]
    methods: frozenset[str]
    route: Route | None
    counted_by: str
    header: str
    exemptions: Exemptions
    stop: bool
    confirm: Confirm
    if_current: RequestedAmounts
    is_plain: bool
    """Whether it charges every request for the entity of the request."""
    reported: bool = False

    def fits(self, path: str, method: str) -> bool:
        """Whether the method and the route match; a rule without methods fits any, one with GET also fits HEAD."""
        fits = not self.methods or fits_method(self.methods, method)
        return fits and (self.route is None or self.route.fits(path.removeprefix("/")))

    def entity_of(self, limits: RequestLimits) -> str | None:
        """Who is counted for a request; the IP address where it lacks what the rule counts by."""
        found: str | None
        request = limits.request
        match self.counted_by:
            case CountedBy.EVERYONE:
                return None
            case CountedBy.USER:
                found = entity_of_user(getattr(request, "user", None))
            case CountedBy.API_KEY:
                found = entity_of_api_key(request)
            case CountedBy.SESSION:
                found = entity_of_session(request)
            case CountedBy.HEADER:
                found = entity_of_header(request, self.header)
            case CountedBy.IP:
                found = None
            case _:
                return limits.entity
        return found or client_of(request)

    def report(self, error: InvalidRequest) -> None:
        """Log once that its amounts are invalid for the effective limits."""
        if not self.reported:
            self.reported = True
            logger.error("the rule %s takes 1 of each limit until its amounts are corrected: %s", self.name, error)


class RuleCharge(NamedTuple):
    """What the rules for a request charge one entity for one resource."""

    rules: tuple[Rule, ...]
    entity: str | None
    amounts: Mapping[str, Amount]

    @property
    def resource(self) -> str:
        """The resource."""
        return self.rules[0].resource

    def demand(self, *, confirmed: bool = False) -> Demand:
        """What is charged; `confirmed` is True for rules that are known to be current."""
        confirm = partial(partial, one_of_each) if confirmed else self.rules[0].confirm
        return Share(self.resource, self.entity, confirm(self.amounts)), self.amounts


def charges_for(limits: RequestLimits, rules: Iterable[Rule]) -> list[RuleCharge]:
    """The charges of the matching rules of a request, in order, each resource and entity once. May query the database.

    Two rules with the same resource and entity charge the larger amounts. The first rule with `stop` that does not
    exempt the request is the last one.
    """
    found: dict[tuple[str, str | None], RuleCharge] = {}
    for rule in rules:
        entity = rule.entity_of(limits)
        if rule.exemptions:
            names = names_of(limits, rule.exemptions.entities.kinds)
            if rule.exemptions.apply(limits, [entity, limits.entity, *names]):
                continue
        key = rule.resource, entity
        earlier = found.get(key)
        if earlier is None:
            found[key] = RuleCharge((rule,), entity, rule.amounts)
        else:
            found[key] = RuleCharge((*earlier.rules, rule), entity, _larger(earlier.amounts, rule.amounts))
        if rule.stop:
            break
    return [*found.values()]


def _larger(one: Mapping[str, Amount], other: Mapping[str, Amount]) -> dict[str, Amount]:
    """The larger amount of each key; an amount that is not named is 1."""
    return {key: max(one.get(key, 1), other.get(key, 1)) for key in {**one, **other}}


def compiled(row: Endpoint, confirm: Confirm) -> Rule:
    """Compile a row; raises ImproperlyConfigured, re.error or a ValueError for one that is invalid."""
    is_route = "<" in row.path or WILDCARD in row.path
    amounts = row.amounts
    if not isinstance(amounts, dict):
        raise InvalidLimit(f"amounts must be an object, not {shown(amounts)}")
    exemptions = Exemptions(
        row.exempt_staff,
        row.exempt_superusers,
        frozenset(lines_of(row.exempt_groups)),
        tuple(map(parsed_network, lines_of(row.exempt_networks))),
        Patterns(lines_of(row.exempt_entities)),
    )
    return Rule(
        name=row.name,
        resource=check_resource(row.resource_name),
        amounts=amounts,
        methods=row.method_set,
        route=_route(row.path) if is_route else None,
        counted_by=row.counted_by,
        header=row.header,
        exemptions=exemptions,
        stop=row.stop,
        confirm=confirm,
        if_current=confirm(amounts),
        is_plain=row.counted_by == CountedBy.ENTITY and not exemptions,
    )

"""Rules for URLs, compiled: which requests a rule matches, and what it charges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from limits_app import conf
from limits_app.conf import parsed_network
from limits_app.engine import GivenAmount, check_resource, shown
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.models import CountedBy, Endpoint
from limits_app.models.endpoint import lines_of
from limits_app.models.patterns import Patterns
from limits_app.models.rule_fields import CountedPart, CountedStatuses, parts_of, seconds_of_block, statuses_of
from limits_app.models.validators import WILDCARD
from limits_app.services.amounts import RequestedAmounts
from limits_app.services.exempt_requests import Exemptions
from limits_app.services.routes import Route
from limits_app.services.site_views import fits_method

logger = logging.getLogger("limits_app")

_route: Final = lru_cache(maxsize=4096)(Route)  # most routes are the same after a change

Confirm = Callable[[Mapping[str, GivenAmount]], RequestedAmounts]
"""Returns amounts that are requested only of limits of the same configuration as the rules."""


@dataclass(slots=True)
class UrlRule:
    """An endpoint, compiled; `route` is None for a rule whose path or view was looked up by name.

    `if_current` are its amounts for limits of the same configuration; for others it raises OutdatedEndpoints.
    """

    name: str
    resource: str
    amounts: Mapping[str, GivenAmount]
    methods: frozenset[str]
    route: Route | None
    counted_by: str
    header: str
    exemptions: Exemptions
    stop: bool
    confirm: Confirm
    if_current: RequestedAmounts
    is_plain: bool
    """Whether it charges every request for the entity of the request, as its limits say."""
    parts: tuple[CountedPart, ...] = ()
    """Further parts of a request that are counted together with who is counted."""
    statuses: CountedStatuses | None = None
    """The statuses of the responses that it counts; None for all."""
    responses: str = ""
    """The statuses as text."""
    cost: str = ""
    block_seconds: float = 0
    refusal_status: int | None = None
    refusal_body: str = ""
    priority: str | None = None
    """The priority of its requests; None for that of the plan or the resource."""
    reported: bool = False

    def fits(self, path: str, method: str) -> bool:
        """Whether the method and the route match; a rule without methods fits any, one with GET also fits HEAD."""
        fits = not self.methods or fits_method(self.methods, method)
        return fits and (self.route is None or self.route.fits(path.removeprefix("/")))

    def counts(self, status: int) -> bool:
        """Whether it counts a response with a status."""
        return self.statuses is None or self.statuses.have(status)

    @property
    def needs_response(self) -> bool:
        """Whether the response decides the final charge."""
        return self.statuses is not None or bool(self.cost)

    @property
    def has_answer(self) -> bool:
        """Whether rejections have another status or body."""
        return self.refusal_status is not None or bool(self.refusal_body)

    @property
    def is_charged_alone(self) -> bool:
        """Whether what it charges is not charged together with other rules, since it may be undone or begin a block."""
        return self.statuses is not None or self.block_seconds > 0

    def report(self, error: InvalidRequest) -> None:
        """Log once that its amounts are invalid for the effective limits."""
        if not self.reported:
            self.reported = True
            logger.error("the rule %s takes 1 of each limit until its amounts are corrected: %s", self.name, error)


def compiled(row: Endpoint, confirm: Confirm) -> UrlRule:
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
    return UrlRule(
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
        priority=row.request_priority if row.request_priority in conf.get(conf.PRIORITIES) else None,
        is_plain=row.counted_by == CountedBy.ENTITY and not (exemptions or row.has_conditions or row.request_priority),
        parts=parts_of(row.combined_with),
        statuses=statuses_of(row.responses),
        responses=row.responses,
        cost=row.cost,
        block_seconds=seconds_of_block(row.block_for),
        refusal_status=row.refusal_status,
        refusal_body=row.refusal_body,
    )

"""The gateway in the demo: all clients exceed their limits or budgets, and all figures are known in advance."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack

from limits_app import LimitExceeded, RateLimit, limits
from project.gateway.figures import BUDGETS, CALLS, MAX_TOKENS, PRICE, PROMPT, REGIONS, TEAM, TENANTS
from project.gateway.gateway import RESOURCE, Gateway, set_budget, set_price, set_regions
from project.gateway.provider import provider

__all__ = ["play", "show"]


def play() -> Mapping[str, Mapping[str, object]]:
    """Send the calls of all clients.

    Returns the allowed calls by client, the used tokens by region, and what these cost by client and for the team.
    """
    set_price(PRICE)
    set_budget(*TEAM, {key: budget for key, (budget, _) in BUDGETS.items()})
    for tenant, (capacity, _) in TENANTS.items():
        limits.set_entity_limits(tenant, [RateLimit.per_hour("tokens", capacity)], resource=RESOURCE)
    set_regions({region: capacity for region, (capacity, _) in REGIONS.items()})
    answered, used = Counter[str](), Counter[str]()
    with ExitStack() as stack:
        gateway = Gateway({region: stack.enter_context(provider()) for region in REGIONS})
        for client in (*BUDGETS, *TENANTS):
            for _ in range(CALLS):
                try:
                    answer = gateway.ask(client, PROMPT, MAX_TOKENS)
                except LimitExceeded:
                    continue
                answered[client] += 1
                used[answer.region] += answer.used
    limits.roll_up()
    spent = {str(spend.entity): f"{spend.amount:f}" for spend in limits.spend(RESOURCE, by=("entity", "below"))}
    team, _ = TEAM
    charged = {team: str(limits.status(RESOURCE, entity=team).limits["usd"]["used"])}
    return {"answered": answered, "used": used, "spent": spent, "charged": charged}


def show() -> None:
    """Write the results of `play` to standard output as JSON, for the demo to read."""
    json.dump(play(), sys.stdout)

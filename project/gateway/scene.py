"""The gateway in the demo: all tenants exceed their limits, and all figures are known in advance."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack

from limits_app import LimitExceeded, RateLimit, limits
from project.gateway.figures import CALLS, MAX_TOKENS, PROMPT, REGIONS, TENANTS
from project.gateway.gateway import RESOURCE, Gateway, set_regions
from project.gateway.provider import provider

__all__ = ["play", "show"]


def play() -> Mapping[str, Mapping[str, int]]:
    """Send the calls of all tenants; return the allowed calls by tenant, and the used tokens by region."""
    for tenant, (capacity, _) in TENANTS.items():
        limits.set_entity_limits(f"tenant:{tenant}", [RateLimit.per_hour("tokens", capacity)], resource=RESOURCE)
    set_regions({region: capacity for region, (capacity, _) in REGIONS.items()})
    answered, used = Counter[str](), Counter[str]()
    with ExitStack() as stack:
        gateway = Gateway({region: stack.enter_context(provider()) for region in REGIONS})
        for tenant in TENANTS:
            for _ in range(CALLS):
                try:
                    answer = gateway.ask(tenant, PROMPT, MAX_TOKENS)
                except LimitExceeded:
                    continue
                answered[tenant] += 1
                used[answer.region] += answer.used
    return {"answered": answered, "used": used}


def show() -> None:
    """Write the results of `play` to standard output as JSON, for the demo to read."""
    json.dump(play(), sys.stdout)

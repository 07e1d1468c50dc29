"""The step of the demo with a language model: keys, tenants and regions, and their results."""

from __future__ import annotations

import json
from decimal import Decimal

from project.demo.place import Place
from project.demo.report import Cost, Crowded, Spent
from project.gateway.figures import BUDGETS, CALLS, REGIONS, SPEND, TEAM, TENANTS

__all__ = ["ask_the_model"]


def ask_the_model(place: Place) -> tuple[list[Crowded], list[Spent], list[Cost]]:
    """Run the calls of the gateway in a process of the site, and return their results."""
    command = "from project.gateway.scene import show; show()"
    found = json.loads(place.manage("shell", "--verbosity=0", "--command", command))
    asked = []
    limited = {key: (f"{budget} USD", expected) for key, (budget, expected) in BUDGETS.items()}
    limited |= {tenant: (f"{tokens} tokens", expected) for tenant, (tokens, expected) in TENANTS.items()}
    for client, (limit, expected) in limited.items():
        answered = found["answered"].get(client, 0)
        asked.append(Crowded(client, limit, CALLS, expected, answered, CALLS - answered))
    spent = [
        Spent(region, tokens, expected, found["used"].get(region, 0)) for region, (tokens, expected) in REGIONS.items()
    ]
    costs = [Cost(client, expected, Decimal(found["spent"].get(client, "0"))) for client, expected in SPEND.items()]
    team, _ = TEAM
    costs.append(Cost(team, sum(SPEND[key] for key in BUDGETS), Decimal(found["charged"][team])))
    return asked, spent, costs

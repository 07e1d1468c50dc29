"""The step of the demo with a language model: tenants and regions, and their results."""

from __future__ import annotations

import json

from project.demo.place import Place
from project.demo.report import Crowded, Spent
from project.gateway.figures import CALLS, REGIONS, TENANTS

__all__ = ["ask_the_model"]


def ask_the_model(place: Place) -> tuple[list[Crowded], list[Spent]]:
    """Run the calls of the gateway in a process of the site, and return their results."""
    command = "from project.gateway.scene import show; show()"
    found = json.loads(place.manage("shell", "--verbosity=0", "--command", command))
    asked = []
    for tenant, (tokens, expected) in TENANTS.items():
        answered = found["answered"].get(tenant, 0)
        asked.append(Crowded(tenant, f"{tokens} tokens", CALLS, expected, answered, CALLS - answered))
    spent = [
        Spent(region, tokens, expected, found["used"].get(region, 0)) for region, (tokens, expected) in REGIONS.items()
    ]
    return asked, spent

"""The identities of the author of a change, whom a block that the author makes may cover."""

from __future__ import annotations

from typing import Any

from limits_app import conf
from limits_app.integrations.request import limits_of
from limits_app.integrations.request_identities import names_of
from limits_app.services.integration import IdentityAndPlan


def author_of(request: Any) -> list[IdentityAndPlan]:
    """Return the address, the user and the API key of a request, each with the plan of the request that applies to it.

    May query the database.
    """
    limits = limits_of(request)
    address, *others = names_of(limits, {"key", "user"}, needs_user=True)
    has_function = limits.settings[conf.PLAN_OF_REQUEST.name] is not None
    plan = limits.plan_of(limits.entity) if has_function else limits.plan_of_groups()
    return [(address, None), *((name, plan) for name in others)]

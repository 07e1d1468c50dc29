"""How often the REST API may be asked: limits of its own, which administrators can change."""

from __future__ import annotations

from typing import Final

from rest_framework.request import Request
from rest_framework.views import APIView

from limits_app.conf import OnUnavailable
from limits_app.core.limits import CallLimit
from limits_app.integrations.drf.throttle import LimitThrottle, Unavailable
from limits_app.models import PolicyScope
from limits_app.resolver import Standing, resolve
from limits_app.stores.memory import MemoryStore

__all__ = ["RESOURCE", "ApiThrottle"]

RESOURCE: Final = "limits_app.api"

_ABOUT_THE_API: Final = frozenset({PolicyScope.RESOURCE.value, PolicyScope.ENTITY_ON_RESOURCE.value})
_IN_FORCE: Final = frozenset({Standing.COUNTS, Standing.EXTENDED})
_NOWHERE: Final = MemoryStore()
"""Resolving takes a store; what is asked here needs none."""


class ApiThrottle(LimitThrottle):
    """600 requests a minute for each caller, unless limits for the resource `limits_app.api` say otherwise.

    Without their store everybody is admitted, unless policies on that resource say otherwise: whoever set the site
    to `block` must be able to set it to something else.
    """

    resource = RESOURCE
    default_limits = (CallLimit(600, 60),)

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Decide, and admit where nobody can."""
        try:
            return super().allow_request(request, view)
        except Unavailable:
            if _blocks(self.get_entity(request, view)):
                raise
            return True


def _blocks(entity: str | None) -> bool:
    """Whether policies on the API itself say that nobody is admitted while the store is down."""
    verdicts = [one for choice in resolve(RESOURCE, entity, store=_NOWHERE).choices for one in choice.verdicts]
    return any(
        one.standing in _IN_FORCE
        and one.candidate.level in _ABOUT_THE_API
        and one.candidate.on_unavailable is OnUnavailable.BLOCK
        for one in verdicts
    )

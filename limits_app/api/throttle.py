"""Rate limits of the REST API itself, which administrators can change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rest_framework.request import Request
from rest_framework.views import APIView

from limits_app.conf import OnUnavailable
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, LimitDefinition
from limits_app.integrations.drf.throttle import LimitThrottle, ThrottleRejection
from limits_app.models import PolicyScope
from limits_app.policies import PolicyStatus, resolve
from limits_app.stores.memory import MemoryStore

RESOURCE: Final = "limits_app.api"
DECISIONS: Final = "limits_app.decisions"

_OF_SYSTEM: Final = frozenset({PolicyScope.SYSTEM.value, PolicyScope.SYSTEM_TOTAL.value})
_ABOUT_THE_API: Final = frozenset({PolicyScope.RESOURCE.value, PolicyScope.ENTITY_ON_RESOURCE.value})
_IN_FORCE: Final = frozenset({PolicyStatus.COUNTS, PolicyStatus.EXTENDED})
_UNUSED_STORE: Final = MemoryStore()
"""`resolve` requires a store; this lookup does not use it."""


class ApiThrottle(LimitThrottle):
    """600 requests a minute for each caller, unless the resource `limits_app.api` has other limits.

    If the store is unavailable, every request is allowed unless a policy of that resource blocks it, and so it is if
    the system blocks everything. Otherwise an administrator who has set that could not change it through the API.
    """

    resource = RESOURCE
    default_limits: Sequence[LimitDefinition] = (CallLimit(600, 60),)

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether the request is allowed; see the class for what does not reject it."""
        try:
            return super().allow_request(request, view)
        except ThrottleRejection as refused:
            if isinstance(refused.error, StoreUnavailable):
                is_refused = _blocks(self.resource or RESOURCE, self.get_entity(request, view))
            else:
                levels = {violation.level for violation in refused.error.outcome.violations}
                is_refused = not levels or bool(levels - _OF_SYSTEM)
            if is_refused:
                raise
        return True


class DecisionThrottle(ApiThrottle):
    """No limit of its own for programs that acquire, unless administrators set one on `limits_app.decisions`."""

    resource = DECISIONS
    default_limits = ()


def _blocks(resource: str, entity: str | None) -> bool:
    """Whether a policy of the API itself blocks requests while the store is unavailable."""
    verdicts = [
        verdict for choice in resolve(resource, entity, store=_UNUSED_STORE).choices for verdict in choice.verdicts
    ]
    return any(
        verdict.status in _IN_FORCE
        and verdict.policy.level in _ABOUT_THE_API
        and verdict.policy.on_unavailable is OnUnavailable.BLOCK
        for verdict in verdicts
    )

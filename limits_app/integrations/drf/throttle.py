"""`LimitThrottle`, the throttle of a resource, and `ThrottledViewMixin`, for headers without the middleware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from limits_app.engine.errors import LimitExceeded, NeverAdmissible, StoreUnavailable
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.integrations.calls import report_response
from limits_app.integrations.charges import Charge, ChargeKey, charge_all
from limits_app.integrations.headers import retry_after_seconds
from limits_app.integrations.identity import resource_named
from limits_app.integrations.refusals import REFUSALS, content_of
from limits_app.integrations.releasing import release_when_finished
from limits_app.integrations.request import RequestLimits, limits_of
from limits_app.integrations.request_access import is_exempt
from limits_app.services.amounts import amount_of_each
from limits_app.services.integration import Amount, LimitDefinition, entity_name

if TYPE_CHECKING:
    from rest_framework.views import APIView

_CODES: Final = {
    HTTPStatus.UNPROCESSABLE_ENTITY: "too_much_at_once",
    HTTPStatus.FORBIDDEN: "blocked",
    HTTPStatus.SERVICE_UNAVAILABLE: "limits_unavailable",
}


_VIEWS: Final = "rest_framework.views"
"""The module in which views get their throttles from their `throttle_classes`; it imports the throttles itself."""


class ThrottleRejection(APIException):
    """A rejection that is no 429: 422 for a cost that can never be admitted, 403 for a block, 503 without the store.

    Its status and text are those of `refusal`. `error` is what the limits raised; `wait` is after how many seconds to
    try again, None where that does not help.
    """

    def __init__(self, error: LimitExceeded | StoreUnavailable) -> None:
        content = content_of(error)
        super().__init__(content.detail, _CODES.get(content.status))
        self.status_code = content.status
        self.error = error
        self.wait = content.retry_after


class LimitThrottle(BaseThrottle):
    """Charges each request of a view to the limits of `resource`, or of the `throttle_scope` of the view.

    All throttles of this kind that a view has are acquired together, all or nothing. A request is charged once for a
    resource and an entity, however many integrations apply. `cost` is how much a request takes of each rate and of the
    calls; `default_limits` apply where administrators have set none. `priority` is one of `LIMITS["PRIORITIES"]`, by
    default that of the plan or the resource. Without a resource everything passes.
    Raises ThrottleRejection for a cost that can never be admitted, where the entity or the resource is blocked, and
    while the store is unavailable and the policy says `block`.
    """

    resource: str | None = None
    cost: Amount = 1
    default_limits: Sequence[LimitDefinition] = ()
    priority: str | None = None

    _violations: tuple[LimitStatus, ...] = ()

    def get_resource(self, request: Request, view: APIView) -> str | None:
        """Return the resource that a request uses; None where this throttle does not apply."""
        return self.resource or getattr(view, "throttle_scope", None)

    def get_entity(self, request: Request, view: APIView) -> str | None:
        """Return the entity that is charged; None is the site itself. By default that of the request.

        It is called after the view has authenticated the request.
        """
        return limits_of(request).entity

    def get_cost(self, request: Request, view: APIView) -> Amount:
        """Return how much a request takes."""
        return self.cost

    def get_priority(self, request: Request, view: APIView) -> str | None:
        """Return the priority of a request; None for that of the plan or the resource."""
        return self.priority

    def get_charge(self, request: Request, view: APIView) -> Charge | None:
        """Return what the request is charged; None for nothing."""
        resource = self.get_resource(request, view)
        if not resource:
            return None
        entity, cost = entity_name(self.get_entity(request, view)), self.get_cost(request, view)
        requested = None if cost == 1 else partial(amount_of_each, cost)
        return Charge(
            resource_named(resource),
            entity,
            requested=requested,
            default_limits=tuple(self.default_limits),
            priority=self.get_priority(request, view),
        )

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Charge for all throttles of the view when the first one is called: when one rejects, all do.

        A subclass that overrides this method is charged separately from the other throttles, when it calls this one.
        """
        self._violations = ()
        limits = limits_of(request)
        charge = self.get_charge(request, view)
        if charge is None:
            self._charge(limits, {})  # nothing, but a user whom the view has authenticated may be blocked
            return True
        key = charge.key
        if key not in limits.throttled:
            # What was charged before is not charged again, but the view may have authenticated another user since.
            was_charged = limits.was_charged(*key)
            self._charge(limits, {key: charge} if was_charged else self._all_charges(charge, request, view))
        outcome = limits.throttled.get(key)
        if outcome is None:
            return True
        # The violations of a pool, or of another throttle, have other resources.
        own = tuple(violation for violation in outcome.violations if violation.resource == charge.resource)
        self._violations = own or outcome.violations
        return False

    def wait(self) -> float | None:
        """Return the seconds until the next attempt; None where nothing was rejected."""
        return max([retry_after_seconds(violation.retry_after) for violation in self._violations], default=None)

    def _charge(self, limits: RequestLimits, charges: Mapping[ChargeKey, Charge]) -> None:
        """Charge all, and note a rejection for all of them."""
        if not limits.has_middleware:
            release_when_finished(limits)
        try:
            # A charge finds out the same; what was charged before is for a user who may be exempt, or blocked.
            if (limits.charges or not charges) and is_exempt(limits):
                limits.refund_charges()
            charge_all(limits, [*charges.values()])
        except REFUSALS as error:
            limits.refuse(error)
            if isinstance(error, StoreUnavailable | NeverAdmissible) or error.outcome.blocked:
                refused = ThrottleRejection(error)
                limits.throttled_status = refused.status_code
                raise refused from error
            limits.throttled_status = HTTPStatus.TOO_MANY_REQUESTS
            limits.throttled |= dict.fromkeys(charges, error.outcome)

    def _all_charges(self, own: Charge, request: Request, view: APIView) -> dict[ChargeKey, Charge]:
        """Return what all throttles of the view charge, without those that override `allow_request`."""
        charges = {own.key: own}
        if _has_several_throttles(view) and self._is_charged_with_others:
            for throttle in self._others(view):
                charge = throttle.get_charge(request, view)
                if charge is not None:
                    charges.setdefault(charge.key, charge)
        return charges

    def _others(self, view: APIView) -> Iterator[LimitThrottle]:
        """Iterate over the other throttles of the view that are charged together."""
        kind = type(self)
        for throttle in view.get_throttles():
            if isinstance(throttle, LimitThrottle) and throttle._is_charged_with_others and type(throttle) is not kind:
                yield throttle

    @property
    def _is_charged_with_others(self) -> bool:
        """Whether the class has the `allow_request` of this one, which charges for all."""
        return type(self).allow_request is LimitThrottle.allow_request


def _has_several_throttles(view: APIView) -> bool:
    """Whether a view may have other throttles than one; to make them all costs as much as the rest of a request."""
    get_throttles = getattr(type(view), "get_throttles", None)
    is_usual = getattr(get_throttles, "__module__", "") == _VIEWS
    return get_throttles is not None and not (is_usual and len(view.throttle_classes) == 1)


class ThrottledViewMixin:
    """Sets the headers on the responses of a view without the middleware.

    Put it before `APIView`. Where there is a middleware it does nothing.
    """

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Finish a response as the view does, and report the remaining amounts in its headers."""
        finished = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # of the view
        return report_response(limits_of(request), finished, None)


def throttled_outcome(request: Request) -> Outcome | None:
    """Return the outcome with which throttles rejected a request, of several the one with the longest wait."""
    outcomes = limits_of(request).throttled.values()
    return max(outcomes, key=lambda outcome: outcome.retry_after or 0, default=None)

"""`LimitThrottle`: the throttle of a resource, and how all throttles of a view decide as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from limits_app.core.amounts import Amount
from limits_app.core.errors import LimitExceeded, NeverAdmissible, StoreUnavailable
from limits_app.core.limits import Limit
from limits_app.core.outcome import LimitStatus, Outcome
from limits_app.integrations.amounts import so_much_of_each
from limits_app.integrations.drf.errors import TooMuchAtOnce, Unavailable
from limits_app.integrations.headers import headers_of
from limits_app.integrations.identity import identify
from limits_app.integrations.named import resource_named
from limits_app.integrations.request_limits import RequestLimits, limits_of
from limits_app.services import Share
from limits_app.services.acquiring import Asked

__all__ = ["LimitThrottle", "decided", "http"]

_DECIDED: Final = "_limits_app_decided"
_PERMIT_SECONDS: Final = 1.0


class LimitThrottle(BaseThrottle):
    """Lets a view run as the limits of `resource` admit, or of what the view has as its `throttle_scope`.

    All throttles of this kind that a view has are acquired together, all or nothing, and a request is charged once
    for a resource, however many ways in see it. `cost` is how much a request takes of each rate and of the calls;
    `default_limits` hold where administrators have set nothing. A throttle without a resource throttles nothing.
    """

    resource: str | None = None
    cost: Amount = 1
    default_limits: Sequence[Limit] = ()

    def get_resource(self, request: Request, view: APIView) -> str | None:
        """The resource that a request uses; None: this throttle is not about it."""
        return self.resource or getattr(view, "throttle_scope", None)

    def get_entity(self, request: Request, view: APIView) -> str | None:
        """Who is charged; None is the site itself. By default whom LIMITS["ENTITY_OF_REQUEST"] names.

        It is asked after the view has authenticated the request.
        """
        return identify(http(request))

    def get_cost(self, request: Request, view: APIView) -> Amount:
        """How much a request takes."""
        return self.cost

    def get_share(self, request: Request, view: APIView) -> Share | None:
        """What the request is charged; None for nothing."""
        resource = self.get_resource(request, view)
        if not resource:
            return None
        return Share(
            resource_named(resource),
            self.get_entity(request, view),
            _asked(self.get_cost(request, view)),
            tuple(self.default_limits),
        )

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Decide for all throttles of the view, when the first of them is asked, and say how this one fared."""
        self._violations: tuple[LimitStatus, ...] = ()
        share = self.get_share(request, view)
        if share is None:
            return True
        outcome = _outcome(request, view, share)
        if outcome is None:
            return True
        self._violations = tuple(status for status in outcome.violations if status.resource == share.resource)
        return not self._violations

    def wait(self) -> float | None:
        """Seconds until it is worth trying again; None when that is never, or was not asked for."""
        if any(status.capacity == 0 for status in self._violations):
            return None
        known = [_PERMIT_SECONDS if one.retry_after is None else one.retry_after for one in self._violations]
        return max(known, default=None)


def http(request: Request) -> HttpRequest:
    """The request of Django; whatever a test hands over instead is taken as one."""
    found: HttpRequest = getattr(request, "_request", request)
    return found


def decided(request: Request) -> Outcome | None:
    """What refused a request; None where no throttle of this kind did."""
    # Not by getattr, which looks for what is not there in the request of Django as well.
    found: Outcome | None = vars(request).get(_DECIDED)
    return found


def _asked(cost: Amount) -> Asked:
    return None if cost == 1 else partial(so_much_of_each, cost)


def _outcome(request: Request, view: APIView, share: Share) -> Outcome | None:
    """What refused the request; None when it was admitted. Decided once for a request."""
    limits = limits_of(http(request))
    if limits.charges and limits.was_charged(share.resource, share.entity):
        return None
    # Not by getattr, which looks for what is not there in the request of Django as well.
    refused: Outcome | None = vars(request).get(_DECIDED)
    if refused is None:
        refused = _refused(limits, request, view, share)
        if refused is not None:
            setattr(request, _DECIDED, refused)
    return refused


def _refused(limits: RequestLimits, request: Request, view: APIView, share: Share) -> Outcome | None:
    try:
        if not isinstance(view, APIView) or len(view.throttle_classes) == 1:
            limits.charge_share(share)
        else:
            limits.charge_all(_shares(request, view, share))
        _tell(limits, view)
    except NeverAdmissible as error:
        limits.undo()
        _tell(limits, view, refused=True)
        raise TooMuchAtOnce from error
    except LimitExceeded as error:
        limits.undo()
        _tell(limits, view, refused=True)
        return error.outcome
    except StoreUnavailable as error:
        limits.undo()
        _tell(limits, view, refused=True)
        raise Unavailable(error) from error
    return None


def _shares(request: Request, view: APIView, own: Share) -> Iterable[Share]:
    """The shares of all throttles of the view, the own one first."""
    throttles = [one for one in view.get_throttles() if isinstance(one, LimitThrottle)]
    return [own, *[share for one in throttles if (share := one.get_share(request, view)) is not None]]


def _tell(limits: RequestLimits, view: APIView, *, refused: bool = False) -> None:
    """Give the response of the view its headers, as far as no middleware does so."""
    headers: dict[str, str] | None = getattr(view, "headers", None)  # there once the view dispatches
    if headers is None:
        return
    if refused:
        headers["Cache-Control"] = "no-store"
    if refused or not limits.guarded:
        headers.update(headers_of(limits.decided))

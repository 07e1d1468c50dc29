"""`LimitThrottle`: the throttle of a resource, and how all throttles of a view decide as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle, SimpleRateThrottle

from limits_app.core.amounts import Amount
from limits_app.core.errors import InvalidRequest, LimitExceeded, NeverAdmissible, StoreUnavailable
from limits_app.core.limits import Limit
from limits_app.core.outcome import LimitStatus, Outcome
from limits_app.integrations.amounts import so_much_of_each
from limits_app.integrations.charges import Key
from limits_app.integrations.drf.answers import await_refusal, await_response
from limits_app.integrations.drf.errors import TooMuchAtOnce, Unavailable
from limits_app.integrations.identity import identify
from limits_app.integrations.named import resource_named
from limits_app.integrations.request_limits import RequestLimits, limits_of
from limits_app.resolver import Limits
from limits_app.services import Share
from limits_app.services.asking import Asked

if TYPE_CHECKING:
    from rest_framework.views import APIView

__all__ = ["LimitThrottle", "decided", "decides_with_others", "http"]

_Method = TypeVar("_Method", bound=Callable[..., bool])

_share: Final[Callable[[tuple[str, str | None, Asked, Limits]], Share]] = partial(tuple.__new__, Share)
"""One of these, as `Share` makes it from names, which is a call more."""

_DECIDED: Final = "_limits_app_decided"
_PERMIT_SECONDS: Final = 1.0

_REFUSALS: Final = (LimitExceeded, NeverAdmissible, StoreUnavailable)
_HOOKS: Final = ("allow_request", "throttle_success", "throttle_failure")
_OURS: Final[set[object]] = {SimpleRateThrottle.throttle_success, SimpleRateThrottle.throttle_failure, None}


def decides_with_others(method: _Method) -> _Method:
    """For the `allow_request` of a class whose throttles may be charged before they are asked, with the others."""
    _OURS.add(method)
    return method


class _Decided(dict[Key, Outcome | None]):
    """What throttles were told of a request, by what they charge; None: it was admitted."""

    together = False
    """Whether those of the view have decided as one, which they do once."""


class LimitThrottle(BaseThrottle):
    """Lets a view run as the limits of `resource` admit, or of what the view has as its `throttle_scope`.

    All throttles of this kind that a view has are acquired together, all or nothing, and a request is charged once
    for a resource, however many ways in see it. `cost` is how much a request takes of each rate and of the calls;
    `default_limits` hold where administrators have set nothing. A throttle without a resource throttles nothing.
    """

    resource: str | None = None
    cost: Amount = 1
    default_limits: Sequence[Limit] = ()

    _violations: tuple[LimitStatus, ...] = ()
    _charges_site = True
    """Whether the site itself is charged where `get_entity` gives None, and not nobody."""

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
        entity = self.get_entity(request, view)
        if entity is None and not self._charges_site:
            return None
        cost = self.get_cost(request, view)
        asked = None if cost == 1 else partial(so_much_of_each, cost)
        return _share((resource_named(resource), entity, asked, tuple(self.default_limits)))

    def share_beside(self, request: Request, view: APIView) -> Share | None:
        """`get_share` for a throttle that another one is charged together with, before it is asked itself."""
        return self.get_share(request, view)

    @decides_with_others
    def allow_request(self, request: Request, view: APIView) -> bool:
        """Decide for all throttles of the view, when the first of them is asked: when one refuses, all do.

        A class with an `allow_request` of its own decides for itself alone, when that one asks for it.
        """
        self._violations = ()
        share = self.get_share(request, view)
        return share is None or self._is_admitted(request, view, share)

    def _is_admitted(self, request: Request, view: APIView, share: Share) -> bool:
        """Decide, once for a request, and note what refused it."""
        whole: Any = getattr(request, "_request", request)
        limits = getattr(whole, "limits", None)
        if limits is None:  # `limits_of` what `http` gives, which is two calls more
            limits = whole.limits = RequestLimits(whole)
        try:
            alone = len(view.throttle_classes) == 1 and type(view).get_throttles is _api_view().get_throttles
        except (AttributeError, TypeError):  # whatever a test hands over instead of a view
            alone = False
        if not alone or limits.charges or limits.throttled:
            return self._is_admitted_beside(limits, request, view, share)
        try:
            limits.take_new(share)
        except _REFUSALS as error:
            await_refusal(limits, view)
            outcome = _outcome_of(error)
            _note(request, [share[:2]], outcome)
            return self._passes(share, outcome)
        if not limits.guarded:  # no middleware tells what is left
            await_response(limits, view)
        return True

    def _is_admitted_beside(self, limits: RequestLimits, request: Request, view: APIView, share: Share) -> bool:
        """`_is_admitted` where something else may charge the request, or has done so."""
        known, key = _noted(request), share[:2]
        if key in known or limits.was_charged(*key):
            return self._passes(share, known.get(key))
        shares: dict[Key, Share] = {}
        if not known.together and _is_one_of_several(self, view):
            shares = _shares(self, request, view, share)
        try:
            if shares:
                _charge(limits, [*shares.values()])
            else:
                limits.take_share(share)
        except _REFUSALS as error:
            await_refusal(limits, view)
            outcome = _outcome_of(error)
            _note(request, shares or [share[:2]], outcome, together=bool(shares))
            return self._passes(share, outcome)
        if shares:
            _note(request, shares, None, together=True)
        if not limits.guarded:
            await_response(limits, view)
        return True

    def _passes(self, share: Share, outcome: Outcome | None) -> bool:
        """Whether nothing has refused a share; notes what did."""
        if outcome is None:
            return True
        # What a pool refuses, or another throttle, has other names.
        own = tuple(status for status in outcome.violations if status.resource == share.resource)
        self._violations = own or outcome.violations
        return False

    def wait(self) -> float | None:
        """Seconds until it is worth trying again; None when that is never, or was not asked for."""
        if any(status.capacity == 0 for status in self._violations):
            return None
        known = [_PERMIT_SECONDS if one.retry_after is None else one.retry_after for one in self._violations]
        return max(known, default=None)


@cache
def _api_view() -> type[APIView]:
    """The framework's view, whose module imports this one where settings name throttles for all views."""
    from rest_framework.views import APIView

    return APIView


def http(request: Request) -> HttpRequest:
    """The request of Django; whatever a test hands over instead is taken as one."""
    found: HttpRequest = getattr(request, "_request", request)
    return found


def decided(request: Request) -> Outcome | None:
    """What refused a request, and for longest; None where no throttle of this kind did."""
    refusals = [outcome for outcome in _noted(request).values() if outcome is not None]
    return max(refusals, key=lambda outcome: outcome.retry_after or 0, default=None)


def _noted(request: Request) -> _Decided:
    """What throttles were told of a request, to add to it."""
    # Not by getattr, which looks for what is not there in the request of Django as well.
    known: _Decided = vars(request).setdefault(_DECIDED, _Decided())
    return known


def _note(request: Request, keys: Iterable[Key], outcome: Outcome | None, *, together: bool = False) -> None:
    known = _noted(request)
    limits_of(http(request)).throttled = True
    known.together |= together
    known.update(dict.fromkeys(keys, outcome))


def _outcome_of(error: LimitExceeded | NeverAdmissible | StoreUnavailable) -> Outcome:
    """The outcome of a refusal; raises what the view has to answer otherwise."""
    if isinstance(error, NeverAdmissible):
        raise TooMuchAtOnce from error
    if isinstance(error, StoreUnavailable):
        raise Unavailable(error) from error
    return error.outcome


def _charge(limits: RequestLimits, shares: Sequence[Share]) -> None:
    """Charge all or nothing; one after the other what is counted in several stores, or cannot be at all."""
    try:
        limits.take_all(shares)
    except InvalidRequest:
        limits.take_each(shares)


def _is_one_of_several(throttle: LimitThrottle, view: APIView) -> bool:
    """Whether the view may have others that this one is to be charged together with."""
    usual = _api_view()
    if isinstance(view, usual) and (
        len(view.throttle_classes) != 1 or type(view).get_throttles is not usual.get_throttles
    ):
        return _is_like_all(type(throttle))
    return False


def _is_like_all(kind: object) -> TypeGuard[type[LimitThrottle]]:
    """Whether it is a class of throttles that says nothing of its own when it is asked, or has decided."""
    if not (isinstance(kind, type) and issubclass(kind, LimitThrottle)):
        return False
    return all(getattr(kind, name, None) in _OURS for name in _HOOKS)


def _shares(throttle: LimitThrottle, request: Request, view: APIView, own: Share) -> dict[Key, Share]:
    """The shares of all throttles of the view, the own one first; of those that are about the same the first counts."""
    if type(view).get_throttles is not _api_view().get_throttles:
        made = [one for one in view.get_throttles() if isinstance(one, LimitThrottle)]
        others = [one for one in made if _is_like_all(type(one))]
    else:  # making only those that are asked here
        others = [kind() for kind in view.throttle_classes if kind is not type(throttle) and _is_like_all(kind)]
    shares = {(own.resource, own.entity): own}
    for one in others:
        share = one.share_beside(request, view)
        if share is not None:
            shares.setdefault((share.resource, share.entity), share)
    return shares

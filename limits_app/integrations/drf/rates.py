"""Drop-in replacements of the REST framework's throttles, under the same names.

Rates come from `rate`, or from DEFAULT_THROTTLE_RATES by `scope`, until an administrator sets limits
on the resource that is named like the scope. What a request is charged is exact under any concurrency.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from django.utils.functional import classproperty
from rest_framework import throttling
from rest_framework.request import Request
from rest_framework.settings import api_settings

from limits_app.core.limits import Blocked, CallLimit, Limit, RateLimitAlgorithm
from limits_app.integrations.clients import client_at, client_of
from limits_app.integrations.drf.hooks import HookedThrottle
from limits_app.integrations.drf.throttle import decides_with_others, http
from limits_app.integrations.identity import sound, sound_user
from limits_app.services import Share

if TYPE_CHECKING:
    from rest_framework.views import APIView

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]

_ANONYMOUS_ONLY: Final = throttling.AnonRateThrottle.get_cache_key
_STOCK_KEYS: Final = (
    throttling.UserRateThrottle.get_cache_key,
    throttling.ScopedRateThrottle.get_cache_key,
    _ANONYMOUS_ONLY,
)
_FORMAT: Final = throttling.SimpleRateThrottle.cache_format
_PARSE_RATE: Final = throttling.SimpleRateThrottle.parse_rate
_STOCK_SCOPES: Final = (throttling.AnonRateThrottle.scope, throttling.UserRateThrottle.scope)


class SimpleRateThrottle(HookedThrottle):
    """A throttle whose `get_cache_key` says who is charged, and None: nobody.

    The state is in the store of the limits; `cache` and `timer` are there for classes that count by themselves.
    """

    _charges_site = False

    @classproperty
    def THROTTLE_RATES(cls) -> dict[str, str | None]:  # noqa: N802, N805 - the name is the framework's
        """The rates by scope, as they are now."""
        return cast("dict[str, str | None]", api_settings.DEFAULT_THROTTLE_RATES)

    def parse_rate(self, rate: str | None) -> tuple[int | None, int | None]:
        """Read a rate as the framework does, each once, since every request asks for it."""
        kind: Any = type(self)
        if throttling.SimpleRateThrottle.parse_rate is _PARSE_RATE:
            try:
                parsed = _parsed(kind, rate)
            except TypeError:  # of what only a class of one's own can read
                parsed = None
            if parsed is not None:
                return parsed
        return super().parse_rate(rate)

    def get_ident(self, request: Request) -> str:
        """The client: with NUM_PROXIES as the framework has it, else as LIMITS["TRUSTED_PROXIES"] says.

        Without either no header is believed, where the framework would take X-Forwarded-For as it comes.
        """
        if api_settings.NUM_PROXIES is not None:
            return client_at(super().get_ident(request) or "").removeprefix("ip:")
        return client_of(http(request)).removeprefix("ip:")

    def get_resource(self, request: Request, view: APIView) -> str | None:
        """The scope; of a class that has its own rate for a scope of the framework, also its name."""
        if self.resource or self.scope not in _STOCK_SCOPES or not getattr(type(self), "rate", None):
            return self.resource or self.scope
        return f"{self.scope}.{type(self).__name__}"

    def get_entity(self, request: Request, view: APIView) -> str | None:
        """Who is charged: the user, else the client, else what a `get_cache_key` of one's own says; None: nobody."""
        whose = type(self).get_cache_key
        if whose not in _STOCK_KEYS or self.cache_format != _FORMAT:
            key = self.get_cache_key(request, view)
            return None if key is None else sound(f"throttle:{key}")
        # What those of the framework say, without the text that they make of it.
        user: Any = request.user  # which may be None
        if whose is not _ANONYMOUS_ONLY:
            entity = sound_user(user)
            if entity is not None:
                return entity
        elif user and user.is_authenticated:  # also without a primary key
            return None
        return sound(f"ip:{self.get_ident(request)}")

    @property
    def default_limits(self) -> tuple[Limit, ...]:  # type: ignore[override]  # as the rate is when it is asked for
        """The rate, which holds until an administrator sets limits."""
        return () if self.rate is None else _limits(self.num_requests, self.duration)


class AnonRateThrottle(SimpleRateThrottle, throttling.AnonRateThrottle):
    """Limits clients that nobody is logged in from."""


class UserRateThrottle(SimpleRateThrottle, throttling.UserRateThrottle):
    """Limits users, and clients that nobody is logged in from."""


class ScopedRateThrottle(SimpleRateThrottle, throttling.ScopedRateThrottle):
    """Limits users and clients by the `throttle_scope` of the view; views without one are not throttled."""

    @decides_with_others
    def allow_request(self, request: Request, view: APIView) -> bool:
        """Decide by the scope of the view."""
        return not self._has_scope(view) or super().allow_request(request, view)

    def share_beside(self, request: Request, view: APIView) -> Share | None:
        """What the request is charged when another throttle is asked first; None for nothing."""
        return super().share_beside(request, view) if self._has_scope(view) else None

    def _has_scope(self, view: APIView) -> bool:
        """Take the scope from the view, and the rate from that."""
        self.scope = getattr(view, self.scope_attr, None)
        if self.scope:
            self.rate = self.get_rate()
            self.num_requests, self.duration = self.parse_rate(self.rate)
        return bool(self.scope)


@lru_cache(maxsize=1024)
def _parsed(kind: type[SimpleRateThrottle], rate: str | None) -> tuple[int | None, int | None] | None:
    """What a rate says; None where a class beside ours reads rates in its own way."""
    parse: Any = super(SimpleRateThrottle, kind).parse_rate
    return _PARSE_RATE(cast("Any", None), rate) if parse is _PARSE_RATE else None  # which asks no throttle


@lru_cache(maxsize=1024)
def _limits(capacity: int | None, seconds: float | None) -> tuple[Limit, ...]:
    """What a rate of the framework is: never more calls in any window than it says."""
    if capacity is None or seconds is None:
        return ()
    if capacity <= 0:
        return (Blocked(),)  # type: ignore[return-value]  # everything is refused
    return (CallLimit(capacity, seconds, RateLimitAlgorithm.SLIDING_WINDOW),)

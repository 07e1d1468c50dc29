"""Drop-in replacements of the REST framework's throttles, under the same names.

Rates come from `rate`, or from DEFAULT_THROTTLE_RATES by `scope`, until an administrator sets limits on the resource
that has the name of the scope. Counts are exact under any concurrency.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from django.utils.functional import classproperty
from rest_framework import throttling
from rest_framework.request import Request
from rest_framework.settings import api_settings

from limits_app.integrations.charges import Charge
from limits_app.integrations.drf.throttle import LimitThrottle
from limits_app.integrations.identity import client_at, client_of, normalize_entity
from limits_app.services.code_rates import limits_of_rate
from limits_app.services.integration import (
    LimitDefinition,
    RateLimitAlgorithm,
    identifier_of_user,
    is_logged_in,
    prefixes,
)

if TYPE_CHECKING:
    from rest_framework.views import APIView

_ANONYMOUS_ONLY: Final = throttling.AnonRateThrottle.get_cache_key
_STOCK_KEYS: Final = (
    _ANONYMOUS_ONLY,
    throttling.UserRateThrottle.get_cache_key,
    throttling.ScopedRateThrottle.get_cache_key,
)
_STOCK_SCOPES: Final = (throttling.AnonRateThrottle.scope, throttling.UserRateThrottle.scope)


class SimpleRateThrottle(LimitThrottle, throttling.SimpleRateThrottle):
    """A throttle whose `get_cache_key` returns what identifies the client; None where it does not apply.

    `rate`, `scope`, `get_rate`, `parse_rate`, `get_ident`, `allow_request` and `wait` mean what they do in the
    framework. A rate of None lets every request pass.
    """

    num_requests: int | None = None
    duration: int | None = None

    @classproperty
    def THROTTLE_RATES(cls) -> dict[str, str | None]:  # noqa: N802, N805 - the name is the framework's
        """The rates by scope, as they are now."""
        return cast("dict[str, str | None]", api_settings.DEFAULT_THROTTLE_RATES)

    def get_ident(self, request: Request) -> str:
        """Return the client: with NUM_PROXIES as the framework does, else as LIMITS["TRUSTED_PROXIES"] says.

        Without either no header is trusted, where the framework would trust X-Forwarded-For.
        """
        if api_settings.NUM_PROXIES is not None:
            return client_at(super().get_ident(request) or "").removeprefix(prefixes.ADDRESS)
        return client_of(request).removeprefix(prefixes.ADDRESS)

    def get_resource(self, request: Request, view: APIView) -> str | None:
        """Return the scope; a class with its own rate for a scope of the framework adds its name."""
        if self.resource or self.scope not in _STOCK_SCOPES or not getattr(type(self), "rate", None):
            return self.resource or self.scope
        return f"{self.scope}.{type(self).__name__}"

    def get_entity(self, request: Request, view: APIView) -> str | None:
        """Return the user, else the client; with an overridden `get_cache_key`, the key; None: nothing is charged."""
        get_cache_key = type(self).get_cache_key
        if get_cache_key not in _STOCK_KEYS:
            key = self.get_cache_key(request, view)
            return None if key is None else normalize_entity(f"{prefixes.THROTTLE}{key}")
        user: Any = request.user  # which may be None
        if get_cache_key is _ANONYMOUS_ONLY and user and is_logged_in(user):
            return None
        return normalize_entity(identifier_of_user(user) or f"{prefixes.ADDRESS}{self.get_ident(request)}")

    def get_charge(self, request: Request, view: APIView) -> Charge | None:
        """Return what the request is charged; None without a rate, or without a key."""
        charge = None if self.rate is None else super().get_charge(request, view)
        return None if charge is None or charge.entity is None else charge

    @property
    def default_limits(self) -> tuple[LimitDefinition, ...]:  # type: ignore[override]  # as the rate is when it is needed
        """The rate, which applies until an administrator sets limits."""
        return _limits(self.num_requests, self.duration)


class AnonRateThrottle(SimpleRateThrottle, throttling.AnonRateThrottle):
    """Limits clients that are not logged in."""


class UserRateThrottle(SimpleRateThrottle, throttling.UserRateThrottle):
    """Limits users, and clients that are not logged in."""


class ScopedRateThrottle(SimpleRateThrottle, throttling.ScopedRateThrottle):
    """Limits users and clients by the `throttle_scope` of a view."""

    rate: str | None = None

    def get_charge(self, request: Request, view: APIView) -> Charge | None:
        """Read the scope and its rate; None for a view without a scope."""
        self.scope = getattr(view, self.scope_attr, None)
        if not self.scope:
            return None
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return super().get_charge(request, view)


@lru_cache(maxsize=1024)
def _limits(capacity: int | None, seconds: float | None) -> tuple[LimitDefinition, ...]:
    """Return the limit of a rate: never more requests in any window than it says."""
    if capacity is None or seconds is None:
        return ()
    return limits_of_rate(max(capacity, 0), seconds, RateLimitAlgorithm.SLIDING_WINDOW)

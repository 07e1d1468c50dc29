"""`@ratelimit` with the arguments of django-ratelimit, for sites that migrate from there.

The rate applies until an administrator sets limits on the resource that has the name of the group.
Of several decorators on one view the innermost has the name of the group; the next ones end in `.2`, `.3`, ...
Of several windows of one group the longest has its name, and the others end in their seconds, such as `.60s`:
in one bucket the shorter window would reset the longer one.
The windows of rates that a function returns always end in their seconds, so that all processes use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from limits_app.engine.errors import InvalidLimit
from limits_app.integrations.calls import is_awaited, report_response
from limits_app.integrations.holding import CallBlock
from limits_app.integrations.identity import (
    client_of,
    compared_text,
    entity_of_user,
    normalize_entity,
    resource_named,
)
from limits_app.integrations.refusals import REFUSALS, call_sync, refusal
from limits_app.integrations.request import limits_of
from limits_app.integrations.request_parts import readable
from limits_app.services.code_rates import limits_of_rate, parse_seconds
from limits_app.services.integration import LimitDefinition, RateLimitAlgorithm, prefixes
from limits_app.services.site_views import fits_method

F = TypeVar("F", bound=Callable[..., Any])
RateLimitKey = str | Callable[[str, HttpRequest], str]
Rate = str | tuple[int, int] | None
Rates = Rate | Callable[[str, HttpRequest], Rate]

ALL: Final = (None,)
UNSAFE: Final = ("DELETE", "PATCH", "POST", "PUT")

_DEPTH: Final = "limits_app_ratelimits"
_RATE: Final = re.compile(r"(\d+)/(\d*)([a-z]*)")

_CLIENTS: Final[dict[str, Callable[[HttpRequest], str]]] = {
    "ip": client_of,
    "user": lambda request: entity_of_user(getattr(request, "user", None)) or "anonymous",
    "user_or_ip": lambda request: entity_of_user(getattr(request, "user", None)) or client_of(request),
}
_VALUES: Final[dict[str, Callable[[HttpRequest, str], str]]] = {
    prefixes.QUERY: lambda request, name: request.GET.get(name, ""),
    prefixes.FORM: lambda request, name: request.POST.get(name, ""),
    prefixes.HEADER: lambda request, name: request.headers.get(name, ""),
}

_LONGEST: Final[dict[str, float]] = {}
"""The longest window of the rates with the same name, in seconds."""


def ratelimit(  # noqa: PLR0917 - the arguments are those of django-ratelimit
    group: str | None = None,
    key: RateLimitKey | None = None,
    rate: Rates = None,
    method: str | Sequence[str | None] = ALL,
    block: bool = True,
) -> Callable[[F], F]:
    """Let a view run so often for each `key`: `ip`, `user`, `user_or_ip`, `get:<name>`, `post:<name>`,
    `header:<name>`, or a function of the group and the request, whose value is counted as `ratelimit:<value>`.

    With `settings.RATELIMIT_ENABLE = False` nothing is limited, as in django-ratelimit.
    `rate` is such as `5/m` or `10/30s`, or a function of the group and the request; None limits nothing.
    Without `block` the view runs all the same, and `request.limited` says that it was too often.
    Raises ImproperlyConfigured for an invalid key or rate.
    """
    if not key:
        raise ImproperlyConfigured("ratelimit needs a key, such as 'user_or_ip'")
    _check_key(key)

    def decorate(view: F) -> F:
        rule = _RatelimitRule(
            group or _group_of(view), getattr(view, _DEPTH, 0) + 1, key, rate, _methods(method), block
        )
        rule.announce()

        @wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            limits = limits_of(request)
            with CallBlock(limits) as call:
                response = rule.refusal(request) or view(request, *args, **kwargs)
                return report_response(limits, response, call)

        @wraps(view)
        async def limited_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            limits = limits_of(request)
            async with CallBlock(limits) as call:
                response = await sync_to_async(rule.refusal)(request)  # keys and rates may query the database
                if response is None:
                    result = view(request, *args, **kwargs)
                    response = await result if isawaitable(result) else result
                return await sync_to_async(report_response)(limits, response, call)

        decorated = limited_async if iscoroutinefunction(view) or is_awaited(view) else limited
        setattr(decorated, _DEPTH, rule.depth)
        return cast(F, decorated)

    return decorate


class _RatelimitRule(NamedTuple):
    """The arguments of one decorator; `depth` counts the decorators of a view from the inside."""

    group: str
    depth: int
    key: RateLimitKey
    rate: Rates
    methods: frozenset[str] | None
    block: bool

    def announce(self) -> None:
        """Note the window of a rate that is known before the first request."""
        if isinstance(self.rate, tuple) or (isinstance(self.rate, str) and "." not in self.rate):
            window = limits_and_window(self.rate)[1]
            _LONGEST[self._name] = max(window, _LONGEST.get(self._name, window))

    def refusal(self, request: HttpRequest) -> HttpResponseBase | None:
        """Charge a request, and set `request.limited`; return a refusal where it is rejected and the rule blocks."""
        limited = getattr(request, "limited", False)
        try:
            self._charge(request)
        except REFUSALS as error:
            if self.block:
                return refusal(request, error, refunds=True)
            limited = True
        cast(Any, request).limited = limited
        return None

    def _charge(self, request: HttpRequest) -> None:
        if not getattr(settings, "RATELIMIT_ENABLE", True):
            return
        if self.methods is not None and not fits_method(self.methods, request.method or ""):
            return
        rate = self.rate
        if isinstance(rate, str) and "." in rate:
            rate = cast(Rates, import_string(rate))
        if callable(rate):
            rate = cast(Rate, call_sync(rate, self.group, request))
        if rate is None:
            return
        default_limits, window = limits_and_window(rate)
        # The client where the key is empty, since all requests would share that.
        entity = normalize_entity(_entity(self.key, self.group, request) or client_of(request))
        is_longest = rate is self.rate and window == _LONGEST[self._name]
        resource = resource_named(self._name if is_longest else f"{self._name}.{window:g}s")
        limits_of(request).charge(resource, entity, default_limits=default_limits)

    @property
    def _name(self) -> str:
        return self.group if self.depth == 1 else f"{self.group}.{self.depth}"


def _check_key(key: RateLimitKey) -> None:
    """Raise ImproperlyConfigured for a text that is no key and no path of a function.

    The path is imported with the first request, since the function may be in a module that imports this view.
    """
    if not isinstance(key, str) or key in _CLIENTS:
        return
    is_path = "." in key and all(part.isidentifier() for part in key.split("."))
    if not is_path and not key.startswith(tuple(_VALUES)):
        raise ImproperlyConfigured(f"ratelimit has no key {key!r}")


def _entity(key: RateLimitKey, group: str, request: HttpRequest) -> str:
    if isinstance(key, str) and key in _CLIENTS:
        return _CLIENTS[key](request)
    if isinstance(key, str) and key.startswith(tuple(_VALUES)):
        prefix = prefixes.prefix_of(key)
        value = compared_text(readable(_VALUES[prefix], request, key.removeprefix(prefix)))
        return value and f"{key}:{value}"
    function = import_string(key) if isinstance(key, str) and "." in key else key
    if not callable(function):
        raise ImproperlyConfigured(f"ratelimit has no key {key!r}")
    value = call_sync(function, group, request)
    return f"{prefixes.RATELIMIT}{value}" if value else ""


@lru_cache(maxsize=1024)
def limits_and_window(rate: str | tuple[int, int]) -> tuple[tuple[LimitDefinition, ...], float]:
    """The limits of a rate, and its window in seconds: 0 for a rate of 0, which blocks everything."""
    count, seconds = _parsed(rate) if isinstance(rate, str) else rate
    if seconds <= 0:
        raise ImproperlyConfigured(f"the period of the rate {rate!r} must be above 0")
    return limits_of_rate(count, seconds, RateLimitAlgorithm.FIXED_WINDOW), seconds if count else 0


def _parsed(rate: str) -> tuple[int, float]:
    try:
        if (match := _RATE.fullmatch(rate)) is not None:
            return int(match[1]), parse_seconds(match[2] + (match[3] or "s"))
    except InvalidLimit:
        pass  # the unit
    raise ImproperlyConfigured(f"the rate {rate!r} must be such as '5/m' or '10/30s', in s, m, h or d")


def _methods(method: str | Sequence[str | None]) -> frozenset[str] | None:
    names = (method,) if isinstance(method, str) else method
    return None if None in names else frozenset(name.upper() for name in names if name)


def _group_of(view: Callable[..., Any]) -> str:
    """The name of a view; of a class view that of the class, and of a method too, which may have inherited it."""
    inner: Any = view.func if isinstance(view, partial) else view
    owner = getattr(inner, "__self__", None)
    if owner is not None:
        return f"{_name_of(type(owner))}.{inner.__name__}"
    # What `as_view` gives has the same name for all classes; Django says which it is of, and the REST framework.
    of = getattr(inner, "view_class", None) or getattr(inner, "cls", None)
    return _name_of(of if isinstance(of, type) else inner)


def _name_of(named: Any) -> str:
    """Its name in its module; classes that `api_view` makes have only its last part."""
    return ".".join([named.__module__, *named.__qualname__.split(".")[:-1], named.__name__])


ratelimit.ALL = ALL  # type: ignore[attr-defined]  # where django-ratelimit has them
ratelimit.UNSAFE = UNSAFE  # type: ignore[attr-defined]

"""`@ratelimit` with the arguments of django-ratelimit, for sites that come from there.

The rate holds until an administrator sets limits on the resource that is named like the group.
Of several decorators on one view the innermost has the name of the group, and the next ones end in `.2`, `.3`, ...
Of several windows of one group the longest has its name, and the others end in their seconds, such as `.60s`:
in one bucket the shorter one would end the longer one before its time.
Windows of a rate that a function says always end in their seconds, so that all processes call them the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.module_loading import import_string

from limits_app.core.limits import Blocked, CallLimit, Limit, RateLimitAlgorithm
from limits_app.integrations.calls import Call, answer_of, request_among
from limits_app.integrations.clients import client_of
from limits_app.integrations.headers import tell
from limits_app.integrations.identity import of_user, sound
from limits_app.integrations.named import resource_named
from limits_app.integrations.refusals import REFUSALS, refusal
from limits_app.integrations.request_limits import limits_of

__all__ = ["ALL", "UNSAFE", "ratelimit"]

F = TypeVar("F", bound=Callable[..., Any])
Key = str | Callable[[str, HttpRequest], str]
Rate = str | tuple[int, int] | None
Rates = Rate | Callable[[str, HttpRequest], Rate]

ALL: Final = (None,)
UNSAFE: Final = ("DELETE", "PATCH", "POST", "PUT")

_DEPTH: Final = "limits_app_ratelimits"
_PERIODS: Final = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
_RATE: Final = re.compile(r"(\d+)/(\d*)([a-z]*)")

_WHO: Final[dict[str, Callable[[HttpRequest], str]]] = {
    "ip": client_of,
    "user": lambda request: of_user(getattr(request, "user", None)) or "anonymous",
    "user_or_ip": lambda request: of_user(getattr(request, "user", None)) or client_of(request),
}
_SAID: Final[dict[str, Callable[[HttpRequest, str], str]]] = {
    "get": lambda request, name: request.GET.get(name, ""),
    "post": lambda request, name: request.POST.get(name, ""),
    "header": lambda request, name: request.headers.get(name, ""),
}

_LONGEST: Final[dict[str, float]] = {}
"""The longest window of the announced rates of what has one name, in seconds."""


def ratelimit(  # noqa: PLR0917 - the arguments are those of django-ratelimit
    group: str | None = None,
    key: Key | None = None,
    rate: Rates = None,
    method: str | Sequence[str | None] = ALL,
    block: bool = True,
) -> Callable[[F], F]:
    """Let a view run so often for each `key`: `ip`, `user`, `user_or_ip`, `get:<name>`, `post:<name>`,
    `header:<name>`, or a function of the group and the request.

    `rate` is such as `5/m` or `10/30s`, or a function of the group and the request; None limits nothing.
    Without `block` the view runs all the same, and `request.limited` says that it was too often.
    Raises ImproperlyConfigured for a key or a rate that cannot be.
    """
    if not key:
        raise ImproperlyConfigured("ratelimit needs a key, such as 'user_or_ip'")

    def decorate(view: F) -> F:
        rule = _Rule(group or _group_of(view), getattr(view, _DEPTH, 0) + 1, key, rate, _methods(method), block)
        rule.announce()
        is_awaited = iscoroutinefunction(view) or Call(view, (), {}).is_awaited
        decorated = _asynchronous(rule, view) if is_awaited else _synchronous(rule, view)
        setattr(decorated, _DEPTH, rule.depth)
        return cast(F, decorated)

    return decorate


class _Rule(NamedTuple):
    group: str
    depth: int
    key: Key
    rate: Rates
    methods: frozenset[str] | None
    block: bool

    def announce(self) -> None:
        """Note the window of a rate that is known before the first request."""
        if isinstance(self.rate, tuple) or (isinstance(self.rate, str) and "." not in self.rate):
            window = _limits(self.rate)[1]
            _LONGEST[self._name] = max(window, _LONGEST.get(self._name, window))

    def demand(self, request: HttpRequest) -> _Demand | None:
        """What a request is charged; None where the rule is not about it."""
        if self.methods is not None and request.method not in self.methods:
            return None
        rate = self.rate
        if isinstance(rate, str) and "." in rate:
            rate = cast(Rates, import_string(rate))
        if callable(rate):
            rate = cast(Rate, answer_of(rate, self.group, request))
        if rate is None:
            return None
        limits, window = _limits(rate)
        # The client where nobody is named, since that would be everybody.
        entity = sound(_entity(self.key, self.group, request) or client_of(request))
        return _Demand(self._resource(window, announced=rate is self.rate), entity, limits)

    def _resource(self, window: float, *, announced: bool) -> str:
        name = self._name
        is_longest = announced and window == _LONGEST[name]
        return resource_named(name if is_longest else f"{name}.{window:g}s")

    @property
    def _name(self) -> str:
        return self.group if self.depth == 1 else f"{self.group}.{self.depth}"


class _Demand(NamedTuple):
    """Who is charged for which resource, and what holds where nothing is set."""

    resource: str
    entity: str
    default_limits: tuple[Limit, ...]


def _synchronous(rule: _Rule, view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        whole = request_among((request,)) or request
        limits = limits_of(whole)
        is_first = not limits.charges  # and hears of the response last
        try:
            demand = rule.demand(request)
            if demand is not None:
                limits.take(demand.resource, demand.entity, default_limits=demand.default_limits)
        except REFUSALS as error:
            if rule.block:
                return refusal(whole, error, gives_back=True)
            _mark(request, limited=True)
        _mark(request)
        response = view(request, *args, **kwargs)
        if not limits.guarded:
            tell(response, limits.answered(response) if is_first else limits.told(response))
        return response

    return limited


def _asynchronous(rule: _Rule, view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    async def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        whole = request_among((request,)) or request
        limits = limits_of(whole)
        is_first = not limits.charges
        try:
            demand = await sync_to_async(rule.demand)(request)
            if demand is not None:
                await limits.atake(demand.resource, demand.entity, default_limits=demand.default_limits)
        except REFUSALS as error:
            if rule.block:
                return await sync_to_async(refusal)(whole, error, gives_back=True)
            _mark(request, limited=True)
        _mark(request)
        response = view(request, *args, **kwargs)
        if isawaitable(response):
            response = await response
        if not limits.guarded:
            tell(response, limits.answered(response) if is_first else limits.told(response))
        return response

    return limited


def _mark(request: HttpRequest, *, limited: bool = False) -> None:
    """Say on the request whether any decorator found it too often."""
    cast(Any, request).limited = limited or getattr(request, "limited", False)


def _entity(key: Key, group: str, request: HttpRequest) -> str:
    if isinstance(key, str) and key in _WHO:
        return _WHO[key](request)
    if isinstance(key, str) and ":" in key:
        kind, name = key.split(":", 1)
        said = _SAID[kind](request, name) if kind in _SAID else ""
        if kind in _SAID:
            return said and f"{kind}:{name}:{said}"
    function = import_string(key) if isinstance(key, str) and "." in key else key
    if not callable(function):
        raise ImproperlyConfigured(f"ratelimit has no key {key!r}")
    value = answer_of(function, group, request)
    return f"key:{value}" if value else ""


@lru_cache(maxsize=1024)
def _limits(rate: str | tuple[int, int]) -> tuple[tuple[Limit, ...], float]:
    """What a rate is, and for how long what was used counts: not at all where everything is blocked."""
    count, seconds = _parsed(rate) if isinstance(rate, str) else rate
    if seconds <= 0:
        raise ImproperlyConfigured(f"the period of the rate {rate!r} must be above 0")
    if count == 0:
        return cast("tuple[Limit, ...]", (Blocked(),)), 0
    return (CallLimit(count, seconds, RateLimitAlgorithm.FIXED_WINDOW),), seconds


def _parsed(rate: str) -> tuple[int, int]:
    match = _RATE.fullmatch(rate)
    if match is None or match[3] not in _PERIODS:
        raise ImproperlyConfigured(f"the rate {rate!r} must be such as '5/m' or '10/30s', in s, m, h or d")
    return int(match[1]), int(match[2] or 1) * _PERIODS[match[3]]


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
    """Its name in its module; classes that `api_view` makes have only the last part of their own."""
    return ".".join([named.__module__, *named.__qualname__.split(".")[:-1], named.__name__])


ratelimit.ALL = ALL  # type: ignore[attr-defined]  # where django-ratelimit has them
ratelimit.UNSAFE = UNSAFE  # type: ignore[attr-defined]

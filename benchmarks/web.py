"""Rows of whole requests: what the middleware and a throttle add to a view, beside what others add to it.

Requests go through Django's handler, without a server and without a client, so that little else is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

from benchmarks import django_site
from benchmarks.harness import Contender, Effort, Figure, Samples, alternate, microseconds
from benchmarks.references import beside_redis, fixed_window
from benchmarks.rows import Line, Row, Skipped, at_most
from benchmarks.subjects import OURS, calls

__all__ = ["ROWS"]

_ENDPOINTS: Final = 1_000
_PLAIN: Final = "plain view"
_RATELIMIT: Final = "@ratelimit, local memory cache"
_RATELIMIT_REDIS: Final = "@ratelimit, Redis cache"
_THEIRS: Final = "DRF throttle, local memory cache"
_THEIRS_REDIS: Final = "DRF throttle, Redis cache"
_BARE: Final = "four lines over a held connection, and nothing else"
_FOUND: Final = "the limit set of limits_app, and nothing else"
_MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"
_IN_MEMORY: Final[Mapping[str, Any]] = {"STORES": {"default": {"KIND": "memory"}}, "HEADERS": "draft"}
_SILENT: Final = {**_IN_MEMORY, "HEADERS": "none"}
_HITS: Final = 10


def _middleware(effort: Effort) -> Iterable[Line]:
    with _site() as settings, TemporaryDirectory() as directory:
        from django.http import HttpRequest, HttpResponse
        from django.urls import path
        from django_ratelimit.decorators import ratelimit

        def view(_request: HttpRequest) -> HttpResponse:
            return HttpResponse("fine")

        _endpoints()
        limited = (path("page/500/", ratelimit(key="user", rate="100000000/h")(view)),)
        free = (path("page/500/", view),)
        plain, ours = _handler(settings), _handler(settings, _MIDDLEWARE)
        process = {"STORES": {"default": {"KIND": "process", "STATE_DIR": directory}}}

        def turns(limits: Mapping[str, Any], peer: str, *others: Contender) -> Samples:
            _use(settings, limits)
            contenders = [_request(_PLAIN, plain, free), _request(peer, plain, limited), _request(OURS, ours, free)]
            return alternate([*contenders, *others], effort)

        for where, limits, bar in (("in process", _IN_MEMORY, 0.6), ("process store", process, 0.8)):
            samples = turns(limits, _RATELIMIT)
            yield Line(f"{OURS}, {where}", _added(samples, OURS, _RATELIMIT), "x @ratelimit", at_most(bar))
        yield from _wholes(samples, _RATELIMIT, _PLAIN)
        with _redis() as (limits, port):
            once = fixed_window(port)
            bare = (path("page/500/", lambda request: (once(), view(request))[1]),)
            samples = turns(limits, _RATELIMIT_REDIS, _request(_BARE, plain, bare))
        yield Line(f"{OURS}, Redis", _added(samples, OURS, _RATELIMIT_REDIS), "x @ratelimit", at_most(0.6))
        yield Line(f"  {_BARE}", _added(samples, _BARE, _RATELIMIT_REDIS), "x @ratelimit")
        yield from _wholes(samples, _RATELIMIT_REDIS, _PLAIN)


def _throttle(effort: Effort) -> Iterable[Line]:
    with _site() as settings:
        from django.core.cache import cache
        from django.urls import path
        from rest_framework.throttling import UserRateThrottle as Theirs

        from limits_app.integrations.drf.rates import UserRateThrottle as Ours

        kinds = [type("Throttle", (kind,), {"scope": "bench", "rate": "100000000/hour"}) for kind in (Theirs, Ours)]
        plain, theirs, ours = ((path("page/500/", _api_view(*some)),) for some in ((), kinds[:1], kinds[1:]))
        handler = _handler(settings)

        def turns(limits: Mapping[str, Any], peer: str, *others: Contender) -> Samples:
            _use(settings, limits)
            contenders = [
                _request(_PLAIN, handler, plain),
                _request(peer, handler, theirs, cache.clear, slice_calls=_HITS),
                _request(OURS, handler, ours),
            ]
            return alternate([*contenders, *others], effort)

        # The framework's own throttle sends no headers, so what they cost is told by itself.
        for told, limits, bar in (("", _IN_MEMORY, at_most(1.0)), (", without headers", _SILENT, None)):
            samples = turns(limits, _THEIRS)
            yield Line(f"{OURS}, in process{told}", _added(samples, OURS, _THEIRS), "x DRF's own", bar)
        yield from _wholes(samples, _THEIRS, _PLAIN)
        with _redis() as (limits, port):
            _use(settings, limits)
            least = {_BARE: fixed_window(port), _FOUND: _found(kinds[1])}
            views = {name: (path("page/500/", _api_view(_asking(once))),) for name, once in least.items()}
            samples = turns(limits, _THEIRS_REDIS, *[_request(name, handler, view) for name, view in views.items()])
        yield Line(f"{OURS}, Redis", _added(samples, OURS, _THEIRS_REDIS), "x DRF's own", at_most(0.65))
        for name in least:
            yield Line(f"  {name}", _added(samples, name, _THEIRS_REDIS), "x DRF's own")
        yield from _wholes(samples, _THEIRS_REDIS, _PLAIN)


def _wholes(samples: Samples, *names: str) -> Iterable[Line]:
    return [Line(f"  {name}, the whole request", microseconds(samples, name), "us") for name in names]


def _added(samples: Samples, name: str, peer: str) -> Figure:
    """What a contender adds to the plain view, for each microsecond that a peer adds, in the same round."""
    base = samples.figures(_PLAIN)
    added = [own - plain for own, plain in zip(samples.figures(name), base, strict=True)]
    others = [own - plain for own, plain in zip(samples.figures(peer), base, strict=True)]
    ratios = sorted(own / other for own, other in zip(added, others, strict=True))
    quietest = base.index(min(base))
    return Figure(ratios[len(ratios) // 2], added[quietest] / others[quietest])


def _request(
    name: str, handler: Any, addresses: Any, prepare: Callable[[], object] | None = None, **options: Any
) -> Contender:
    from django.test import RequestFactory

    factory, user = RequestFactory(), SimpleNamespace(pk=42, is_authenticated=True)

    def once() -> Any:
        request: Any = factory.get("/page/500/")
        request.user, request.urlconf = user, addresses
        response = handler.get_response(request)
        response.close()  # as a server does when it was sent
        return response

    assert once().status_code == 200
    return Contender(name, once, prepare, **options)


def _handler(settings: Any, *middleware: str) -> Any:
    from django.core.handlers.base import BaseHandler

    settings.MIDDLEWARE = list(middleware)
    handler = BaseHandler()
    handler.load_middleware()
    return handler


def _api_view(*throttles: type) -> Any:
    from rest_framework.authentication import BaseAuthentication
    from rest_framework.renderers import JSONRenderer
    from rest_framework.response import Response
    from rest_framework.views import APIView

    class Known(BaseAuthentication):
        def authenticate(self, request: Any) -> tuple[Any, None]:
            return request._request.user, None

    class View(APIView):
        authentication_classes = (Known,)
        renderer_classes = (JSONRenderer,)
        throttle_classes = throttles

        def get(self, _request: Any) -> Response:
            return Response("fine")

    return View.as_view()


def _asking(once: Callable[[], object]) -> type:
    """A throttle that asks something, and has nothing around it."""
    from rest_framework.throttling import BaseThrottle

    class Asking(BaseThrottle):
        def allow_request(self, _request: Any, _view: Any) -> bool:
            return bool(once())

    return Asking


def _found(kind: Any) -> Callable[[], object]:
    """What a throttle of ours asks in the end: a limit set that is at hand, of somebody else."""
    from limits_app import limits

    throttle = kind()
    return limits.limit_set(throttle.scope, "user:43", throttle.default_limits).try_acquire


def _use(settings: Any, limits: Mapping[str, Any]) -> None:
    """Have the next requests use a store."""
    from limits_app.policies import resolver
    from limits_app.services.url_matching import endpoints

    settings.LIMITS = limits
    resolver.clear()
    endpoints.clear()


def _endpoints() -> None:
    """A thousand endpoints, half of them routes, on a resource with one call limit."""
    from limits_app.models import Endpoint, Limit, Policy, Resource

    resource, created = Resource.objects.get_or_create(name="bench")
    if created:
        Limit.from_definition(Policy.objects.create(resource=resource), calls()).save()
    Endpoint.objects.all().delete()
    for number in range(_ENDPOINTS):
        where = f"/page/{number}/" if number % 2 == 0 else f"/part{number}/<int:pk>/"
        Endpoint.objects.create(name=f"endpoint {number}", path=where, resource=resource)


@contextmanager
def _site() -> Iterator[Any]:
    """Settings to change, of a site with a database in memory."""
    try:
        django_site.start()
    except (ImportError, RuntimeError) as error:
        raise Skipped(f"the site does not start: {error}") from error
    from django.conf import settings
    from django.test.utils import override_settings

    with override_settings(LIMITS=_IN_MEMORY):
        yield settings


@contextmanager
def _redis() -> Iterator[tuple[Mapping[str, Any], int]]:
    """Caches on a Redis server of its own; gives settings for limits on it, in a database that no cache clears.

    And the port of the server.
    """
    from django.test.utils import override_settings

    with beside_redis() as (_, port):
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:{port}/1"}
        with override_settings(CACHES={"default": cache}):
            store = {"KIND": "redis", "URL": f"redis://127.0.0.1:{port}/0"}
            yield {"STORES": {"default": store}, "HEADERS": "draft"}, port


ROWS: Final = (
    Row(f"request: middleware with {_ENDPOINTS:,} endpoints, user entity, headers: added to a plain view", _middleware),
    Row("request: DRF throttle: added to an API view", _throttle),
)

"""Findings about endpoints: their paths and views in the URLs of the site, and the middleware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.urls import Resolver404, URLResolver, get_resolver, resolve
from django.urls.resolvers import RoutePattern
from django.utils.module_loading import import_string

from limits_app.models import Endpoint
from limits_app.models.endpoint import WILDCARD
from limits_app.services.definitions import FIELDS
from limits_app.services.doctor.environment import Finding, Severity
from limits_app.services.limits_file.content import Entry


class SiteUrls:
    """The views and paths of `ROOT_URLCONF`; a site without one may have anything."""

    def __init__(self) -> None:
        self._urls = getattr(settings, "ROOT_URLCONF", None)

    def have(self, path: str, view_name: str) -> bool:
        """Whether there may be a view of this name or, without a name, one at this path.

        Any may be at a route, below a wildcard, and at a path where paths depend on the language of a request.
        """
        if self._urls is None:
            return True
        if view_name:
            return view_name in self.views
        if "<" in path or WILDCARD in path:
            return True
        return any(is_language_prefix_patterns_used(self._urls)) or self._is_served(path)

    @cached_property
    def views(self) -> frozenset[str]:
        """The names of all views, as requests have them once they are resolved."""
        return frozenset(_names_in(get_resolver(self._urls)))

    @cached_property
    def routes(self) -> frozenset[str]:
        """The routes of all views that `path()` defines."""
        return frozenset(_routes_in(get_resolver(self._urls)))

    def _is_served(self, path: str) -> bool:
        try:
            resolve(path, self._urls)
        except Resolver404:
            return False
        return True


def _names_in(urls: URLResolver, namespaces: tuple[str, ...] = ()) -> Iterator[str]:
    for entry in urls.url_patterns:
        if isinstance(entry, URLResolver):
            yield from _names_in(entry, (*namespaces, entry.namespace) if entry.namespace else namespaces)
        else:
            yield ":".join((*namespaces, entry.name or entry.lookup_str))


def _routes_in(urls: URLResolver, before: str = "/") -> Iterator[str]:
    for entry in urls.url_patterns:
        if not isinstance(entry.pattern, RoutePattern):
            continue
        route = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _routes_in(entry, route)
        else:
            yield route


_ID: Final = "limits_app.D019"
_ADVICE: Final = "Correct it, or delete the endpoint: a {what} counts as it is written."
_TARGET: Final = tuple(
    name for name in FIELDS[Endpoint] if name not in {"name", "limits", "resource", "amounts", "order"}
)
_MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"


def unseen(endpoints: Sequence[Entry]) -> Iterator[Finding]:
    """Endpoints of a site without LimitsMiddleware or a subclass of it."""
    many = sum(endpoint.state["enabled"] for endpoint in endpoints)
    if many and not any(_is_ours(name) for name in settings.MIDDLEWARE):
        yield Finding(
            "limits_app.D024",
            Severity.WARNING,
            f"endpoints have no effect, because MIDDLEWARE does not contain LimitsMiddleware: {many}",
            f"Add {_MIDDLEWARE!r} to MIDDLEWARE, behind AuthenticationMiddleware.",
        )


def _is_ours(name: str) -> bool:
    try:
        made_of = getattr(import_string(name), "__mro__", ())
    except ImportError:  # an error when the site starts
        return False
    return _MIDDLEWARE in {f"{one.__module__}.{one.__qualname__}" for one in made_of}


def pointless(endpoints: Sequence[Entry]) -> Iterator[Finding]:
    """Endpoints with a view or an exact path that is not in the URLs of the site."""
    urls = SiteUrls()
    for endpoint in endpoints:
        path, view = endpoint.state["path"], endpoint.state["view_name"]
        if not endpoint.state["enabled"] or urls.have(path, view):
            continue
        if view:
            message = f"{endpoint.label} is about the view {view!r}, which the site does not have"
            yield Finding(_ID, Severity.WARNING, message, _ADVICE.format(what="name"))
        else:
            message = f"{endpoint.label} is about {path!r}, where the site has no view"
            yield Finding(_ID, Severity.INFO, message, _ADVICE.format(what="path"))


def hidden(endpoints: Sequence[Entry]) -> Iterator[Finding]:
    """Endpoints that never count, since another one with the same path or view comes first and stops there."""
    rules = [
        (entry, Endpoint(pk=place, order=entry.key[1], **{name: entry.state[name] for name in _TARGET}))
        for place, entry in enumerate(endpoints)
        if entry.state["enabled"]
    ]
    by_target: dict[tuple[str, str], list[tuple[Entry, Endpoint]]] = {}
    for entry, rule in rules:
        by_target.setdefault((rule.path.lstrip("/"), rule.view_name), []).append((entry, rule))
    for same in by_target.values():
        for entry, rule in same:
            first = next((other for other, one in same if one.hides(rule)), None)
            if first is not None:
                yield Finding(
                    "limits_app.D025",
                    Severity.WARNING,
                    f"{entry.label} never counts: {first.label} comes first and stops there",
                    "Give it a lower order or other methods, or delete one of them.",
                )

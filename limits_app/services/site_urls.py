"""The URLs of the site: whether it has the path or view of a rule, and the views that a rule is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dis import get_instructions
from functools import cached_property
from types import CodeType
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.urls import LocalePrefixPattern, Resolver404, ResolverMatch, URLPattern, URLResolver, get_resolver, resolve
from django.urls.resolvers import RoutePattern
from django.utils.module_loading import import_string
from django.utils.regex_helper import normalize

from limits_app.models.validators import WILDCARD, route_pattern
from limits_app.services.site_views import other_methods

FORWARD_AUTH: Final = "limits_forward_auth"
"""The attribute of views that proxies ask about requests to other programs."""
MOST_SHOWN_URLS: Final = 5
"""How many other URLs of a rule a message names."""
_LANGUAGE: Final = "<language>/"
"""What precedes the URLs of `i18n_patterns()`, of which some sites leave it out for their own language."""
_MOST_VIEWS: Final = 100
"""Of how many views of one rule the methods are compared."""


class _Prefix(NamedTuple):
    """What precedes URLs: their route (None where `re_path()` defines it), as people see it, and as Django resolves it.

    People see `/orders.<format>`; `resolved` is the route of the requests.
    """

    route: str | None
    shown: str
    resolved: str


class _Entry(NamedTuple):
    """A view in the URLs: its name as requests have it, the view, and its URL; see `_Prefix`."""

    name: str
    view: Callable[..., Any]
    route: str | None
    shown: str
    resolved: str


class SiteUrls:
    """The views and paths of `ROOT_URLCONF`.

    A site without one may have anything, and so may one whose middleware chooses other URLs, as for each host.
    """

    def __init__(self) -> None:
        self._urls = getattr(settings, "ROOT_URLCONF", None)
        self._has_others = any(map(_sets_urlconf, settings.MIDDLEWARE))

    def have(self, path: str, view_name: str) -> bool:
        """Whether there may be a view of this name or, without a name, one at this path.

        Any may be at a route, below a wildcard, at a path where paths depend on the language of a request, and at one
        of another program, where proxies ask this site about requests to it.
        """
        if self._urls is None or self._has_others:
            return True
        if view_name:
            return view_name in self.views
        if self.answers_proxies:
            return True
        if "<" in path or WILDCARD in path:
            return True
        return any(is_language_prefix_patterns_used(self._urls)) or self._match(path) is not None

    def matching(self, path: str) -> int | None:
        """How many URLs of the site a path, route or pattern matches; None where that is unknown."""
        if self._urls is None or self._has_others or self.answers_proxies:
            return None
        if "<" not in path and WILDCARD not in path:
            return int(self.have(path, ""))
        fits = _fits(path)
        matching = sum(1 for route in self.routes if fits(route.removeprefix("/")))
        has_unknown = any(entry.route is None for entry in self._entries)
        return matching or (None if has_unknown else 0)

    def views_of(self, path: str, view_name: str) -> list[Callable[..., Any]]:
        """Return the views of this name or, without a name, at this path, route or pattern, each once."""
        if view_name:
            views = [entry.view for entry in self._entries if entry.name == view_name]
        elif "<" in path or WILDCARD in path:
            fits = _fits(path)
            views = [entry.view for entry in self._entries if entry.route and fits(entry.route.removeprefix("/"))]
        else:
            match = self._match(path)
            views = [] if match is None else [match.func]
        return [*dict.fromkeys(views)][:_MOST_VIEWS]

    def other_methods(self, path: str, view_name: str, methods: Collection[str]) -> list[str] | None:
        """Return the methods that the views of a rule answer and that it does not match; None for any other method."""
        others: set[str] = set()
        for view in self.views_of(path, view_name) if methods else ():
            allowed = other_methods(view, methods)
            if allowed is None:
                return None
            others.update(allowed)
        return sorted(others)

    def other_urls(self, path: str, view_name: str) -> list[str]:
        """Return the URLs of the views at the path of a rule that it does not match, such as `/orders.<format>`.

        A rule with the name of a view matches all of them.
        """
        if view_name or self._has_others:
            return []
        views = self.views_of(path, "")
        entries = [entry for entry in self._entries if entry.view in views]
        if "<" in path or WILDCARD in path:
            fits = _fits(path)
            return sorted({entry.shown for entry in entries if not fits((entry.route or entry.shown).lstrip("/"))})
        match = self._match(path)
        route = "" if match is None else match.route
        others = {entry.shown for entry in entries if entry.resolved != route or _LANGUAGE in entry.shown}
        with_or_without_slash = path.rstrip("/") if path.endswith("/") else f"{path}/"
        again = self._match(with_or_without_slash)
        if again is not None and again.route == route:
            others.add(with_or_without_slash)
        return sorted(others)

    def marked(self, mark: str) -> list[tuple[str, str]]:
        """Return the routes and the names of the views that have an attribute; a route is empty for `re_path()`."""
        return [(entry.route or "", entry.name) for entry in self._entries if getattr(entry.view, mark, False)]

    def throttle_scopes(self) -> Iterator[str]:
        """The scopes of the throttles of REST framework's views, which are resources."""
        for entry in self._entries:
            view_class = getattr(entry.view, "cls", None)
            for source in (view_class, *getattr(view_class, "throttle_classes", ())):
                names = [getattr(source, name, None) for name in ("throttle_scope", "scope", "resource")]
                yield from (name for name in names if isinstance(name, str))

    @cached_property
    def answers_proxies(self) -> bool:
        """Whether a view for forward-auth is in the URLs, so that rules may be about paths of other programs."""
        return bool(self.marked(FORWARD_AUTH))

    @cached_property
    def views(self) -> frozenset[str]:
        """The names of all views, as requests have them once they are resolved."""
        return frozenset(entry.name for entry in self._entries)

    @cached_property
    def routes(self) -> frozenset[str]:
        """The routes of all views that `path()` defines."""
        return frozenset(entry.route for entry in self._entries if entry.route is not None)

    @cached_property
    def _entries(self) -> list[_Entry]:
        return [] if self._urls is None else [*_entries_of(get_resolver(self._urls), (), _Prefix("/", "/", ""))]

    def _match(self, path: str) -> ResolverMatch | None:
        try:
            return None if self._urls is None else resolve(path, self._urls)
        except Resolver404:
            return None


def _fits(path: str) -> Callable[[str], object]:
    """Whether a route of the site, without its first slash, is what a route or pattern of a rule matches."""
    if WILDCARD not in path:
        return path.lstrip("/").__eq__
    return re.compile(route_pattern(path).regex.pattern).search


def _sets_urlconf(middleware: str) -> bool:
    """Whether the code of a middleware assigns `request.urlconf`."""
    try:
        middleware_class = import_string(middleware)
    except ImportError:  # an error when the site starts
        return False
    kinds = middleware_class.__mro__ if isinstance(middleware_class, type) else (middleware_class,)
    functions = [value for kind in kinds for value in (vars(kind).values() if isinstance(kind, type) else (kind,))]
    codes = [getattr(getattr(function, "__func__", function), "__code__", None) for function in functions]
    return any(_assigns(code, "urlconf") for code in codes if code is not None)


def _assigns(code: CodeType, name: str) -> bool:
    """Whether a function, or one inside it, assigns an attribute of this name."""
    is_named = name in code.co_names  # which spares disassembling nearly all functions
    if is_named and any((step.opname, step.argval) == ("STORE_ATTR", name) for step in get_instructions(code)):
        return True
    return any(_assigns(constant, name) for constant in code.co_consts if isinstance(constant, CodeType))


def _entries_of(urls: URLResolver, namespaces: tuple[str, ...], before: _Prefix) -> Iterator[_Entry]:
    for entry in urls.url_patterns:
        is_route = before.route is not None and isinstance(entry.pattern, RoutePattern)
        route = f"{before.route}{entry.pattern}" if is_route else None
        resolved = str(entry.pattern).removeprefix("^" if before.resolved else "")
        prefix = _Prefix(route, before.shown + _shown(entry), before.resolved + resolved)
        if isinstance(entry, URLResolver):
            inner = (*namespaces, entry.namespace) if entry.namespace else namespaces
            yield from _entries_of(entry, inner, prefix)
        else:
            yield _Entry(":".join((*namespaces, entry.name or entry.lookup_str)), entry.callback, *prefix)


def _shown(entry: URLPattern | URLResolver) -> str:
    """The part of a URL that a pattern matches, as people write it."""
    if isinstance(entry.pattern, LocalePrefixPattern):
        return _LANGUAGE
    if isinstance(entry.pattern, RoutePattern):
        return str(entry.pattern)
    [(text, names), *_others] = normalize(str(entry.pattern)) or [(str(entry.pattern), [])]
    return text % {name: f"<{name.lstrip('_')}>" for name in names}

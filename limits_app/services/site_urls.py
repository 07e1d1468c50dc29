"""What the URLs of the site have, so far as can be told without a request."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.urls import Resolver404, URLResolver, get_resolver, resolve

__all__ = ["SiteUrls"]


class SiteUrls:
    """The views and paths of `ROOT_URLCONF`; a site without one may have anything."""

    def __init__(self) -> None:
        self._urls = getattr(settings, "ROOT_URLCONF", None)

    def have(self, path: str, view_name: str) -> bool:
        """Whether there may be a view of this name or, without a name, one at this path.

        Any may be at a route, and at a path where paths depend on the language of a request.
        """
        if self._urls is None:
            return True
        if view_name:
            return view_name in self._views
        return "<" in path or any(is_language_prefix_patterns_used(self._urls)) or self._is_served(path)

    @cached_property
    def _views(self) -> frozenset[str]:
        return frozenset(_names_in(get_resolver(self._urls)))

    def _is_served(self, path: str) -> bool:
        try:
            resolve(path, self._urls)
        except Resolver404:
            return False
        return True


def _names_in(urls: URLResolver, namespaces: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all views, as requests have them once they are resolved."""
    for entry in urls.url_patterns:
        if isinstance(entry, URLResolver):
            yield from _names_in(entry, (*namespaces, entry.namespace) if entry.namespace else namespaces)
        else:
            yield ":".join((*namespaces, entry.name or entry.lookup_str))

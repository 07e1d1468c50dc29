"""Whether endpoints are about something that the site has, and whether anybody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from django.conf import settings
from django.utils.module_loading import import_string

from limits_app.services.doctor.finding import Finding, Severity
from limits_app.services.limits_file.content import Entry
from limits_app.services.site_urls import SiteUrls

__all__ = ["pointless", "unseen"]

_ID: Final = "limits_app.D019"
_ADVICE: Final = "Correct it, or delete the endpoint: a {what} counts as it is written, and has no wildcards."
_MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"


def unseen(endpoints: Sequence[Entry]) -> Iterator[Finding]:
    """Endpoints of a site without the middleware, or a class made of it, which are what it looks for."""
    many = sum(endpoint.state["enabled"] for endpoint in endpoints)
    if many and not any(_is_ours(name) for name in settings.MIDDLEWARE):
        yield Finding(
            "limits_app.D024",
            Severity.WARNING,
            f"endpoints that nobody looks at, since MIDDLEWARE has no LimitsMiddleware: {many}",
            f"Add {_MIDDLEWARE!r} to MIDDLEWARE, behind AuthenticationMiddleware.",
        )


def _is_ours(name: str) -> bool:
    try:
        made_of = getattr(import_string(name), "__mro__", ())
    except ImportError:  # which keeps the site from starting, and says so there
        return False
    return _MIDDLEWARE in {f"{one.__module__}.{one.__qualname__}" for one in made_of}


def pointless(endpoints: Sequence[Entry]) -> Iterator[Finding]:
    """Endpoints that name a view or an exact path which the URLs of the site do not have."""
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

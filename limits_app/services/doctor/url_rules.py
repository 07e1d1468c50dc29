"""Findings about URL rules: which never apply, and which of them clients escape from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from django.conf import settings
from django.utils.module_loading import import_string

from limits_app.models import WITHOUT_CONDITIONS, Endpoint, registered
from limits_app.services.doctor.environment import MOST_LISTED, Finding, Severity
from limits_app.services.limits_file.content import FileEntry
from limits_app.services.site_urls import SiteUrls
from limits_app.services.site_views import MIDDLEWARE

_ID: Final = "limits_app.D019"
_ADVICE: Final = "Correct it, or delete the endpoint: a {what} is case-sensitive."
_TARGET: Final = tuple(
    name
    for name in registered(Endpoint).fields
    if name not in {"name", "limits", "resource", "amounts", "order", *WITHOUT_CONDITIONS}
)


def of_url_rules(endpoints: Sequence[FileEntry], using: str) -> Iterator[Finding]:
    """All findings about the URL rules of a site, which `endpoints` are in the form of a limits file."""
    yield from _unseen(endpoints)
    yield from islice(_pointless(endpoints), MOST_LISTED)
    yield from islice(_hidden(endpoints), MOST_LISTED)
    yield from _escaped(using)
    yield from _chosen(using)
    yield from _undone_in_buckets(using)


def _unseen(endpoints: Sequence[FileEntry]) -> Iterator[Finding]:
    """Endpoints of a site without LimitsMiddleware or a subclass of it, that no proxy asks either."""
    many = sum(endpoint.state["enabled"] for endpoint in endpoints)
    if many and not any(_is_ours(name) for name in settings.MIDDLEWARE) and not SiteUrls().answers_proxies:
        yield Finding(
            "limits_app.D024",
            Severity.WARNING,
            f"endpoints have no effect, because MIDDLEWARE does not contain LimitsMiddleware: {many}",
            f"Add {MIDDLEWARE!r} to MIDDLEWARE, behind AuthenticationMiddleware.",
        )


def _is_ours(name: str) -> bool:
    try:
        made_of = getattr(import_string(name), "__mro__", ())
    except ImportError:  # an error when the site starts
        return False
    return MIDDLEWARE in {f"{middleware.__module__}.{middleware.__qualname__}" for middleware in made_of}


def _escaped(using: str) -> Iterator[Finding]:
    """Rules that clients escape from as far as they have many counters, where no other rule counts them alone."""
    rules = Endpoint.objects.using(using).filter(enabled=True).exclude(combined_with="")
    for rule in islice((rule for rule in rules if rule.is_escaped and not rule.is_bounded()), MOST_LISTED):
        yield Finding(
            "limits_app.D034",
            Severity.INFO,
            f"the rule {rule.name!r} combines a part of the request that clients choose: by other values a client has "
            "its limits up to 1,024 times",
            "Add a rule for the same path that counts by IP address or user alone, with higher limits.",
        )


def _chosen(using: str) -> Iterator[Finding]:
    """Rules by a header or session that clients may choose, where no other rule counts clients whatever they send."""
    rules = Endpoint.objects.using(using).filter(enabled=True)
    for rule in islice((rule for rule in rules if rule.counts_by_choice and not rule.is_bounded()), MOST_LISTED):
        yield Finding(
            "limits_app.D037",
            Severity.INFO,
            f"the rule {rule.name!r} counts by {rule.get_counted_by_display()}: a client that sends a new one with "
            "each request has no limit",
            "Add a rule for the same path that counts by IP address or user. No action is required if a proxy sets the "
            "header, or a log-in protects the view.",
        )


def _undone_in_buckets(using: str) -> Iterator[Finding]:
    """Rules for certain responses whose limits are buckets, of which other responses use up a part."""
    rules = Endpoint.objects.using(using).filter(enabled=True).exclude(responses="")
    for rule in islice((rule for rule in rules if rule.undoes_in_buckets), MOST_LISTED):
        yield Finding(
            "limits_app.D035",
            Severity.INFO,
            f"the rule {rule.name!r} counts certain responses in a bucket: requests that run at the same time use up a "
            "part of it, also those that do not count",
            "Add `:sliding_window` to its limits.",
        )


def _pointless(endpoints: Sequence[FileEntry]) -> Iterator[Finding]:
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


def _hidden(endpoints: Sequence[FileEntry]) -> Iterator[Finding]:
    """Endpoints that never apply, since another one with the same path or view comes first and skips later rules."""
    rules = [
        (entry, Endpoint(pk=number, order=entry.key[1], **{name: entry.state[name] for name in _TARGET}))
        for number, entry in enumerate(endpoints)
        if entry.state["enabled"]
    ]
    by_target: dict[tuple[str, str], list[tuple[FileEntry, Endpoint]]] = {}
    for entry, rule in rules:
        by_target.setdefault((rule.path.lstrip("/"), rule.view_name), []).append((entry, rule))
    for same in by_target.values():
        for entry, rule in same:
            first = next((other for other, rule_of_other in same if rule_of_other.hides(rule)), None)
            if first is not None:
                yield Finding(
                    "limits_app.D025",
                    Severity.WARNING,
                    f"{entry.label} never applies: {first.label} comes first and skips later rules",
                    "Give it a lower order or other methods, or delete one of them.",
                )

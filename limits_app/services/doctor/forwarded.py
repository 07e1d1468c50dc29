"""Findings about rules for URLs where proxies ask the site about requests to other programs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from limits_app.engine.limits import ResourceLimit
from limits_app.models import Endpoint, Limit
from limits_app.services.doctor.environment import MOST_LISTED, Finding, Severity
from limits_app.services.site_urls import SiteUrls

_ID: Final = "limits_app.D031"
_NAME: Final = "Use a path in place of the name, unless the rule is for pages of this site only."
_RESPONSE: Final = "Count all responses there, unless the rule is for pages of this site only."
_FORM: Final = "Combine a header or a cookie, unless the rule is for pages of this site only."
_PERMITS: Final = "Limit the rate instead, unless the rule is for pages of this site only."


def not_forwarded(using: str) -> Iterator[Finding]:
    """What rules do not limit where a view for forward-auth is in the URLs: views, and requests at the same time."""
    rules = Endpoint.objects.using(using).filter(enabled=True).order_by("order", "pk")
    if not rules.exists() or not SiteUrls().answers_proxies:
        return
    for name in rules.exclude(view_name="").values_list("name", flat=True)[:MOST_LISTED]:
        yield _finding(f"the rule {name!r} is for a view by its name", _NAME)
    with_path = rules.filter(view_name="").select_related("resource")
    for name in with_path.exclude(responses="", cost="").values_list("name", flat=True)[:MOST_LISTED]:
        yield _finding(f"the rule {name!r} needs the response", _RESPONSE)
    for name in with_path.filter(combined_with__contains="form:").values_list("name", flat=True)[:MOST_LISTED]:
        message = f"the rule {name!r} combines a field of a form: it is empty in requests about which a proxy asks"
        yield Finding(_ID, Severity.INFO, message, _FORM)
    permits = set(
        Limit.objects.using(using)
        .filter(policy__resource__in=with_path.values("resource"))
        .exclude(text__contains="/")
        .values_list("policy__resource__name", "key", "text")
        .distinct()
    )
    keys = {
        (name, key) for name, key, text in permits if isinstance(Limit(key=key, text=text).definition(), ResourceLimit)
    }
    for name, key in islice(sorted(keys), MOST_LISTED):
        yield _finding(f"the limit {key!r} of the resource {name!r} is for requests at the same time", _PERMITS)


def _finding(subject: str, advice: str) -> Finding:
    message = f"{subject}: it does not apply to requests about which a proxy asks"
    return Finding(_ID, Severity.INFO, message, advice)

"""Resources that were made for URL rules, by the URLs that people know them by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from django.db.models import Q

from limits_app.models import Endpoint, Resource
from limits_app.models.rule_resources import MADE_FOR_RULE

_MOST_FOUND: Final = 50
_MADE: Final = re.compile(rf"(?<![\w./-]){MADE_FOR_RULE}[\w./-]*\w")
"""The name of a resource in a text that may have been made for a URL rule."""


def label_of(rule: Endpoint) -> str:
    """The path or the view of a rule."""
    return rule.path or rule.view_name


def rules_of_resources(resources: Iterable[str | None]) -> dict[str, Endpoint]:
    """The URL rules for whose limits some of these resources were made, by the names of the resources."""
    names = {name for name in resources if name and name.startswith(MADE_FOR_RULE)}
    rules = Endpoint.objects.filter(limits_resource__in=names) if names else Endpoint.objects.none()
    return {rule.limits_resource: rule for rule in rules}


def urls_named_in(texts: Iterable[str]) -> dict[str, str]:
    """The paths or views of the URL rules whose resources texts name, by the names of the resources."""
    return resource_labels(name for text in texts for name in _MADE.findall(text))


def with_urls(text: str, urls: Mapping[str, str]) -> str:
    """A text with URLs in place of the names of resources, as `urls_named_in` returns them."""
    return _MADE.sub(lambda name: urls.get(name[0], name[0]), text)


def resource_of(text: str) -> str:
    """The resource that people mean by a text: its name, or the path or view of the rule for which it was made."""
    if not text or Resource.objects.filter(name=text).exists():
        return text
    rules = Endpoint.objects.filter(Q(path=text) | Q(view_name=text)).exclude(limits_resource="")
    names = {*rules.values_list("limits_resource", flat=True)[:2]}
    return names.pop() if len(names) == 1 else text


def resources_of_urls(text: str) -> list[str]:
    """The first resources that were made for rules whose paths or views begin with a text."""
    if not text or "\0" in text:
        return []
    rules = Endpoint.objects.filter(Q(path__startswith=text) | Q(view_name__startswith=text)).exclude(
        limits_resource=""
    )
    return [*rules.order_by("limits_resource").values_list("limits_resource", flat=True)[:_MOST_FOUND]]


def resource_labels(resources: Iterable[str | None]) -> dict[str, str]:
    """The paths or views of the URL rules for which resources were made, by the names of the resources."""
    return {name: label_of(rule) for name, rule in rules_of_resources(resources).items()}

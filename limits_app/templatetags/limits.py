"""`{% load limits %}`: the limits of the current request, in a template."""

from __future__ import annotations

from typing import Any

from django import template
from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static

from limits_app.integrations.request import limits_of
from limits_app.services import limit_words
from limits_app.services.display import duration, moment
from limits_app.services.limit_words import OwnLimit, limit_name, own_limits_or_none

register = template.Library()
register.filter(limit_name)
register.filter(moment)
register.filter(duration)


@register.simple_tag
def limits_stylesheet() -> str | None:
    """Return the URL of the stylesheet; None where static files are not collected, because a page must not fail."""
    try:
        return static("limits_app/page.css")
    except (ImproperlyConfigured, ValueError):
        return None


@register.simple_tag(takes_context=True)
def own_limits(context: template.Context, *resources: str) -> list[OwnLimit] | None:
    """Return the limits of the entity of the request on some resources, or on all: `{% own_limits "api" as mine %}`.

    None while they cannot be read, as during an outage of the store.
    """
    limits = limits_of(context["request"])
    return own_limits_or_none(limits.entity, resources, plan=limits.plan_of(limits.entity))


@register.simple_tag(takes_context=True)
def own_plan(context: template.Context) -> str:
    """Return the name of the plan of the entity of the request; empty without one."""
    limits = limits_of(context["request"])
    return limit_words.own_plan(limits.entity, limits.plan_of(limits.entity))


@register.inclusion_tag("limits_app/own_limits_table.html", takes_context=True)
def own_limits_table(context: template.Context, *resources: str) -> dict[str, Any]:
    """Show these limits as a table, with the plan; a site can override the template."""
    return {"limits": own_limits(context, *resources), "plan": own_plan(context)}

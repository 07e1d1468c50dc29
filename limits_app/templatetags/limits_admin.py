"""`{% load limits_admin %}`: the menu of the limits and their state, for pages of the admin outside of this app."""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.inclusion_tag("admin/limits_app/menu.html", takes_context=True)
def limits_menu(context: template.Context) -> dict[str, Any]:
    """Show the menu of the app below the banner of the emergency switch."""
    # Django imports all tags, also on a site without its admin.
    from limits_app.admin.pages.summary import menu_of

    return {"request": context["request"], "menu": menu_of(context["request"])}


@register.inclusion_tag("admin/limits_app/summary.html", takes_context=True)
def limits_summary(context: template.Context) -> dict[str, Any]:
    """Show the state of all limits, and lead to the pages of the app."""
    from limits_app.admin.pages.summary import summary

    return summary(context["request"])

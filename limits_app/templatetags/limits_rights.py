"""`{% load limits_rights %}`: what a user may do, in the templates of the admin."""

from __future__ import annotations

from typing import Any

from django import template

from limits_app.services import rights

register = template.Library()


@register.filter
def may(user: Any, action: str) -> bool:
    """Whether the user may do this; `action` is the name of a member of `Action`, as in `{% if user|may:"BOOST" %}`."""
    return rights.may(user, rights.Action[action])

"""Who may do what: the permissions of Django's models, as in the admin, and some of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from limits_app import conf
from limits_app.integrations.drf.throttle import django_request

__all__ = ["BOOST", "RESET", "REVERT", "TOP_UP", "USAGE", "Callers", "ModelPermission", "Permission"]

RESET: Final = "limits_app.reset_resource"
REVERT: Final = "limits_app.revert_auditevent"
TOP_UP: Final = "limits_app.top_up_resource"
BOOST: Final = "limits_app.boost_policy"
USAGE: Final = "limits_app.view_usagesnapshot"

_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "GET": ("view", "change"),
    "HEAD": ("view", "change"),
    "POST": ("add",),
    "PUT": ("change",),
    "PATCH": ("change",),
    "DELETE": ("delete",),
}


class ModelPermission(BasePermission):
    """To read, the permission to view or to change; to write, the one of the verb."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Ask for the model of the view."""
        verbs = _VERBS.get(request.method or "")
        if verbs is None:
            return True  # to be told that there is no such method
        model = view.queryset.model._meta.model_name
        return any(_may(request, f"limits_app.{verb}_{model}") for verb in verbs)


class Permission(BasePermission):
    """The permission that the view names."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Ask for it."""
        return _may(request, view.permission)


class Callers(BasePermission):
    """Whoever is logged in, or has shown an API key: not mere visitors, whom names of resources do not concern."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Look who asks."""
        api_key_of_request = conf.function_of(conf.API_KEY_OF_REQUEST)
        has_key = api_key_of_request is not None and bool(api_key_of_request(django_request(request)))
        return has_key or (request.user is not None and request.user.is_authenticated)


def _may(request: Request, permission: str) -> bool:
    """Whether somebody asks, as who is unknown may be nobody to the framework, and may do it."""
    return request.user is not None and bool(request.user.has_perm(permission))

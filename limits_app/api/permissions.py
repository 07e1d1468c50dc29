"""Access by Django's model permissions, and the actor and reason of changes for the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from limits_app import conf
from limits_app.audit import acting
from limits_app.integrations.identity import entity_of_key

SOURCE: Final = "api"
REASON_HEADER: Final = "X-Reason"
_LONGEST: Final = 1000

RESET: Final = "limits_app.reset_resource"
REVERT: Final = "limits_app.revert_auditevent"
TOP_UP: Final = "limits_app.top_up_resource"
BOOST: Final = "limits_app.boost_policy"
CANDIDATES: Final = {"GET": "limits_app.view_policy", "POST": "limits_app.change_policy"}
EMERGENCY: Final = {"GET": "limits_app.view_emergencyswitch", "PUT": "limits_app.change_emergencyswitch"}
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
    """Reading requires the view or change permission; writing requires the permission of the action."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Check the permission for the model of the view."""
        verbs = _VERBS.get(request.method or "")
        if verbs is None:
            return True  # the view answers with 405
        model = view.queryset.model._meta.model_name
        return any(_may(request, f"limits_app.{verb}_{model}") for verb in verbs)


class Permission(BasePermission):
    """Requires the permission in the view's `permission` attribute."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Check that permission, or the one of the verb."""
        permission = view.permission
        if isinstance(permission, dict):
            permission = permission.get("GET" if request.method == "HEAD" else request.method, "")
        return _may(request, permission) or not permission  # the view answers other verbs with 405


class Callers(BasePermission):
    """Requires a logged-in user or an API key, because anonymous visitors must not see resource names."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Check for a user or an API key."""
        api_key_of_request = conf.function_of(conf.API_KEY_OF_REQUEST)
        has_key = api_key_of_request is not None and bool(api_key_of_request(request))
        return has_key or (request.user is not None and request.user.is_authenticated)


def _may(request: Request, permission: str) -> bool:
    """Whether the user has a permission; REST framework can be configured to have no anonymous user (None)."""
    return request.user is not None and bool(request.user.has_perm(permission))


@contextmanager
def changing(request: Request) -> Iterator[None]:
    """Run changes of configuration in a transaction, recorded in the audit log with the user of the request."""
    with acting(actor=actor_of(request), source=SOURCE, reason=reason_of(request)):
        yield


def actor_of(request: Request) -> str:
    """The user name of the request; without a user, the entity of its API key."""
    name = "" if request.user is None else str(request.user.get_username())
    api_key_of_request = conf.function_of(conf.API_KEY_OF_REQUEST)
    if name or api_key_of_request is None:
        return name
    key = api_key_of_request(request)
    return entity_of_key(key) if key else ""


def who(request: Request) -> dict[str, str]:
    """The `actor` and `source` arguments of the services for this request."""
    return {"actor": actor_of(request), "source": SOURCE}


def reason_of(request: Request) -> str:
    """The reason in the X-Reason header, decoded as UTF-8; empty without the header."""
    said = request.headers.get(REASON_HEADER, "")
    return said.encode("latin-1", "replace").decode("utf-8", "replace").replace("\0", "")[:_LONGEST]

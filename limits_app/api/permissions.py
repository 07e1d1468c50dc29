"""Who may do what, by the permissions of Django's models, and who has done it, for the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from limits_app import conf
from limits_app.audit import acting
from limits_app.integrations.identity import entity_of_key

__all__ = [
    "BOOST",
    "REASON_HEADER",
    "RESET",
    "REVERT",
    "TOP_UP",
    "USAGE",
    "Callers",
    "ModelPermission",
    "Permission",
    "changing",
    "reason_of",
    "who",
]

SOURCE: Final = "api"
REASON_HEADER: Final = "X-Reason"
_LONGEST: Final = 1000

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
        has_key = api_key_of_request is not None and bool(api_key_of_request(request))
        return has_key or (request.user is not None and request.user.is_authenticated)


def _may(request: Request, permission: str) -> bool:
    """Whether somebody asks, as who is unknown may be nobody to the framework, and may do it."""
    return request.user is not None and bool(request.user.has_perm(permission))


@contextmanager
def changing(request: Request) -> Iterator[None]:
    """Change configuration in this block: all of it or nothing, recorded as done by whoever sends the request."""
    with acting(actor=actor_of(request), source=SOURCE, reason=reason_of(request)):
        yield


def actor_of(request: Request) -> str:
    """The name of whoever sends the request; of somebody without one, the entity of the API key that was shown."""
    name = "" if request.user is None else str(request.user.get_username())
    api_key_of_request = conf.function_of(conf.API_KEY_OF_REQUEST)
    if name or api_key_of_request is None:
        return name
    key = api_key_of_request(request)
    return entity_of_key(key) if key else ""


def who(request: Request) -> dict[str, str]:
    """The same for verbs of the service: who sends the request, and by which way in."""
    return {"actor": actor_of(request), "source": SOURCE}


def reason_of(request: Request) -> str:
    """Why, as the header says in UTF-8; empty where it says nothing."""
    said = request.headers.get(REASON_HEADER, "")
    return said.encode("latin-1", "replace").decode("utf-8", "replace").replace("\0", "")[:_LONGEST]

"""Access by the table of rights, and the actor and reason of changes for the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from limits_app import conf
from limits_app.audit import acting
from limits_app.integrations.identity import entity_of_key
from limits_app.services.rights import Action, may, may_change_rows

SOURCE: Final = "api"
REASON_HEADER: Final = "X-Reason"
_LONGEST: Final = 1000

_VERBS: Final[Mapping[str, str]] = {
    "GET": "view",
    "HEAD": "view",
    "POST": "add",
    "PUT": "change",
    "PATCH": "change",
    "DELETE": "delete",
}


class ModelPermission(BasePermission):
    """Requires the permission to view, add, change or delete rows of the model, as in the admin."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Check the permission for the model of the view."""
        verb = _VERBS.get(request.method or "")
        return verb is None or may_change_rows(request.user, verb, view.queryset.model)  # None: it answers with 405


class Permission(BasePermission):
    """Requires what the table of rights says about the actions of the view, which has them by verb as `rights`.

    One of several actions is enough; the view then checks the one that the body names.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Check the rights of the verb."""
        actions = view.rights.get("GET" if request.method == "HEAD" else request.method)
        return actions is None or any(may(request.user, action) for action in actions)  # None: it answers with 405


def check(request: Request, action: Action, *more: Action | str) -> None:
    """Raise PermissionDenied unless the user may do this; see `rights.may`."""
    if not may(request.user, action, *more):
        raise PermissionDenied


class Callers(BasePermission):
    """Requires a logged-in user or an API key, because anonymous visitors must not see resource names."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Check for a user or an API key."""
        api_key_of_request = conf.function_of(conf.API_KEY_OF_REQUEST)
        has_key = api_key_of_request is not None and bool(api_key_of_request(request))
        return has_key or (request.user is not None and request.user.is_authenticated)


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
    reason = request.headers.get(REASON_HEADER, "")
    return reason.encode("latin-1", "replace").decode("utf-8", "replace").replace("\0", "")[:_LONGEST]

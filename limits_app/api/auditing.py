"""Changes through the REST API, as one transaction with its audit event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rest_framework.request import Request

from limits_app import conf
from limits_app.audit import acting
from limits_app.integrations.drf.throttle import django_request
from limits_app.integrations.identity import entity_of_key

__all__ = ["REASON_HEADER", "SOURCE", "actor_of", "changing", "reason_of", "who"]

SOURCE: Final = "api"
REASON_HEADER: Final = "X-Reason"
_LONGEST: Final = 1000


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
    key = api_key_of_request(django_request(request))
    return entity_of_key(key) if key else ""


def who(request: Request) -> dict[str, str]:
    """The same for verbs of the service: who sends the request, and by which way in."""
    return {"actor": actor_of(request), "source": SOURCE}


def reason_of(request: Request) -> str:
    """Why, as the header says in UTF-8; empty where it says nothing."""
    said = request.headers.get(REASON_HEADER, "")
    return said.encode("latin-1", "replace").decode("utf-8", "replace").replace("\0", "")[:_LONGEST]

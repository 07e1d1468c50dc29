"""Changes through the REST API, as one transaction with its audit event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rest_framework.request import Request

from limits_app.audit import acting

__all__ = ["REASON_HEADER", "SOURCE", "actor_of", "changing", "reason_of"]

SOURCE: Final = "api"
REASON_HEADER: Final = "X-Reason"
_LONGEST: Final = 1000


@contextmanager
def changing(request: Request) -> Iterator[None]:
    """Change configuration in this block: all of it or nothing, recorded as done by whoever sends the request."""
    with acting(actor=actor_of(request), source=SOURCE, reason=reason_of(request)):
        yield


def actor_of(request: Request) -> str:
    """The name of whoever sends the request."""
    return request.user.get_username()


def reason_of(request: Request) -> str:
    """Why, as the header says in UTF-8; empty where it says nothing."""
    said = request.headers.get(REASON_HEADER, "")
    return said.encode("latin-1", "replace").decode("utf-8", "replace").replace("\0", "")[:_LONGEST]

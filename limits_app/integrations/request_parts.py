"""Combinations: who is counted by a URL rule that counts by more than one part of a request.

Each combination of values is an entity, named by a digest of the values beneath the client that the rule counts by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from django.core.exceptions import BadRequest, SuspiciousOperation
from django.http import HttpRequest, UnreadablePostError
from django.http.multipartparser import MultiPartParserError

from limits_app.integrations.identity import client_of, normalized_text
from limits_app.services.combinations import combined_name
from limits_app.services.integration import CountedPart
from limits_app.services.url_rules import UrlRule

P = TypeVar("P")

_UNREADABLE: Final = (
    BadRequest,
    MultiPartParserError,
    SuspiciousOperation,
    UnreadablePostError,
    # A form may name any codec of Python as its charset.
    LookupError,
    ValueError,
)


def combined_entity(rule: UrlRule, request: HttpRequest, client: str | None) -> str:
    """Return the entity that stands for a client and the parts of a request that a rule combines.

    Spaces around a value and its case make no difference, and of a long value only the beginning counts. A part that is
    missing has an empty value.
    """
    return combined_name(client, _words(rule, request))


def _words(rule: UrlRule, request: HttpRequest) -> Iterator[bytes]:
    """The parts and their values as bytes."""
    for part in rule.parts:
        value = normalized_text(readable(_value, request, part)).casefold()
        for word in (part.kind, part.name, value):
            yield word.encode("utf-8", "surrogatepass")


def readable(read: Callable[[HttpRequest, P], str], request: HttpRequest, part: P) -> str:
    """Return a part of a request; empty where Django cannot read it, so that the request is counted all the same."""
    try:
        return read(request, part)
    except _UNREADABLE:
        return ""


def _value(request: HttpRequest, part: CountedPart) -> str:
    """The value of a part; empty where the request has none. Of several values it is the last one, as views read it."""
    match part.kind:
        case "header":
            return request.headers.get(part.name, "")
        case "cookie":
            return request.COOKIES.get(part.name, "")
        case "query":
            return request.GET.get(part.name, "")
        case "form":
            return str(request.POST.get(part.name, ""))
        case "path":
            match = request.resolver_match
            return "" if match is None else str(match.kwargs.get(part.name, ""))
        case _:
            return client_of(request)

"""Combinations: who is counted by a URL rule that counts by more than one part of a request.

A client can send any header, cookie or field. So the values share a fixed number of counters beneath the client that
the rule counts by, by a digest of the values: however many values a client sends, it has no more counters than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from django.core.exceptions import BadRequest, SuspiciousOperation
from django.http import HttpRequest, UnreadablePostError
from django.http.multipartparser import MultiPartParserError

from limits_app.integrations.identity import client_of, normalized_text
from limits_app.services.integration import MAX_ENTITY_LENGTH, CountedPart
from limits_app.services.url_rules import UrlRule

COUNTERS_OF_A_CLIENT: Final = 1024
"""How many counters a combination has beneath one client."""
COUNTERS_OF_EVERYONE: Final = 65_536
"""How many it has where everyone is counted together."""
_UNREADABLE: Final = (BadRequest, MultiPartParserError, SuspiciousOperation, UnreadablePostError)


def combined_entity(rule: UrlRule, request: HttpRequest, client: str | None) -> str:
    """Return the entity that stands for a client and the parts of a request that a rule combines.

    Spaces around a value and its case make no difference, and of a long value only the beginning counts. A part that is
    missing has an empty value.
    """
    counters = COUNTERS_OF_EVERYONE if client is None else COUNTERS_OF_A_CLIENT
    digest = blake2b(digest_size=8)
    for word in _words(rule, request):
        digest.update(len(word).to_bytes(8, "little") + word)
    number = int.from_bytes(digest.digest(), "little") % counters
    if client is None:
        return f"part:{number}"
    name = f"part:{number}:{client}"
    if len(name) <= MAX_ENTITY_LENGTH:
        return name
    return f"part:{number}:{blake2b(client.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _words(rule: UrlRule, request: HttpRequest) -> Iterator[bytes]:
    """The parts and their values as bytes."""
    for part in rule.parts:
        value = normalized_text(_readable_value(part, request)).casefold()
        for word in (part.kind, part.name, value):
            yield word.encode("utf-8", "surrogatepass")


def _readable_value(part: CountedPart, request: HttpRequest) -> str:
    try:
        return _value(part, request)
    except _UNREADABLE:  # it is counted like an empty value, also where the view reads the error
        return ""


def _value(part: CountedPart, request: HttpRequest) -> str:
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

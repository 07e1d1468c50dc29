"""Entity tags: which version of an object a client has seen."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from limits_app.api.problems import PreconditionFailed, PreconditionRequired

__all__ = ["check_match", "is_known", "tag_of"]


def tag_of(representation: Any) -> str:
    """Give the strong tag of a representation: the same text as long as it is the same, whoever asks and when."""
    return f'"{blake2b(JSONRenderer().render(representation), digest_size=16).hexdigest()}"'


def is_known(request: Request, tag: str) -> bool:
    """Whether a reader has this version already."""
    known = [one.removeprefix("W/") for one in parse_etags(request.headers.get("If-None-Match", ""))]
    return tag in known or "*" in known


def check_match(request: Request, tag: str) -> None:
    """Refuse a change that does not say which version it is about, or that is about another one than this."""
    said = request.headers.get("If-Match", "").strip()
    if not said:
        raise PreconditionRequired(_("Send the ETag of the version that you have read as If-Match."))
    if said != "*" and tag not in parse_etags(said):
        raise PreconditionFailed(_("It has been changed since you have read it: read it again."))

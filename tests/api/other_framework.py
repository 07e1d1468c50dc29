"""A site with another value for every setting of REST framework; most of what it names refuses to work."""

from __future__ import annotations

from typing import Any, NoReturn

from rest_framework.authentication import BasicAuthentication, SessionAuthentication
from rest_framework.filters import BaseFilterBackend
from rest_framework.metadata import BaseMetadata
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.pagination import BasePagination
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.renderers import BaseRenderer
from rest_framework.throttling import BaseThrottle
from rest_framework.versioning import BaseVersioning


def fails(*_arguments: Any, **_options: Any) -> NoReturn:
    """Fail: what the site chose is used by a view of the app."""
    raise AssertionError("a view of the app uses a setting of the site")


class UserOfSession(SessionAuthentication):
    """The user of Django, without a check of a CSRF token."""

    def enforce_csrf(self, request: Any) -> None:
        """Accept every request."""


class UserOfDjango(BasicAuthentication):
    """The user of the session, or of basic authentication; how users log in is the choice of the site."""

    def authenticate(self, request: Any) -> Any:
        """Return the user of Django, if one is logged in."""
        return UserOfSession().authenticate(request) or super().authenticate(request)


class Renderer(BaseRenderer):
    media_type = "text/other"
    format = "other"
    render = fails


class Parser(BaseParser):
    media_type = "*/*"
    parse = fails


class Denied(BasePermission):
    has_permission = fails


class Throttled(BaseThrottle):
    allow_request = fails


class Negotiation(BaseContentNegotiation):
    select_parser = select_renderer = fails


class Metadata(BaseMetadata):
    determine_metadata = fails


class Versioning(BaseVersioning):
    determine_version = fails


class Pagination(BasePagination):
    paginate_queryset = fails


class Filter(BaseFilterBackend):
    filter_queryset = fails

"""Base classes of the views: parsing, content negotiation, ETags, paging and CRUD of configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from http import HTTPStatus
from types import SimpleNamespace
from typing import IO, Any, ClassVar, Final

from django.apps import apps
from django.conf import settings
from django.db import router
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from drf_spectacular.renderers import (
    OpenApiJsonRenderer,
    OpenApiJsonRenderer2,
    OpenApiYamlRenderer,
    OpenApiYamlRenderer2,
)
from drf_spectacular.types import OpenApiTypes
from rest_framework import filters, generics, pagination, renderers, serializers, viewsets
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app.api import problems
from limits_app.api.permissions import ModelPermission, Permission, changing
from limits_app.api.queries import MAX_PAGE_SIZE, PageQuery, read
from limits_app.api.schema import ApiSchema, described, extend_schema
from limits_app.api.throttle import ApiThrottle
from limits_app.integrations.drf.throttle import ThrottledViewMixin

_REVALIDATE: Final = "private, no-cache"


class BoundedJSONParser(JSONParser):
    """Enforces DATA_UPLOAD_MAX_MEMORY_SIZE, and rejects values that cannot be serialized as JSON again."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the parsed body; raises ParseError for invalid JSON, and Problem for a body over the limit."""
        most: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body: bytes = stream.read() if most is None else stream.read(most + 1)
        if most is not None and len(body) > most:
            message = _("The body is longer than %(bytes)d bytes.") % {"bytes": most}
            raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        try:
            parsed = json.loads(body)
            json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ParseError(
                _("The body must be valid JSON, without NaN, infinite numbers or invalid Unicode.")
            ) from error
        return parsed


class JSONRenderer(renderers.JSONRenderer):
    """Compact JSON in UTF-8, whatever the site prefers."""

    compact, ensure_ascii, strict = True, False, True


class PageRenderer(renderers.BrowsableAPIRenderer):
    """The framework's pages, to read in a browser; changes need If-Match, which no form sends."""

    def show_form_for_method(self, view: Any, method: str, request: Any, obj: Any) -> bool:
        """Show no forms."""
        return False


class JSONOrPage(DefaultContentNegotiation):
    """Selects JSON whatever the Accept header says, except for browsers on a site with the framework's templates."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        """Return the page for a browser, which names HTML first, and else the JSON renderer."""
        media_type = request.headers.get("Accept", "").partition(",")[0].partition(";")[0].strip()
        is_page = media_type == PageRenderer.media_type and request.method in {"GET", "HEAD"}
        chosen = renderers[-1 if is_page and apps.is_installed("rest_framework") else 0]
        return chosen, chosen.media_type


def tag_of(representation: Any) -> str:
    """Return the strong ETag of a representation; it depends on the content only."""
    return f'"{blake2b(JSONRenderer().render(representation), digest_size=16).hexdigest()}"'


def check_match(request: Request, tag: str) -> None:
    """Raise Problem with the status 428 without If-Match, and with 412 if it names another version."""
    header = request.headers.get("If-Match", "").strip()
    if not header:
        message = _("Send the ETag of the version that you have read in the If-Match header.")
        raise problems.Problem(HTTPStatus.PRECONDITION_REQUIRED, message)
    if header != "*" and tag not in parse_etags(header):
        message = _("The object has been changed since you read it. Read it again and repeat the change.")
        raise problems.Problem(HTTPStatus.PRECONDITION_FAILED, message)


class ApiPagination(pagination.PageNumberPagination):
    """50 rows by default; `page_size` selects another number."""

    page_size = 50
    max_page_size = MAX_PAGE_SIZE
    page_size_query_param = "page_size"


class _Search(filters.SearchFilter):
    search_param = "search"


class ApiView(ThrottledViewMixin, APIView):
    """Ignores the site's REST framework settings, except for authentication.

    Answers without a version must not be cached.
    """

    permission_classes: Sequence[type[BasePermission]] = (Permission,)
    parser_classes = (BoundedJSONParser,)
    renderer_classes: Sequence[type[renderers.BaseRenderer]] = (JSONRenderer, PageRenderer)
    content_negotiation_class: type[BaseContentNegotiation] = JSONOrPage
    throttle_classes = (ApiThrottle,)
    throttles_block_of_everything = True  # see `DECIDES_ITSELF`
    versioning_class = None
    metadata_class = None
    schema = ApiSchema()

    def get_exception_handler(self) -> Callable[..., Response | None]:
        """Return the handler that renders problem details."""
        return problems.answer

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Forbid caches to keep an answer without a version."""
        response.setdefault("Cache-Control", "no-store")
        finalized = super().finalize_response(request, response, *args, **kwargs)
        if isinstance(getattr(finalized, "accepted_renderer", None), PageRenderer):
            if finalized.status_code >= HTTPStatus.BAD_REQUEST:  # problem details, also for browsers
                finalized.accepted_renderer, finalized.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
            else:  # the tag is that of the JSON
                finalized.headers.pop("ETag", None)
                finalized["Cache-Control"] = "no-store"
        return finalized

    def answered(self, request: Request, data: Any, status: int = 200) -> Response:
        """Return the representation with its ETag, or 304 if the client has this version."""
        tag = tag_of(data)
        headers = {"ETag": tag, "Cache-Control": _REVALIDATE}
        etags = {etag.removeprefix("W/") for etag in parse_etags(request.headers.get("If-None-Match", ""))}
        if request.method in {"GET", "HEAD"} and etags & {tag, "*"}:
            return Response(status=304, headers=headers)
        return Response(data, status=status, headers=headers)


class IndexView(ApiView):
    """The URLs of this API that can be read."""

    permission_classes = (IsAuthenticated,)
    names: Mapping[str, str] = {}
    """The names of the URLs, by their paths."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """List the URLs; each checks who may read it."""
        match = request.resolver_match
        namespace = f"{match.namespace}:" if match is not None and match.namespace else ""
        return Response(
            {name: request.build_absolute_uri(reverse(f"{namespace}{url}")) for name, url in self.names.items()}
        )


class NotFoundView(ApiView):
    """Answers unknown URLs with 404 as problem details."""

    schema = None  # type: ignore[assignment]  # leaves the view out of the schema
    permission_classes = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raise Http404 for every method."""
        raise Http404


class _SchemaFormat(DefaultContentNegotiation):
    settings = SimpleNamespace(URL_FORMAT_OVERRIDE="format")  # type: ignore[assignment]  # what it reads of them


class SchemaView(ApiView):
    """The OpenAPI description, as JSON or YAML; errors are problem details."""

    permission_classes = (IsAuthenticated,)
    renderer_classes = (OpenApiYamlRenderer, OpenApiYamlRenderer2, OpenApiJsonRenderer, OpenApiJsonRenderer2)
    content_negotiation_class = _SchemaFormat

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """Describe this API in the format that `format` or the Accept header names."""
        return Response(described(request))

    def handle_exception(self, exc: Exception) -> Response:
        """Render errors as JSON, whatever format was requested."""
        response = super().handle_exception(exc)
        self.request.accepted_renderer, self.request.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        return response


class ListView(ApiView, generics.GenericAPIView[Any]):
    """Lists rows, one page at a time."""

    pagination_class = ApiPagination
    filter_backends = ()
    query: type[PageQuery] = PageQuery
    search_fields: ClassVar[tuple[str, ...]] = ()
    tagged = True

    def rows(self, request: Request) -> QuerySet[Any]:
        """The filtered rows in a deterministic order: the requested one, then the primary key."""
        values = read(self.query, request.query_params)
        rows = self.get_queryset().filter(*self.query.conditions(values))
        if "search" in values:
            rows = _Search().filter_queryset(request, rows, self)
        ordering = [values["ordering"]] if "ordering" in values else rows.model._meta.ordering
        return rows.order_by(*ordering, "pk")

    def list(self, request: Request) -> Response:
        """List."""
        page = self.paginate_queryset(self.rows(request))
        return self.answered(request, self.get_paginated_response(self.get_serializer(page, many=True).data).data)


class ConfigurationView(ListView, viewsets.ModelViewSet[Any]):
    """CRUD for one model; changes require If-Match and are recorded in the audit log."""

    permission_classes = (ModelPermission,)
    lookup_value_converter = "int"
    http_method_names: Sequence[str] = ("get", "post", "put", "patch", "delete", "head")

    def retrieve(self, request: Request, pk: int) -> Response:
        """Read one."""
        return self.answered(request, self.represented(pk))

    def create(self, request: Request) -> Response:
        """Create one."""
        with changing(request):
            data = self.represented(self.saved(self.get_serializer(data=request.data)).pk)
        return self.answered(request, data, 201)

    def update(self, request: Request, pk: int, partial: bool = False) -> Response:
        """Replace one as a whole."""
        with changing(request):
            row = self.locked(request, pk)
            self.saved(self.get_serializer(row, data=request.data, partial=partial))
            data = self.represented(pk)
        return self.answered(request, data)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Change some fields of one."""
        return self.update(request, pk, partial=True)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete one."""
        with changing(request):
            self.locked(request, pk).delete()
        return Response(status=204)

    def get_queryset(self) -> QuerySet[Any]:
        """The rows of the primary database, because a replica may lag behind."""
        rows = super().get_queryset()
        return rows.using(router.db_for_write(rows.model))

    def represented(self, pk: int) -> Any:
        """The representation of the current row."""
        return self.get_serializer(get_object_or_404(self.get_queryset(), pk=pk)).data

    def locked(self, request: Request, pk: int) -> Any:
        """The row, locked for update; raises Problem if it is not the version of If-Match."""
        rows = self.get_queryset()
        rows.model.objects.using(rows.db).select_for_update().order_by("pk").filter(pk=pk).first()
        row = get_object_or_404(rows, pk=pk)
        check_match(request, tag_of(self.get_serializer(row).data))
        return row

    def saved(self, serializer: serializers.BaseSerializer[Any]) -> Any:
        """Validate and save; returns the row."""
        serializer.is_valid(raise_exception=True)
        return serializer.save()

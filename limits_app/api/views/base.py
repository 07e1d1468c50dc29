"""What all views of the REST API have in common, and the verbs on rows of configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import IO, Any, ClassVar, Final

from django.conf import settings
from django.db import router
from django.db.models import QuerySet
from django.http import Http404
from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from drf_spectacular.views import SpectacularAPIView
from rest_framework import filters, generics, pagination, serializers, viewsets
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app.api import problems
from limits_app.api.permissions import ModelPermission, changing
from limits_app.api.schema import ApiSchema
from limits_app.api.serializers.queries import MOST_ON_A_PAGE, ListQuery, read
from limits_app.api.throttle import ApiThrottle
from limits_app.integrations.drf.throttle import LimitsMixin

__all__ = ["ApiView", "BoundedJSONParser", "ConfigurationView", "ListView", "NowhereView", "Page", "SchemaView"]

_REVALIDATE: Final = "private, no-cache"


class BoundedJSONParser(JSONParser):
    """Reads no more than the site admits, and refuses numbers, text and nesting that could not be written back."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Give the body as plain data; ParseError where it is none."""
        most: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body: bytes = stream.read() if most is None else stream.read(most + 1)
        if most is not None and len(body) > most:
            raise problems.TooLarge(_("The body is longer than %(bytes)d bytes.") % {"bytes": most})
        try:
            parsed = json.loads(body)
            json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ParseError(_("The body is no JSON, or has numbers or text that JSON cannot say.")) from error
        return parsed


class AlwaysJSON(DefaultContentNegotiation):
    """There is one form of answer, whatever the client would like best."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        """Give the only renderer."""
        return renderers[0], renderers[0].media_type


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
        raise problems.PreconditionRequired(_("Send the ETag of the version that you have read as If-Match."))
    if said != "*" and tag not in parse_etags(said):
        raise problems.PreconditionFailed(_("It has been changed since you have read it: read it again."))


class Page(pagination.PageNumberPagination):
    """50 rows, or as many as are asked for."""

    page_size = 50
    max_page_size = MOST_ON_A_PAGE
    page_size_query_param = "page_size"


class _Search(filters.SearchFilter):
    search_param = "search"


class ApiView(LimitsMixin, APIView):
    """Nothing depends on the site's settings of the framework, but for who is believed: its authentication."""

    parser_classes = (BoundedJSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = AlwaysJSON
    throttle_classes = (ApiThrottle,)
    versioning_class = None
    metadata_class = None
    schema = ApiSchema()

    def get_exception_handler(self) -> Callable[..., Response | None]:
        """Problem details."""
        return problems.answer

    def answered(self, request: Request, data: Any, status: int = 200) -> Response:
        """Give the representation with its tag, or say that the reader has it already."""
        tag = tag_of(data)
        headers = {"ETag": tag, "Cache-Control": _REVALIDATE}
        if request.method in {"GET", "HEAD"} and is_known(request, tag):
            return Response(status=304, headers=headers)
        return Response(data, status=status, headers=headers)


class NowhereView(ApiView):
    """Addresses that there are not, as problem details too."""

    schema = None  # type: ignore[assignment]  # which leaves it out
    permission_classes = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Say so, whatever is asked."""
        raise Http404


class SchemaView(SpectacularAPIView):
    """The description of the API, in the forms that the generator knows; what is refused is told as by all views."""

    permission_classes = (IsAuthenticated,)
    throttle_classes = (ApiThrottle,)

    def get_exception_handler(self) -> Callable[..., Response | None]:
        """Problem details."""
        return problems.answer

    def handle_exception(self, exc: Exception) -> Response:
        """Answer in JSON, in whatever form the description was asked for."""
        response = super().handle_exception(exc)
        self.request.accepted_renderer, self.request.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        return response


class ListView(ApiView, generics.GenericAPIView[Any]):
    """Lists rows a page at a time."""

    pagination_class = Page
    filter_backends = ()
    query: type[ListQuery] = ListQuery
    search_fields: ClassVar[tuple[str, ...]] = ()
    tagged = True

    def rows(self, request: Request) -> QuerySet[Any]:
        """The rows that were asked for, in the order that was asked for, and always in the same."""
        values = read(self.query, request.query_params)
        rows = self.get_queryset().filter(*self.query.conditions(values))
        if "search" in values:
            rows = _Search().filter_queryset(request, rows, self)
        asked = [values["ordering"]] if "ordering" in values else rows.model._meta.ordering
        return rows.order_by(*asked, "pk")

    def list(self, request: Request) -> Response:
        """List."""
        page = self.paginate_queryset(self.rows(request))
        return self.answered(request, self.get_paginated_response(self.get_serializer(page, many=True).data).data)


class ConfigurationView(ListView, viewsets.ModelViewSet[Any]):
    """All verbs on the rows of one model; changes name the version that they change, and are audited."""

    permission_classes: ClassVar[tuple[type[BasePermission], ...]] = (ModelPermission,)  # type: ignore[misc]
    lookup_value_converter = "int"
    http_method_names: Sequence[str] = ("get", "post", "put", "patch", "delete", "head")

    def retrieve(self, request: Request, pk: int) -> Response:
        """Read one."""
        return self.answered(request, self.represented(pk))

    def create(self, request: Request) -> Response:
        """Make one."""
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
        """The rows in the database that is written to: a replica may not know yet what is changed."""
        rows = super().get_queryset()
        return rows.using(router.db_for_write(rows.model))

    def found(self, pk: int) -> Any:
        """The row as the database has it now."""
        row = self.get_queryset().filter(pk=pk).first()
        if row is None:
            raise Http404
        return row

    def represented(self, pk: int) -> Any:
        """The representation of the row as the database has it now."""
        return self.get_serializer(self.found(pk)).data

    def locked(self, request: Request, pk: int) -> Any:
        """The row, which nobody else can change now, if it is still in the version that the request is about."""
        rows = self.get_queryset()
        rows.model.objects.using(rows.db).select_for_update().order_by("pk").filter(pk=pk).first()
        row = self.found(pk)
        check_match(request, tag_of(self.get_serializer(row).data))
        return row

    def saved(self, serializer: serializers.BaseSerializer[Any]) -> Any:
        """The row after it was checked and saved."""
        serializer.is_valid(raise_exception=True)
        return serializer.save()

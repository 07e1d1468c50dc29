"""The OpenAPI description of the REST API, with problem details and ETags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final, TypeVar

from drf_spectacular import utils
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import SPECTACULAR_DEFAULTS, patched_settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request

from limits_app.api.permissions import REASON_HEADER
from limits_app.engine.locks import RLock
from limits_app.integrations.drf.schema import LimitsSchemaMixin
from limits_app.integrations.refusals import PROBLEM

OpenApiSchema = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

_ALWAYS: Final = (400, 401, 403, 429, 503)
_CHANGES: Final = frozenset({"PUT", "PATCH", "DELETE"})
_WRITES: Final = _CHANGES | {"POST"}
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_CONFIRM: Final = (
    "`true` confirms a change that is rejected with 409 otherwise: weaker enforcement of a policy in force, or a block "
    "that also hits the caller, a trusted proxy, a private network or everyone."
)
_TAG: Final = {"ETag": {"description": "The version of the representation.", "schema": {"type": "string"}}}


class WrongSerializer(serializers.Serializer[Any]):
    """One error, located by a JSON `pointer` (RFC 6901) into the body or by a query `parameter`."""

    pointer = serializers.CharField(required=False)
    parameter = serializers.CharField(required=False)
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """Problem details (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = WrongSerializer(many=True, required=False)  # type: ignore[assignment]  # the framework takes fields out of the class

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """The fields, including one whose name is not a Python identifier."""
        violated = serializers.ListField(child=serializers.CharField(), required=False)
        return super().get_fields() | {"violated-policies": violated}


class Problems(AutoSchema):
    """Adds the error responses and headers that operations have in common."""

    view: Any

    def get_override_parameters(self) -> Any:
        """The query parameters of the view, and the headers of changes."""
        query = getattr(self.view, "query", None)
        if query is not None and self.method == "GET" and getattr(self.view, "action", None) != "retrieve":
            yield query
        if self.method in _WITH_BODY and getattr(self.view, "is_confirmed", False):
            yield OpenApiParameter("confirm", bool, description=_CONFIRM)
        if self.method in _WRITES:
            yield _header(REASON_HEADER, "The reason of the change, for the audit log.", required=False)
        if self.method in _CHANGES:
            yield _header("If-Match", "The ETag of the version to change, or `*`.", required=True)
        if self.method == "GET" and self.is_tagged():
            yield _header("If-None-Match", "The ETag of a cached version.", required=False)

    def is_tagged(self) -> bool:
        """Whether responses have an ETag."""
        return getattr(self.view, "tagged", False)

    def get_operation(self, *arguments: Any) -> OpenApiSchema | None:
        """Return the operation of a view; None if it is left out of the schema."""
        operation: OpenApiSchema | None = super().get_operation(*arguments)
        if operation is not None:
            responses = operation["responses"]
            for status in self._problems():
                responses.setdefault(str(status.value), self._problem(status))
            if self.is_tagged():
                self._tag(responses)
        return operation

    def _problems(self) -> Iterator[HTTPStatus]:
        yield from map(HTTPStatus, _ALWAYS)
        if "{" in self.path or getattr(self.view, "pagination_class", None) is not None:
            yield HTTPStatus.NOT_FOUND
        if self.method in _WITH_BODY:
            yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            yield HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        if self.method in _WRITES:
            yield HTTPStatus.CONFLICT
        if self.method in _CHANGES:
            yield HTTPStatus.PRECONDITION_FAILED
            yield HTTPStatus.PRECONDITION_REQUIRED

    def _problem(self, status: HTTPStatus) -> OpenApiSchema:
        reference = self.resolve_serializer(ProblemSerializer, "response").ref
        return {"description": status.phrase, "content": {PROBLEM: {"schema": reference}}}

    def _tag(self, responses: OpenApiSchema) -> None:
        for code in responses.keys() & {"200", "201"}:
            responses[code]["headers"] = _TAG | responses[code].get("headers", {})
        if self.method == "GET":
            responses["304"] = {"description": "Not modified", "headers": _TAG}


class ApiSchema(LimitsSchemaMixin, Problems):
    """The schema class of the views of the REST API, independent of the site's default."""


def extend_schema(**options: Any) -> Callable[[F], F]:
    """`extend_schema` of drf-spectacular for a method of a view of the API; by itself it extends the site's default."""

    def decorate(method: F) -> F:
        method.kwargs = {"schema": ApiSchema}  # type: ignore[attr-defined]
        extended: F = utils.extend_schema(**options)(method)
        return extended

    return decorate


_OF_A_VIEW: Final = ("SERVE_", "DEFAULT_GENERATOR_CLASS")
"""The beginnings of settings that drf-spectacular takes from its own views only."""
_SETTINGS: Final = {
    **{name: value for name, value in SPECTACULAR_DEFAULTS.items() if not name.startswith(_OF_A_VIEW)},
    "TITLE": "Limits",
    "DESCRIPTION": "Read and change rate limits, quotas and concurrency limits.",
    "VERSION": "1",
    "PREPROCESSING_HOOKS": ["limits_app.api.schema.only_this_api"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "limits_app.api.schema.without_other_fields",
    ],
    "SCHEMA_PATH_PREFIX": "",
}
_DESCRIBING: Final = RLock()
"""Two threads that replace the settings of drf-spectacular at the same time would leave ours behind."""


def described(request: Request) -> OpenApiSchema:
    """The OpenAPI description of the REST API alone, whatever the settings of the site are."""
    with _DESCRIBING, patched_settings(_SETTINGS):
        schema: OpenApiSchema = SchemaGenerator().get_schema(request=request, public=True)  # type: ignore[no-untyped-call]
    return schema


def only_this_api(endpoints: Iterable[tuple[str, str, str, Any]]) -> list[tuple[str, str, str, Any]]:
    """Keep only the URLs of the REST API; a preprocessing hook of drf-spectacular."""
    package = __name__.rpartition(".")[0] + "."
    return [endpoint for endpoint in endpoints if endpoint[3].cls.__module__.startswith(package)]


def without_other_fields(result: OpenApiSchema, **_options: Any) -> OpenApiSchema:
    """Describe that objects have no other fields than those that are listed; a postprocessing hook."""
    for schema in result["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return result


def _header(name: str, description: str, *, required: bool) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, description=description, required=required)

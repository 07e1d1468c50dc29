"""Throttles in the OpenAPI schema of drf-spectacular: rejections, and headers on all responses."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.openapi import AutoSchema

from limits_app import conf
from limits_app.conf import HeaderStyle
from limits_app.integrations.drf.throttle import LimitThrottle

HeaderSchema = dict[str, Any]


def _header(description: str, kind: str) -> HeaderSchema:
    return {"description": description, "schema": {"type": kind}}


_RETRY_AFTER: Final = {"Retry-After": _header("Seconds until the next attempt.", "integer")}
_DRAFT: Final = {
    "RateLimit-Policy": _header('The effective limits, such as `"call_count";q=100;w=60`.', "string"),
    "RateLimit": _header('The remaining amounts, such as `"call_count";r=50;t=30`.', "string"),
}
_LEGACY: Final = {
    "X-RateLimit-Limit": _header("The capacity of the limit that is closest to its end.", "integer"),
    "X-RateLimit-Remaining": _header("The remaining amount.", "integer"),
    "X-RateLimit-Reset": _header("When it is unused again, in seconds since 1970.", "integer"),
}
_SENT: Final[dict[HeaderStyle, HeaderSchema]] = {
    HeaderStyle.DRAFT: _DRAFT,
    HeaderStyle.LEGACY: _LEGACY,
    HeaderStyle.BOTH: _DRAFT | _LEGACY,
    HeaderStyle.NONE: {},
}
_DETAIL: Final = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}


class LimitsSchemaMixin:
    """Adds 429, and the headers of LIMITS["HEADERS"], to the responses of views with throttles of limits_app.

    Responses that a view describes itself stay as they are, with more headers.
    """

    view: Any

    def get_operation(self, *arguments: Any) -> HeaderSchema | None:
        """The operation of a view; None for one that is left out of the schema."""
        operation: HeaderSchema | None = super().get_operation(*arguments)  # type: ignore[misc]  # of the schema
        if operation is not None and any(isinstance(throttle, LimitThrottle) for throttle in self.view.get_throttles()):
            _describe(operation["responses"])
        return operation


class LimitsAutoSchema(LimitsSchemaMixin, AutoSchema):
    """The schema of drf-spectacular with limits: REST_FRAMEWORK["DEFAULT_SCHEMA_CLASS"] names it."""


def _describe(responses: HeaderSchema) -> None:
    sent = _SENT[conf.get(conf.HEADERS)]
    described = responses.get("429", {"content": {"application/json": {"schema": _DETAIL}}, "description": ""})
    responses["429"] = {
        **described,
        "description": described["description"] or "Too many requests.",
        "headers": _RETRY_AFTER | sent | described.get("headers", {}),
    }
    for code, response in responses.items():
        if code.startswith("2") and sent:
            response["headers"] = sent | response.get("headers", {})

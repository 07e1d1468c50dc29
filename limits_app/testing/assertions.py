"""What tests say about responses."""

from __future__ import annotations

from http import HTTPStatus

from django.http.response import HttpResponseBase

__all__ = ["assert_limited", "assert_not_limited"]


def assert_limited(response: HttpResponseBase, *, retry_after: int | None = None) -> None:
    """Fail unless a response is a refusal that no cache keeps, and says to come back in `retry_after` seconds."""
    status = response.status_code
    assert status == HTTPStatus.TOO_MANY_REQUESTS, f"expected a refusal (429), got {status}"
    assert "no-store" in response.headers.get("Cache-Control", ""), "a refusal must say Cache-Control: no-store"
    if retry_after is not None:
        announced = response.headers.get("Retry-After")
        assert announced == str(retry_after), f"expected Retry-After: {retry_after}, got {announced}"


def assert_not_limited(response: HttpResponseBase) -> None:
    """Fail when a response is a refusal."""
    announced = response.headers.get("Retry-After")
    assert response.status_code != HTTPStatus.TOO_MANY_REQUESTS, f"refused (429), with Retry-After: {announced}"

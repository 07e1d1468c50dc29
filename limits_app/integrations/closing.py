"""The end of a response that is not sent."""

from __future__ import annotations

from contextlib import suppress

from django.http.response import HttpResponseBase

__all__ = ["drop"]


def drop(response: HttpResponseBase) -> None:
    """Close what a response has open that is not sent.

    Not by its `close`, which tells everybody that the request is over.
    """
    closers = response._resource_closers  # type: ignore[attr-defined]  # which is all but its `close` has
    for close in closers:
        with suppress(Exception):  # as Django has it
            close()
    closers.clear()

"""Responses: the headers that report the remaining amounts of limits, and the release of what a request holds.

`draft` is the format of the IETF (draft-ietf-httpapi-ratelimit-headers-10), which takes any number of limits;
`legacy` has room for one, and reports the one that is closest to its end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from itertools import chain
from math import ceil
from operator import attrgetter
from time import time
from typing import Any, Final, NamedTuple, cast
from weakref import ref

from django.core.handlers.asgi import ASGIRequest
from django.core.signals import request_finished
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase

from limits_app import conf
from limits_app.conf import HeaderStyle
from limits_app.engine.outcome import Outcome
from limits_app.integrations.request import ACQUISITION, RequestLimits
from limits_app.services.integration import Amount

REFUNDS: Final = "limits_refunds"
"""The attribute of a refusal: whether the request is refunded what it was charged when this is its response."""
_ADDED: Final = "limits_headers"
"""The attribute of a response with the `_Added` by the names of its headers; a cache keeps it too."""
_FORMAT: Final = conf.HEADERS.name
_MUST_SETTLE: Final = attrgetter("must_settle")
_OUTCOME, _STATUSES = attrgetter("outcome"), attrgetter("violations", "passed")
_RESOURCE, _PLACE = attrgetter("resource"), attrgetter("place")
_DRAFT: Final = ("RateLimit-Policy", "RateLimit")
_WITHOUT_RESET: Final = frozenset({"blocked", "resource"})
"""The types of limits that time does not bring back."""
_LIMIT: Final = "X-RateLimit-Limit"
_REMAINING: Final = "X-RateLimit-Remaining"
_RESET: Final = "X-RateLimit-Reset"
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_SECONDS_OF_A_DECADE: Final = 315_360_000
_PENDING: Final[dict[ref[HttpResponseBase], tuple[RequestLimits, HttpRequest]]] = {}
"""Responses that are being sent, with the limits to release; the request is kept alive until then."""

_RELEASED_AT_END: Final[ContextVar[tuple[RequestLimits, ...]]] = ContextVar("limits_app_unseen", default=())
"""The limits of the present request whose response no integration sees."""


class _Added(NamedTuple):
    """The value of a header, and the one that the view set, which it replaces or continues; None for no header."""

    value: str | None
    before: str | None


class _Quota(NamedTuple):
    """What clients learn about one limit, in whole units; `reset_seconds` is when it is unused again, None for permits.

    The other fields are those of its status; `rejects` says that it rejects the request.
    """

    name: str
    type: str
    limit: Amount
    window_seconds: float | None
    capacity: Amount
    remaining: int
    reset_seconds: int | None
    rejects: bool

    def urgency(self) -> tuple[bool, float, int]:
        """How close it is to its end; a limit that rejects comes first."""
        return self.rejects, -self.remaining / max(self.capacity, 1), self.reset_seconds or 0


def finish(response: HttpResponseBase, limits: RequestLimits, *, final: bool = True) -> None:
    """Set the headers of a response; with `final`, release with it what the request holds.

    That is released when the response was sent, or was dropped.
    """
    acquired = dict.fromkeys(map(ACQUISITION, limits.charges))
    if limits.refused is None:
        outcomes: Sequence[Outcome] = tuple(map(_OUTCOME, acquired))
    else:
        outcomes = _after_rejection(response, limits, final=final)
    if outcomes:
        set_headers(response, limits, outcomes)
    if not final:
        return
    if limits.log_ins:
        limits.settle_log_ins(response.status_code)
    if response.streaming or any(map(_MUST_SETTLE, acquired)):
        _release_when_sent(response, limits)
    else:
        for acquisition in acquired:
            acquisition.release()


def _release_when_sent(response: HttpResponseBase, limits: RequestLimits) -> None:
    if response.streaming and not isinstance(response, FileResponse):
        streamed = cast(Any, response)
        streamed.streaming_content = _ReleasingStream(streamed.streaming_content, limits)
    _PENDING[ref(response, _release_response)] = limits, limits.request
    _release_with_body(limits)


def _after_rejection(response: HttpResponseBase, limits: RequestLimits, *, final: bool) -> Sequence[Outcome]:
    """Return what the headers of a response report after a rejection; refund a request whose `final` response it is."""
    refunds = getattr(response, REFUNDS, None)
    refused = limits.refused or ()
    outcomes: Sequence[Outcome] = ()
    if refunds is None and response.status_code == limits.throttled_status:
        response.headers["Cache-Control"] = "no-store"
        outcomes, refunds = refused, True
        setattr(response, REFUNDS, refunds)
    elif refunds is None:
        outcomes = refused if limits.is_refunded else (*limits.outcomes, *refused)
    if refunds and final:
        limits.undo()
    return outcomes


def set_headers(response: HttpResponseBase, limits: RequestLimits, outcomes: Sequence[Outcome]) -> None:
    """Add headers with the remaining amounts of the limits in some outcomes.

    Headers that the view has set itself, as one that forwards the response of an upstream, stay: fields of the draft
    are lists and get more items, and of two sets of legacy headers the stricter one is sent.
    """
    form = limits.settings[_FORMAT]
    quotas = () if form is HeaderStyle.NONE else _quotas(outcomes)
    if not quotas:
        return
    if hasattr(response, _ADDED):  # by an inner integration
        remove_headers(response)
    added: dict[str, _Added] = {}
    if form is not HeaderStyle.LEGACY:
        policies, left = [], []
        for quota in quotas:
            policy, most = _policy(*quota[:4])
            policies.append(policy)
            reset = "" if quota.reset_seconds is None else f";t={quota.reset_seconds}"
            left.append(f'"{quota.name}";r={min(quota.remaining, most)}{reset}')  # a burst is no part of the quota
        for name, own in zip(_DRAFT, map(", ".join, (policies, left)), strict=True):
            before = response.headers.get(name)
            value = response.headers[name] = f"{before}, {own}" if before else own
            added[name] = _Added(value, before)
    if form is not HeaderStyle.DRAFT:
        legacy = _legacy(max(quotas, key=_Quota.urgency))
        for name, number in legacy.items() if _is_stricter(legacy, response.headers) else ():
            added[name] = _Added(number, response.headers.get(name))
            _set_header(response, name, number)
    setattr(response, _ADDED, added)


def remove_headers(response: HttpResponseBase) -> None:
    """Remove the headers that were added, as those for another request from a response that a cache kept."""
    added: Mapping[str, _Added] = getattr(response, _ADDED, {})
    for name, (value, before) in added.items():
        if response.headers.get(name) == value:  # else code of the site has set it since
            _set_header(response, name, before)


def _set_header(response: HttpResponseBase, name: str, value: str | None) -> None:
    if value is not None:
        response.headers[name] = value
    elif name in response.headers:
        del response.headers[name]


def name_of(resource: str | None, key: str) -> str:
    """The name of a limit where there are several resources: its key after its resource; a total has no resource."""
    return key if resource is None else f"{resource}:{key}"


def _quotas(outcomes: Sequence[Outcome]) -> Collection[_Quota]:
    """Return the limits in their order; of several scopes with the same limit, the one that is closest to its end."""
    statuses = chain.from_iterable(chain.from_iterable(map(_STATUSES, outcomes)))
    names_resource = len(set(map(_RESOURCE, statuses))) > 1
    found: dict[str, _Quota] = {}
    for outcome in outcomes:
        for status in () if outcome.degraded else sorted((*outcome.violations, *outcome.passed), key=_PLACE):
            quota = _Quota(
                name_of(status.resource, status.key) if names_resource else status.key,
                status.type,
                status.limit,
                status.window_seconds,
                status.capacity,
                int(status.remaining),
                None if status.type in _WITHOUT_RESET else ceil(status.reset_after),
                status in outcome.violations,
            )
            if quota.name not in found or quota.urgency() >= found[quota.name].urgency():
                found[quota.name] = quota
    return found.values()


@lru_cache(maxsize=4096)
def _policy(name: str, kind: str, limit: Amount, seconds: float | None) -> tuple[str, int]:
    """Return the item of a limit, and its `q`, which is whole.

    A capacity below 1 is sent as 1 in a longer window. A window that is not in whole seconds is left out.
    """
    if kind == "blocked":
        return f'"{name}";q=0', 0
    most = max(int(limit), 1)
    if kind == "resource":
        return f'"{name}";q={most};qu="concurrent-requests"', most
    if seconds is not None and limit < 1:
        seconds /= limit
    window = f";w={int(seconds)}" if seconds is not None and float(seconds).is_integer() else ""
    return f'"{name}";q={most}{window}', most


def _legacy(quota: _Quota) -> dict[str, str | None]:
    """Return the headers with the time of the reset in seconds since 1970, as most sites send them.

    A limit below 1 is sent as 1, as in the draft. None removes the header of another limit.
    """
    return {
        _LIMIT: str(0 if quota.type == "blocked" else max(int(quota.capacity), 1)),
        _REMAINING: str(quota.remaining),
        _RESET: None if quota.reset_seconds is None else str(ceil(time()) + quota.reset_seconds),
    }


def _is_stricter(own: Mapping[str, str | None], of_view: Mapping[str, str]) -> bool:
    """Whether legacy headers leave a client less than those of the view; False where these cannot be compared."""
    if not any(name in of_view for name in own):
        return True
    left, left_by_view = _number(own[_REMAINING]), _number(of_view.get(_REMAINING))
    if left is None or left_by_view is None:
        return False
    return (left, -_reset_at(own[_RESET])) < (left_by_view, -_reset_at(of_view.get(_RESET)))


def _reset_at(text: str | None) -> int:
    """Return the time of a reset in seconds since 1970; some sites send the seconds until then."""
    seconds = _number(text) or 0
    return seconds if seconds > _SECONDS_OF_A_DECADE else ceil(time()) + seconds


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def release_when_finished(limits: RequestLimits) -> None:
    """Release what a request holds when Django has finished it, where no integration sees the response."""
    _RELEASED_AT_END.set((*_RELEASED_AT_END.get(), limits))
    _release_with_body(limits)


def release_with_task(response: HttpResponseBase, limits: RequestLimits) -> None:
    """Release what a request holds when this task ends, unless its response is still to be sent.

    An asynchronous handler that is cancelled, or cannot send, drops the response without closing it, and the error may
    keep it until garbage is collected. Up to Django 6.0 that ends the task. From 6.1 on this is the task of the server,
    which goes on: see `_release_with_body`.
    """
    if response.streaming or any(map(_MUST_SETTLE, limits.acquired)):
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.add_done_callback(partial(_release_after_task, ref(response), limits))


def _release_after_task(reference: ref[HttpResponseBase], limits: RequestLimits, task: asyncio.Task[Any]) -> None:
    response = reference()
    if response is None or response.closed or task.cancelled() or task.exception() is not None:
        limits.end()


def _release_with_body(limits: RequestLimits) -> None:
    """Release what an asynchronous request holds when its body is closed, at the latest.

    The handler of Django 6.1 closes the body also where it cannot send the response, which it drops then.
    """
    request = getattr(limits.request, "_request", limits.request)  # that of Django, of one of the REST framework
    if not isinstance(request, ASGIRequest):
        return
    body: Any = request._stream
    body_reference, limits_reference = ref(body), ref(limits)  # no cycles: they would wait for the garbage collector

    def close() -> None:
        if (held := limits_reference()) is not None:
            held.end()
        if (closed := body_reference()) is not None:
            del closed.close
            closed.close()

    body.close = close


class _ReleasingStream:
    """The content of a streamed response; it releases what the request holds when it is closed."""

    def __init__(self, content: Any, limits: RequestLimits) -> None:
        self._content = content
        self._request = limits.request  # keeps the request alive, which its limits only refer to
        self._limits = limits

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._content)

    def close(self) -> None:
        """Release permits; Django calls this when it closes the response."""
        self._limits.end()


def _release_response(reference: ref[HttpResponseBase]) -> None:
    """Release what a request holds whose response was closed, or dropped without having been sent."""
    limits, _request = _PENDING.pop(reference, (None, None))
    if limits is not None:
        limits.end()


def _release_finished(**_: object) -> None:
    """Release what closed responses held, and what the present request holds."""
    for limits in _RELEASED_AT_END.get():
        limits.end()
    _RELEASED_AT_END.set(())
    for reference in list(_PENDING):
        response = reference()
        if response is not None and response.closed:
            _release_response(reference)


request_finished.connect(_release_finished, dispatch_uid="limits_app.request_finished")

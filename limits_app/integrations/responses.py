"""Responses: the headers that report the remaining amounts of limits, and the release of what a request holds.

`draft` is the format of the IETF (draft-ietf-httpapi-ratelimit-headers-10), which takes any number of limits;
`legacy` has room for one, and reports the one that is closest to its end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from itertools import chain, filterfalse
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
from limits_app.engine.outcome import LimitStatus, Outcome
from limits_app.integrations.holding import ACQUISITION, ViewCall
from limits_app.integrations.request import RequestLimits
from limits_app.services.integration import Acquisition, Amount

ChargeHolder = RequestLimits | ViewCall
"""What releases acquisitions with a response: a request, or without the middleware an outermost decorated view."""

REFUNDS: Final = "limits_refunds"
"""The attribute of a refusal: whether the request is refunded what it was charged when this is its response."""
_ADDED: Final = "limits_headers"
"""The attribute of a response with the `_Added` by the names of its headers; a cache keeps it too."""
_FORMAT: Final = conf.HEADERS.name
_MUST_SETTLE: Final = attrgetter("must_settle")
_OUTCOME, _STATUSES = attrgetter("outcome"), attrgetter("violations", "passed")
_RESOURCE, _PLACE, _NAMES = attrgetter("resource"), attrgetter("place"), attrgetter("resource", "key")
_DEGRADED: Final = attrgetter("degraded")
_DRAFT: Final = ("RateLimit-Policy", "RateLimit")
_WITHOUT_RESET: Final = frozenset({"blocked", "resource"})
"""The types of limits that time does not bring back."""
_LIMIT: Final = "X-RateLimit-Limit"
_REMAINING: Final = "X-RateLimit-Remaining"
_RESET: Final = "X-RateLimit-Reset"
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_SECONDS_OF_A_DECADE: Final = 315_360_000
_PENDING: Final[dict[ref[HttpResponseBase], tuple[ChargeHolder, HttpRequest]]] = {}
"""Responses that are being sent, with what holds the acquisitions to release; the request is kept alive until then."""

_RELEASED_AT_END: Final[ContextVar[tuple[RequestLimits, ...]]] = ContextVar("limits_app_unseen", default=())
"""The limits of the present request whose response no integration sees."""


class _Added(NamedTuple):
    """The value of a header, and the one that the view set, which it replaces or continues; None for no header."""

    value: str | None
    before: str | None


def finish(response: HttpResponseBase, limits: RequestLimits, holder: ChargeHolder | None) -> None:
    """Set the headers of a response, and release with it what its holder holds; None for a response that is not final.

    That is released when the response was sent, or was dropped.
    """
    is_rejected = limits.refused is not None
    if holder is limits and not (is_rejected or limits.charges or limits.log_ins or response.streaming):
        return
    acquired = dict.fromkeys(map(ACQUISITION, limits.charges))
    outcomes = _after_rejection(response, limits, holder) if is_rejected else tuple(map(_OUTCOME, acquired))
    if outcomes:
        set_headers(response, limits, outcomes)
    if holder is None:
        return
    if limits.log_ins:
        limits.settle_log_ins(response.status_code, getattr(limits.request, "user", None))
    acquisitions = acquired if holder is limits else holder.acquired
    if response.streaming or any([*map(Acquisition.release_unless_held, acquisitions)]):
        _release_when_sent(response, limits, holder)
    elif holder is not limits:
        holder.end()


def _release_when_sent(response: HttpResponseBase, limits: RequestLimits, holder: ChargeHolder) -> None:
    if response.streaming and not isinstance(response, FileResponse):
        streamed = cast(Any, response)
        streamed.streaming_content = _ReleasingStream(streamed.streaming_content, holder)
    _PENDING[ref(response, _release_response)] = holder, limits.request
    _release_with_body(limits)


def _after_rejection(
    response: HttpResponseBase, limits: RequestLimits, holder: ChargeHolder | None
) -> Sequence[Outcome]:
    """Return what the headers of a response report after a rejection; a final one refunds what its holder holds."""
    refunds = getattr(response, REFUNDS, None)
    refused = limits.refused or ()
    outcomes: Sequence[Outcome] = ()
    if refunds is None and response.status_code == limits.throttled_status:
        response.headers["Cache-Control"] = "no-store"
        outcomes, refunds = refused, True
        setattr(response, REFUNDS, refunds)
    elif refunds is None:
        outcomes = refused if limits.is_refunded else (*limits.outcomes, *refused)
    if refunds and holder is not None:
        holder.undo()
    return outcomes


def set_headers(response: HttpResponseBase, limits: RequestLimits, outcomes: Sequence[Outcome]) -> None:
    """Add headers with the remaining amounts of the limits in some outcomes.

    Headers that the view has set itself, as one that forwards the response of an upstream, stay: fields of the draft
    are lists and get more items, and of two sets of legacy headers the stricter one is sent.
    """
    form = limits.settings[_FORMAT]
    statuses: list[LimitStatus] = []
    for outcome in filterfalse(_DEGRADED, outcomes):
        statuses += sorted(outcome.violations + outcome.passed, key=_PLACE)
    if form is HeaderStyle.NONE or not statuses:
        return
    if hasattr(response, _ADDED):  # by an inner integration
        remove_headers(response)
    added: dict[str, _Added] = {}
    if form is not HeaderStyle.LEGACY:
        resources = () if len(outcomes) == len(statuses) == 1 else set(map(_RESOURCE, _all_statuses(outcomes)))
        policies, left = [], []
        for name, places in _named(tuple(map(_NAMES, statuses)), len(resources) > 1):
            status = (
                statuses[places[0]] if len(places) == 1 else _closest([statuses[place] for place in places], outcomes)
            )
            policy, most = _policy(name, status.type, status.limit, status.window_seconds)
            policies.append(policy)
            reset = "" if status.type in _WITHOUT_RESET else f";t={ceil(status.reset_after)}"
            left.append(f'"{name}";r={min(int(status.remaining), most)}{reset}')  # a burst is not part of the quota
        for name, own in zip(_DRAFT, map(", ".join, (policies, left)), strict=True):
            before = response.headers.get(name)
            value = response.headers[name] = f"{before}, {own}" if before else own
            added[name] = _Added(value, before)
    if form is not HeaderStyle.DRAFT:
        _add_legacy(response, added, _closest(statuses, outcomes))
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


def _all_statuses(outcomes: Iterable[Outcome]) -> Iterator[LimitStatus]:
    return chain.from_iterable(chain.from_iterable(map(_STATUSES, outcomes)))


@lru_cache(maxsize=4096)
def _named(names: Sequence[tuple[str | None, str]], names_resource: bool) -> Iterable[tuple[str, Sequence[int]]]:
    """Return the names of limits, by their resources and keys, each with the places of its limits, the last first.

    Several scopes may have a limit with the same name.
    """
    places: dict[str, list[int]] = {}
    for place, (resource, key) in enumerate(names):
        places.setdefault(name_of(resource, key) if names_resource else key, []).insert(0, place)
    return tuple(places.items())


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


def _closest(statuses: Iterable[LimitStatus], outcomes: Sequence[Outcome]) -> LimitStatus:
    """Return the limit that is closest to its end; one that rejects comes first."""
    rejecting = [status for outcome in outcomes for status in outcome.violations]

    def urgency(status: LimitStatus) -> tuple[bool, float, int]:
        return status in rejecting, -int(status.remaining) / max(status.capacity, 1), _reset_seconds(status) or 0

    return max(statuses, key=urgency)


def _reset_seconds(status: LimitStatus) -> int | None:
    """Return when a limit is unused again, in whole seconds; None where time does not bring it back."""
    return None if status.type in _WITHOUT_RESET else ceil(status.reset_after)


def _add_legacy(response: HttpResponseBase, added: dict[str, _Added], status: LimitStatus) -> None:
    """Set the headers with the time of the reset in seconds since 1970, as most sites send them.

    A limit below 1 is sent as 1, as in the draft. None removes the header of another limit.
    """
    reset_seconds = _reset_seconds(status)
    legacy = {
        _LIMIT: str(0 if status.type == "blocked" else max(int(status.capacity), 1)),
        _REMAINING: str(int(status.remaining)),
        _RESET: None if reset_seconds is None else str(ceil(time()) + reset_seconds),
    }
    for name, number in legacy.items() if _is_stricter(legacy, response.headers) else ():
        added[name] = _Added(number, response.headers.get(name))
        _set_header(response, name, number)


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


def release_with_task(response: HttpResponseBase, holder: ChargeHolder) -> None:
    """Release what is held for a response when this task ends, unless that is still to be sent.

    An asynchronous handler that is cancelled, or cannot send, drops the response without closing it, and the error may
    keep it until garbage is collected. Up to Django 6.0 that ends the task. From 6.1 on this is the task of the server,
    which goes on: see `_release_with_body`.
    """
    if response.streaming or any(map(_MUST_SETTLE, holder.acquired)):
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.add_done_callback(partial(_release_after_task, ref(response), holder))


def _release_after_task(reference: ref[HttpResponseBase], holder: ChargeHolder, task: asyncio.Task[Any]) -> None:
    response = reference()
    if response is None or response.closed or task.cancelled() or task.exception() is not None:
        holder.end()


def _release_with_body(limits: RequestLimits) -> None:
    """Release what an asynchronous request holds when its body is closed, at the latest.

    The handler of Django 6.1 closes the body also where it cannot send the response, which it drops then.
    """
    request = limits.request
    request = getattr(request, "_request", request)  # that of Django, of one of the REST framework
    if not isinstance(request, ASGIRequest):
        return
    body: Any = request._stream
    body_reference, limits_reference = ref(body), ref(limits)  # no cycles: they would wait for the garbage collector

    def close() -> None:
        if (open_limits := limits_reference()) is not None:
            open_limits.end()
        if (closed := body_reference()) is not None:
            del closed.close
            closed.close()

    body.close = close


class _ReleasingStream:
    """The content of a streamed response; it releases what is held for it when it is closed."""

    def __init__(self, content: Any, holder: ChargeHolder) -> None:
        self._content = content
        self._request = holder.request  # keeps the request alive, which its limits only refer to
        self._holder = holder

    def __iter__(self) -> Iterator[Any]:
        return iter(self._content)

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._content)

    def close(self) -> None:
        """Release what is held; Django calls this when it closes the response."""
        self._holder.end()


def _release_response(reference: ref[HttpResponseBase]) -> None:
    """Release what was held for a response that was closed, or dropped without having been sent."""
    holder, _request = _PENDING.pop(reference, (None, None))
    if holder is not None:
        holder.end()


def _release_finished(**_: object) -> None:
    """Release what closed responses held, and what the present request holds."""
    ended = _RELEASED_AT_END.get()
    if ended:
        for limits in ended:
            limits.end()
        _RELEASED_AT_END.set(())
    for reference in list(_PENDING):
        response = reference()
        if response is not None and response.closed:
            _release_response(reference)


request_finished.connect(_release_finished, dispatch_uid="limits_app.request_finished")

"""A client that tries again, with backoff and jitter, on tenacity."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tenacity import AsyncRetrying, RetryCallState

from limits_app.core.backoff import delay, jittered
from limits_app.outbound.bounds import check_counts, check_durations
from limits_app.outbound.client import ResourceClient
from limits_app.outbound.errors import NotNow, UpstreamFailed
from limits_app.outbound.events import Observer, Retrying, silent
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Request, Response

__all__ = ["RetryRules", "RetryingClient"]

_PASSING: Final = frozenset({502, 503, 504})
"""Statuses of trouble that passes."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Up to `attempts` in all, none of which begins later than `within_seconds` after the first.

    The waits between them grow from `first_seconds` by a factor of 2 up to `most_seconds`, each with up to
    `jitter_seconds` more; an upstream that says when to come back is not asked earlier.
    """

    attempts: int = 4
    within_seconds: float = 60.0
    first_seconds: float = 0.25
    most_seconds: float = 10.0
    jitter_seconds: float = 0.25

    def __post_init__(self) -> None:
        check_counts(attempts=self.attempts)
        check_durations(
            within_seconds=self.within_seconds,
            first_seconds=self.first_seconds,
            most_seconds=self.most_seconds,
            jitter_seconds=self.jitter_seconds,
        )


class RetryingClient:
    """Tries again what may succeed next time, and what the upstream may get twice.

    That is: a request that was refused or was never sent, and one that failed or was answered with 502, 503 or 504
    if it may be repeated. What is left at the end is the last answer, or the last error.
    """

    def __init__(
        self,
        client: ResourceClient,
        rules: RetryRules | None = None,
        *,
        name: str = "upstream",
        observer: Observer = silent,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._rules = rules or RetryRules()
        self._name = name
        self._observer = observer
        self._unix_seconds = unix_seconds

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""
        deadline = asyncio.get_running_loop().time() + self._rules.within_seconds
        retrying = AsyncRetrying(
            sleep=asyncio.sleep,
            retry=partial(_worth_it, request),
            wait=self._wait,
            stop=partial(self._enough, deadline),
            before_sleep=self._told,
            retry_error_callback=_last,
        )
        response: Response = await retrying(self._client.send, request)
        return response

    async def aclose(self) -> None:
        """Close the client behind it."""
        await self._client.aclose()

    def _wait(self, state: RetryCallState) -> float:
        rules = self._rules
        wait = delay(state.attempt_number, first=rules.first_seconds, cap=rules.most_seconds)
        return max(jittered(wait, above=rules.jitter_seconds), self._asked_for(state))

    def _asked_for(self, state: RetryCallState) -> float:
        """How long the upstream wants to be left alone."""
        match _result(state):
            case NotNow(retry_after=seconds):
                return seconds
            case Response() as response:
                return hints_of(response, unix_seconds=self._unix_seconds()).retry_after or 0.0
            case _:
                return 0.0

    def _enough(self, deadline: float, state: RetryCallState) -> bool:
        late = asyncio.get_running_loop().time() + state.upcoming_sleep > deadline
        return late or state.attempt_number >= self._rules.attempts

    def _told(self, state: RetryCallState) -> None:
        self._observer.note(Retrying(self._name, state.attempt_number, state.upcoming_sleep))


def _result(state: RetryCallState) -> object:
    """The answer or the error of an attempt."""
    outcome = state.outcome
    return None if outcome is None else (outcome.exception() or outcome.result())


def _worth_it(request: Request, state: RetryCallState) -> bool:
    match _result(state):
        case NotNow():
            return True
        case UpstreamFailed(maybe_sent=maybe_sent):
            return request.may_repeat or not maybe_sent
        case Response() as response:
            return response.refused or (response.status in _PASSING and request.may_repeat)
        case _:
            return False


def _last(state: RetryCallState) -> Response:
    """What is left of the last attempt."""
    result = _result(state)
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, Response)  # noqa: S101 - an attempt ends with an answer or an error
    return result

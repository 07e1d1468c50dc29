"""What a request holds, and what becomes of that when it is answered."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final
from weakref import ref

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import LimitExceeded
from limits_app.integrations.charges import Charges
from limits_app.integrations.requester import Requester

__all__ = ["AnsweredRequest"]

_ANSWERS: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions with which a view answers; what answering took stays taken, or failed log-ins could not be limited."""


class AnsweredRequest(Requester):
    """What a request holds until the response has been sent, at the latest, or its refusal is final."""

    # Of the class, so that a request that nobody asks about costs little.
    refused: tuple[Acquisition, ...] | None = None
    """What refused it; None as long as nothing did, and clients are told of what was `acquired`."""
    _is_undone = False
    _telling: tuple[ref[HttpResponseBase], ...] = ()  # the responses that tell of refusals
    refusals: tuple[ref[HttpResponseBase], ...] = ()
    """Those that ways in gave instead of a view; only the end tells whether one of them answers the request."""
    guarded = False
    """Whether a middleware is told when the view fails."""
    enforced = False
    """Whether it was looked which endpoint the request is about."""
    hears = False
    """Whether it hears of its end."""
    throttled = False
    """Whether throttles have noted what they were told, which makes all that a request has harder to find."""
    _closes: Callable[[], None] | None = None  # what somebody had put in the place of the request's own `close`
    _streaming: HttpRequest | None = None

    def __init__(self, request: HttpRequest) -> None:
        self._reference = ref(request)
        self.acquired: list[Acquisition] = []
        """What was admitted, in order."""
        self.charges = Charges()
        """What ways in charged."""

    @property
    def holds(self) -> bool:
        """Whether anything was acquired."""
        return bool(self.acquired)

    @property
    def decided(self) -> Sequence[Acquisition]:
        """What clients are told of: what they were charged, and what refused them where a view goes on after that."""
        refused = self.refused
        if refused is None:
            return self.acquired
        return refused if self._is_undone else (*self.acquired, *refused)

    def listen(self) -> None:
        """Hear of the end from now on, when the response is there; also of what it takes while it streams.

        Later is too late: who sends a response has noted by then what to call when that was sent.
        """
        self._streaming = self._request  # kept until then, since a stream may need nothing else of it than this
        self.hear()

    def hear(self) -> None:
        """Hear when the request is closed, which servers do, through the response, when that was sent.

        Not by a closer of the response: that one may be cached, or replaced on its way out.
        And no signal tells whose end it is.
        """
        if self.hears:
            return
        request = self._reference() or self._request
        closes = request.__dict__.get("close")
        if closes != self._close:  # as it is where another thread was faster
            self._closes = closes
            request.close = self._close  # type: ignore[method-assign]  # see above
        self.hears = True

    def _close(self) -> None:
        request = self._reference()
        self._streaming = None
        try:
            if self._closes is not None:
                self._closes()
            elif request is not None:
                type(request).close(request)
        finally:
            self.end()

    def end(self) -> None:
        """The response was sent: permits go back, and amounts whose usage nobody reported count as used."""
        for acquisition in self.acquired:
            acquisition.release()

    @property
    def held(self) -> tuple[Acquisition, ...]:
        """What was acquired so far."""
        return tuple(self.acquired)

    def fail(self, error: BaseException, *, but: Container[Acquisition] = ()) -> None:
        """The view raised: amounts whose usage nobody reported are given back, unless the error is an answer.

        Of a view inside another one, that is what was acquired since it began, and not what was held before.
        """
        if not isinstance(error, _ANSWERS):
            for acquisition in self.acquired:
                if acquisition not in but:
                    acquisition.cancel()

    def undo(self) -> None:
        """The request is refused: what ways in charged it before is given back, calls included.

        What the code acquired itself is given back as far as its usage was to be reported, since a call was made.
        Not before it is sure that no view runs any more that the request holds something for.
        An error that a view lets out is `fail`, or whoever gets there had a free attempt.
        """
        self._undo(self.acquired)
        self._is_undone = True
        self.refused = self.refused or ()

    def refused_with(
        self, response: HttpResponseBase, error: BaseException | None = None, *, gives_back: bool
    ) -> Sequence[Acquisition]:
        """Note a response that was made of a refusal; gives what it tells of: what refused, and nothing else.

        That is what the `error` says, else what was refused last.
        One that gives back does so where it answers the request: a view may still drop it, and answer otherwise.
        """
        self._telling = (*self._telling, ref(response))  # which refers to this, as it closes the request
        if gives_back:
            self.refusals = (*self.refusals, ref(response))
        refused = error.refused if isinstance(error, LimitExceeded) else None
        self.refused = (self.refused or ()) if refused is None else (refused,)
        return self.refused

    def is_refusal(self, response: object) -> bool:
        """Whether a way in gave it instead of a view."""
        return _is_among(self.refusals, response)

    def told(self, response: HttpResponseBase) -> Sequence[Acquisition]:
        """What is to be told of in a response: nothing more where it tells of a refusal."""
        if self.refused is None:
            return self.acquired
        return () if _is_among(self._telling, response) else self.decided

    def answered(self, response: HttpResponseBase) -> Sequence[Acquisition]:
        """`told` for the last response of the request, with which a refusal is final: `undo`."""
        if self.refused is None:
            return self.acquired
        told = self.told(response)
        if self.is_refusal(response):
            self.undo()
        return told

    def _admitted(self, acquisition: Acquisition) -> Acquisition:
        """What was admitted; LimitExceeded for what was refused, which clients are told of."""
        if acquisition.successful:
            return acquisition
        self.refused = (acquisition,)
        raise LimitExceeded.of(acquisition)

    def _hold(self, acquisition: Acquisition) -> None:
        """Note what was acquired; who hands it out hears of the end, since somebody may report its usage."""
        if acquisition.claim.plan.needs_settling or type(acquisition) is not Acquisition:  # which may settle more
            self.hear()
        acquisition.__enter__()  # nested requests of the view do not take its permits again
        self.acquired.append(acquisition)

    def _drop(self, acquisitions: Container[Acquisition]) -> None:
        self.acquired = [one for one in self.acquired if one not in acquisitions]

    def _undo(self, acquisitions: Sequence[Acquisition]) -> None:
        self.charges.give_back(acquisitions)
        for acquisition in acquisitions:
            acquisition.cancel()


def _is_among(references: Iterable[ref[HttpResponseBase]], response: object) -> bool:
    return any(reference() is response for reference in references)
